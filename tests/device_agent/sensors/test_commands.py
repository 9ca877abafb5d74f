"""Other programs are run within limits, and leave nothing behind."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from fedpatch.device_agent.sensors.commands import run_program
from fedpatch.device_agent.sensors.timeouts import FactUnavailable

PATIENCE_S = 60.0


def _shell(script: str, limit_s: float | None = None):
    return run_program(["/bin/sh", "-c", script], limit_s)


def test_command_output_is_returned():
    ended = _shell('echo "$LC_ALL"; echo lost >&2; cat; exit 3')
    assert (ended.code, ended.text) == (3, "C\n")


def test_a_program_that_hangs_is_ended_with_all_it_started(tmp_path):
    pid_file = tmp_path / "pid"
    for limit_s in (0.3, 3.0, 30.0):  # a busy machine may take long to start a shell
        with pytest.raises(FactUnavailable, match="has not ended"):
            _shell(f"sleep 1000 & echo $! > {pid_file}.new; mv {pid_file}.new {pid_file}; wait", limit_s)
        if pid_file.exists():
            break
    until = time.monotonic() + PATIENCE_S
    while _runs(int(pid_file.read_text())):
        assert time.monotonic() < until, "a process of the program stayed behind"
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter if the process ends between opening and reading
        return False


def test_a_program_that_closes_its_output_and_hangs_is_ended():
    with pytest.raises(FactUnavailable, match="has not ended"):
        _shell("exec >&-; exec sleep 1000", limit_s=0.3)


def test_a_program_that_never_stops_talking_is_ended():
    with pytest.raises(FactUnavailable, match="prints more than 64 KiB"):
        _shell("exec yes")


@pytest.mark.parametrize("argv", [["/does/not/exist"], ["/"], ["a\0b"], [os.devnull]])
def test_command_that_cannot_be_run_raises_with_the_reason(argv):
    with pytest.raises(FactUnavailable, match="cannot be run"):
        run_program(argv)
