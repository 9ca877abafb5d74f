"""docs/tutorials/own-readings.md: from raw readings with damaged lines to a prediction, in at most ten commands."""

from __future__ import annotations

import re

import pytest

from tests.docs.followed_page import PATIENCE_S, Followed, follow, typed_blocks
from tests.docs.shown_output import not_printed, shown_outputs
from tests.support.paths import ROOT

NAME = "docs/tutorials/own-readings.md"
PAGE = (ROOT / NAME).read_text("utf-8")
NUMBERS = {"seven": 7, "eight": 8, "nine": 9, "ten": 10}


def _commands() -> list[str]:
    """The commands of the page; the content of a written file belongs to its command."""
    plain = re.sub(r"<<'END'\n.*?^END$", "", "\n".join(typed_blocks(PAGE)), flags=re.MULTILINE | re.DOTALL)
    return [line for line in plain.splitlines() if line.strip()]


def test_the_page_has_as_many_commands_as_it_says_and_at_most_ten():
    (word,) = re.findall(r"You type (\w+) commands", PAGE)
    assert NUMBERS[word] == len(_commands()) <= 10


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Followed:
    """The page, followed to its end."""
    pytest.importorskip("amqtt", reason="the built-in broker is not installed (pip install 'fedpatch[demo]')")
    return follow(PAGE, tmp_path_factory)


@pytest.mark.pages
@pytest.mark.system
@pytest.mark.broker
@pytest.mark.timeout(PATIENCE_S + 60)
def test_a_newcomer_comes_from_raw_readings_to_a_prediction(followed: Followed):
    """The damaged lines are named as shown, each device has a model, and the new minute is predicted with its times."""
    readings, checked, trained, predicted = followed.printed
    for printed, shown in zip(followed.printed, shown_outputs(NAME), strict=True):
        assert not_printed(shown, printed) == [], printed
    assert len(readings.splitlines()) >= 8
    (shown,) = re.findall(r"^    warn +left out +(.*)$", PAGE, re.MULTILINE)
    assert shown in checked and "0 checks failed" in checked
    assert len(list(followed.folder.glob("demo-out/devices/*/models/steps/current/model.onnx"))) == 6
    assert "present model of steps" in trained
    for line in re.findall(r"^    (minute.txt\[.*)$", PAGE, re.MULTILINE):
        assert line in predicted.splitlines()
    assert len(predicted.splitlines()) == 23
