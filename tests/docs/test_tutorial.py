"""docs/tutorials/own-task.md, followed step by step: every command, in order, in one shell."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.brokers import free_port
from tests.support.paths import ROOT

PAGE = (ROOT / "docs/tutorials/own-task.md").read_text("utf-8")
PATIENCE_S = 600.0
MARK = "==== block"

pytestmark = [pytest.mark.pages, pytest.mark.system, pytest.mark.broker]


def _blocks() -> list[str]:
    return re.findall(r"^```bash\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Followed:
    """Folder, printed output and duration of a followed page."""

    folder: Path
    printed: list[str]
    seconds: float


def _programs(folder: Path) -> Path:
    """The commands that an installation puts on the PATH."""
    folder.mkdir()
    lines = {"python": "", "fedpatch": "-m fedpatch", "fedpatch-agent": "-m fedpatch.device_agent"}
    for name, arguments in lines.items():
        (folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Followed:
    """The page, followed to its end."""
    sbin = "/usr/sbin:/usr/local/sbin"
    if shutil.which("mosquitto", path=f"{os.environ['PATH']}:{sbin}") is None:
        pytest.skip("mosquitto is not installed (apt install mosquitto)")
    folder, programs = tmp_path_factory.mktemp("tutorial"), tmp_path_factory.mktemp("installed")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("FEDPATCH_", "PYTEST_"))}
    environment |= {
        "PATH": f"{_programs(programs / 'bin')}:{os.environ['PATH']}:{sbin}",
        "PORT": str(free_port()),
        "PYTHONPATH": str(ROOT),
        "FEDPATCH_METRICS": "none",  # another program on this machine may use the port
    }
    script = "set -e\n" + "\n".join(f"echo '{MARK}'\n{block}" for block in _blocks())
    began = time.monotonic()
    with (folder.parent / "output.txt").open("w+") as printed:
        shell = subprocess.Popen(
            ["bash", "-c", script], cwd=folder, env=environment, stdout=printed, stderr=printed, start_new_session=True
        )
        try:
            code = shell.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            with suppress(ProcessLookupError):  # end the page's processes, wherever the test ends
                os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
        seconds = time.monotonic() - began
        printed.seek(0)
        text = printed.read()
    assert code == 0, text + "".join(path.read_text() for path in sorted(folder.glob("room/*.log")))
    return Followed(folder / "room", text.split(MARK + "\n")[1:], seconds)


def _user_accuracy(printed: str) -> float:
    found = re.search(r"all rounds done after \d+ rounds?, user accuracy (\S+)", printed)
    assert found, printed
    return float(found[1])


@pytest.mark.timeout(PATIENCE_S + 60)
def test_the_tutorial_comes_to_its_end(followed: Followed, record_property: Callable[[str, object], None]):
    """Each block was run. The report of --junit-xml has the duration, which is the figure on the page."""
    assert len(followed.printed) == len(_blocks()) == 9
    record_property("tutorial_s", round(followed.seconds))


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
