"""Work in a forked copy of a process."""

from __future__ import annotations

import ctypes
import os
import signal
import time
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


def test_run_forked_work_beyond_its_limit_is_killed_and_an_error_that_names_the_limit(tmp_path):
    def work() -> str:
        (tmp_path / "pid").write_text(str(os.getpid()))
        time.sleep(600)
        return ""

    with pytest.raises(ForkedWorkDied, match=r"longer than 2\.0 s"):
        run_forked(work, limit_s=2.0)
    assert not Path("/proc", (tmp_path / "pid").read_text()).exists()


def test_run_forked_closes_its_pipe_where_the_system_allows_no_other_process(monkeypatch):
    def refuse() -> int:
        raise OSError("no process")

    monkeypatch.setattr(os, "fork", refuse)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="no process"):
        run_forked(str)
    assert len(os.listdir("/proc/self/fd")) == before


def test_run_forked_work_that_asks_openmp_for_threads_after_this_process_used_some_ends():
    """The Arm Compute Library, by which torch multiplies on aarch64, does so."""
    import torch  # noqa: F401 - it loads OpenMP

    mapped = Path("/proc/self/maps").read_text().splitlines()
    openmp = ctypes.CDLL(next(line.split(maxsplit=5)[-1] for line in mapped if "libgomp" in line))
    calls: list[int] = []
    region = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: calls.append(openmp.omp_get_num_threads()))

    def work() -> str:
        calls.clear()
        openmp.GOMP_parallel(region, None, 2, 0)
        return str(calls)

    openmp.GOMP_parallel(region, None, 2, 0)
    assert calls == [2, 2]
    assert run_forked(work, limit_s=30.0) == "[1]"
