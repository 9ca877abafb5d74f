"""The limits and the low priority of the training process, as the system reports them."""

from __future__ import annotations

import os
import queue
from dataclasses import replace
from pathlib import Path

import pytest

from fedpatch.device_agent.job.training_messages import Ready, SetupFailed, WorkerSetup
from fedpatch.device_agent.runtime.training_supervisor import Died, Trainer
from fedpatch.device_agent.training.resource_limits import _unchanged_mappings, give_memory_back

TIMEOUT_S = 100


@pytest.fixture
def start(installed, tmp_path):
    """Start a training process with such limits; return it and its first answer."""
    started = []

    def begin(task: str = "tests.device_agent.toy_tasks:TOY", **limits: int):
        events: queue.Queue = queue.Queue()
        setup = WorkerSetup(task, "ann:23", str(tmp_path), str(tmp_path / "p"), "ann")
        setup = replace(setup, **limits)  # type: ignore[arg-type]
        started.append(trainer := Trainer(setup, events.put))
        trainer.start()
        return trainer, events.get(timeout=TIMEOUT_S)

    yield begin
    for trainer in started:
        trainer.stop()


@pytest.mark.medium
def test_training_process_has_low_priority_a_high_oom_score_and_a_bounded_data_segment(start):
    trainer, ready = start(nice=7, max_memory_mib=2000)
    assert isinstance(ready, Ready), ready
    ours = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, trainer.pid) == min(19, ours + 7)
    assert int(Path(f"/proc/{trainer.pid}/oom_score_adj").read_text()) >= 500
    limits = Path(f"/proc/{trainer.pid}/limits").read_text().splitlines()
    (data,) = (line.split()[-3] for line in limits if line.startswith("Max data size"))
    (space,) = (line.split()[-3] for line in limits if line.startswith("Max address space"))
    assert int(data) == 2000 * 2**20
    assert space == "unlimited" or int(space) > int(data)


def test_too_little_memory_error_names_the_setting(start):
    _, failed = start(max_memory_mib=100)
    assert isinstance(failed, SetupFailed | Died), failed
    assert "100 MiB (max_memory_mib)" in failed.detail


@pytest.mark.medium
def test_library_that_cannot_be_mapped_error_names_the_setting(start, tmp_path, monkeypatch):
    (tmp_path / "sensors.py").write_text('raise ImportError("libtorch_cpu.so: cannot map zero-fill pages")\n')
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    _, failed = start("sensors:TASK", max_memory_mib=4000)
    assert isinstance(failed, SetupFailed)
    assert "4000 MiB (max_memory_mib)" in failed.detail


def mapping(heading: str, anonymous_kb: int = 0, swap_kb: int = 0) -> str:
    return (
        f"{heading}\nRss: 8 kB\nAnonymous: {anonymous_kb} kB\nSwap: {swap_kb} kB\nSwapPss: 0 kB\nVmFlags: rd mr me sd\n"
    )


@pytest.mark.parametrize(
    ("mappings", "given_back"),
    [
        (mapping("1000-3000 r-xp 00000000 fd:00 1234    /usr/lib/libtorch.so"), [(0x1000, 0x3000)]),
        (mapping("7f00-8f00 r--s 00000000 fd:00 77    /data/with a blank.npy"), [(0x7F00, 0x8F00)]),
        (mapping("3000-4000 r--p 00002000 fd:00 1234    /usr/lib/libtorch.so", anonymous_kb=4), []),
        (mapping("3000-4000 r--p 00002000 fd:00 1234    /usr/lib/libtorch.so", swap_kb=4), []),
        (mapping("4000-5000 rw-p 00003000 fd:00 1234    /usr/lib/libtorch.so"), []),
        (mapping("5000-6000 r--p 00000000 00:00 0"), []),
        (
            mapping("3000-4000 r--p 00002000 fd:00 1234    /usr/lib/libtorch.so", anonymous_kb=4)
            + mapping("4000-6000 rw-p 00000000 00:00 0 "),
            [],
        ),
    ],
    ids=[
        "code",
        "read-only data",
        "relocated",
        "relocated and swapped out",
        "writable",
        "no file",
        "relocated, before memory",
    ],
)
def test_release_returns_only_clean_file_mappings(mappings: str, given_back: list[tuple[int, int]]) -> None:
    """A changed page of a library holds relocated addresses; memory without a file has no other copy."""
    assert list(_unchanged_mappings(mappings)) == given_back


def test_code_that_was_given_back_is_read_again():
    give_memory_back()
    assert sum(map(int, "12")) == 3
