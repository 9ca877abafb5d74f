"""Work in a forked copy of a process."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from fedpatch.device_agent.training.forked_work import ForkedWorkDied, run_forked


def test_run_forked_returns_the_text_and_keeps_no_change_of_memory():
    left: list[int] = []

    def work() -> str:
        left.append(os.getpid())
        return "é" * 100_000

    assert run_forked(work) == "é" * 100_000
    assert not left


def test_run_forked_work_in_another_process_with_another_oom_score():
    pid, score = run_forked(lambda: f"{os.getpid()} {Path('/proc/self/oom_score_adj').read_text()}").split()
    assert int(pid) != os.getpid()
    assert int(score) >= 500


def test_run_forked_killed_work_is_an_error_that_names_the_signal():
    def work() -> str:
        os.kill(os.getpid(), signal.SIGKILL)
        return ""

    with pytest.raises(ForkedWorkDied, match="SIGKILL; is there too little memory"):
        run_forked(work)


def test_run_forked_exception_of_the_work_is_an_error():
    with pytest.raises(ForkedWorkDied, match="exit code 1"):
        run_forked(lambda: str(1 // 0))
