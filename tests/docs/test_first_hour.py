"""docs/tutorials/first-hour.md, followed step by step: every command, in order, in one shell, and the output that it shows."""

from __future__ import annotations

import re

import pytest

from tests.docs.followed_page import PATIENCE_S, Followed, follow, typed_blocks
from tests.docs.shown_output import not_printed, shown_outputs
from tests.support.paths import ROOT

pytestmark = [pytest.mark.pages, pytest.mark.system, pytest.mark.broker, pytest.mark.timeout(PATIENCE_S + 60)]

NAME = "docs/tutorials/first-hour.md"
PAGE = (ROOT / NAME).read_text("utf-8")
INSTALL = "```sh\nmake demo\nsource .venv/bin/activate\n```"
RUN = "fedpatch run --broker mqtt://127.0.0.1:1884 --devices 2 --rounds 40\n"
CTRL_C = f"""{RUN.strip()} &> run.txt &
coordinator=$!
until grep -q "^round 4/40" run.txt; do kill -0 $coordinator; sleep 0.1; done
kill -INT $coordinator
wait $coordinator || test $? = 130
cat run.txt
"""
"""A script has no keyboard, so it sends the signal of Ctrl-C."""


def _as_a_script() -> str:
    """The page for a machine with fedpatch: without the installation, with the signal of Ctrl-C, on a free port."""
    assert PAGE.count(INSTALL) == PAGE.count(RUN) == 1
    page = PAGE.replace(INSTALL, "```bash\nfedpatch demo --out demo-out\n```").replace(RUN, CTRL_C)
    return page.replace("1884", "$PORT")


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Followed:
    """The page, followed to its end."""
    pytest.importorskip("amqtt", reason="the built-in broker is not installed (pip install 'fedpatch[demo]')")
    return follow(_as_a_script(), tmp_path_factory)


def test_make_demo_is_the_command_that_the_script_runs():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    assert "ARGS ?= --out demo-out\n" in makefile
    assert "fedpatch demo $(ARGS)\n" in makefile


def test_each_shown_line_is_printed_by_the_command_above_it(followed: Followed):
    outputs = shown_outputs(NAME)
    assert len(followed.printed) == len(outputs) == len(typed_blocks(_as_a_script()))
    for printed, shown in zip(followed.printed, outputs, strict=True):
        assert not_printed(shown, printed) == [], printed


def test_patches_reach_the_target_and_one_model_for_all_does_not(followed: Followed):
    (with_patches,) = re.findall(r"target reached after \d+ rounds, user accuracy (\S+)", followed.printed[0])
    (without,) = re.findall(r"all rounds done after 30 rounds, user accuracy (\S+)", followed.printed[3])
    assert float(with_patches) >= 0.97 > float(without)


def test_both_devices_have_a_model_and_a_patch_after_the_resumed_run(followed: Followed):
    for device in ("pi-01", "pi-02"):
        state = followed.folder / "first-run" / device
        assert (state / "models/digits/current/model.onnx").is_file()
        assert list((state / "patches").glob("digits-*.patch"))
        assert '"state": "stopped"' in (state / "status.json").read_text()
