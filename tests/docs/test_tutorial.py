"""docs/tutorials/own-task.md, followed step by step: every command, in order, in one shell."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.docs.followed_page import PATIENCE_S, Followed, follow, typed_blocks
from tests.docs.shown_output import not_printed, shown_outputs
from tests.support.paths import ROOT

NAME = "docs/tutorials/own-task.md"
PAGE = (ROOT / NAME).read_text("utf-8")

pytestmark = [pytest.mark.pages, pytest.mark.system, pytest.mark.broker]


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Followed:
    """The page, followed to its end."""
    found = follow(PAGE, tmp_path_factory)
    return replace(found, folder=found.folder / "room")


def _user_accuracy(printed: str) -> float:
    found = re.search(r"all rounds done after \d+ rounds?, user accuracy (\S+)", printed)
    assert found, printed
    return float(found[1])


@pytest.mark.timeout(PATIENCE_S + 60)
def test_the_tutorial_comes_to_its_end(followed: Followed, record_property: Callable[[str, object], None]):
    """Each block was run. The report of --junit-xml has the duration, which is the figure on the page."""
    assert len(followed.printed) == len(typed_blocks(PAGE)) == 9
    record_property("tutorial_s", round(followed.seconds))


def test_each_shown_line_is_printed_by_the_command_above_it(followed: Followed):
    for printed, shown in zip(followed.printed, shown_outputs(NAME), strict=True):
        assert not_printed(shown, printed) == [], printed


def test_the_skeletons_own_tests_pass(followed: Followed):
    assert re.search(r"\d+ passed", followed.printed[0])
    assert "failed" not in followed.printed[0]


def test_both_devices_get_a_model_that_fits_them(followed: Followed):
    """With private patches nine of ten test readings are classified correctly; one model for both is worse."""
    personal, together = _user_accuracy(followed.printed[3]), _user_accuracy(followed.printed[6])
    assert personal > 0.85
    assert together < personal


def test_readings_that_come_while_the_agent_runs_are_trained_on(followed: Followed):
    (began,) = re.findall(r"than the (\d+) that it began with", PAGE)
    (shown,) = re.findall(r"^    (task room: \d+ training examples)$", PAGE, re.MULTILINE)
    assert shown in followed.printed[4]
    (private,) = re.findall(r"^    (private: at least .*)$", PAGE, re.MULTILINE)
    assert private in followed.printed[4]
    log = (followed.folder / "kitchen.log").read_text()
    assert f"task room, {began} training examples" in log
    assert "the data have changed" in log


def test_the_device_uses_its_model(followed: Followed):
    pytest.importorskip("onnxruntime", reason="personal models need onnxruntime (pip install 'fedpatch[agent]')")
    assert re.search(r"\bhome\b", followed.printed[5].splitlines()[0])
    assert float(re.findall(r"accuracy (0\.\d+|1)", followed.printed[5])[0]) > 0.85


def test_a_patch_is_on_the_device(followed: Followed):
    assert "patch room, private all" in followed.printed[7]


def test_nothing_runs_when_the_reader_has_stopped_it(followed: Followed):
    for device in ("kitchen", "cellar"):
        assert '"state": "stopped"' in (followed.folder / f"state-{device}/status.json").read_text()
