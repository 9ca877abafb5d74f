"""A page that is followed step by step: every command, in order, in one shell."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.brokers import free_port
from tests.support.paths import ROOT

PATIENCE_S = 600.0
MARK = "==== block"


@dataclass(frozen=True)
class Followed:
    """Folder, printed output of each block, and duration of a followed page."""

    folder: Path
    printed: list[str]
    seconds: float


def typed_blocks(page: str) -> list[str]:
    """The blocks of a page, which is a text, that a reader types."""
    return re.findall(r"^```bash\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)


def follow(page: str, tmp_path_factory: pytest.TempPathFactory) -> Followed:
    """Follow a page to its end; a failed command fails the test with the output and the logs."""
    sbin = "/usr/sbin:/usr/local/sbin"
    if shutil.which("mosquitto", path=f"{os.environ['PATH']}:{sbin}") is None:
        pytest.skip("mosquitto is not installed (apt install mosquitto)")
    folder, programs = tmp_path_factory.mktemp("followed"), tmp_path_factory.mktemp("installed")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("FEDPATCH_", "PYTEST_"))}
    environment |= {
        "PATH": f"{_programs(programs / 'bin')}:{os.environ['PATH']}:{sbin}",
        "PORT": str(free_port()),
        "PYTHONPATH": str(ROOT),
        "FEDPATCH_METRICS": "none",  # another program on this machine may use the port
    }
    script = "set -e\n" + "\n".join(f"echo '{MARK}'\n{block}" for block in typed_blocks(page))
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
    assert code == 0, text + "".join(path.read_text() for path in sorted(folder.glob("*/*.log")))
    return Followed(folder, text.split(MARK + "\n")[1:], seconds)


def _programs(folder: Path) -> Path:
    """The commands that an installation puts on the PATH."""
    folder.mkdir()
    lines = {"python": "", "fedpatch": "-m fedpatch", "fedpatch-agent": "-m fedpatch.device_agent"}
    for name, arguments in lines.items():
        (folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {arguments} "$@"\n')
        (folder / name).chmod(0o755)
    return folder
