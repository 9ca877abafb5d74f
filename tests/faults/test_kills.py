"""kill -9 of all processes, again and again: the record of each round is correct, and its model fits the record.

The suite runs an eighth of the schedules of `make faults`; `make faults FAULT_SEEDS=100..200` runs others, and
`make faults FAULT_SEEDS=137` repeats one that failed.
"""

from __future__ import annotations

import os
import queue
import shutil
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.faults.drill import DEVICES, Lane
from tests.faults.schedules import draw, seeds

SEEDS = seeds(os.environ.get("FAULT_SEEDS", "0..3"))
LANES = min(3, len(SEEDS))
"""Number of runs in parallel: a run mostly waits."""

pytestmark = [
    pytest.mark.faults,
    pytest.mark.broker,
    pytest.mark.system,
    pytest.mark.timeout(300 + 60 * len(SEEDS)),
]


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory that is kept after the test if it has files of a failed schedule."""
    found = Path(tempfile.mkdtemp(prefix="fedpatch-faults-"))
    yield found
    for path in [*found.glob("*/*"), *found.glob("*"), found]:
        if not path.is_dir():
            path.unlink(missing_ok=True)
        elif not list(path.rglob("what.txt")):
            shutil.rmtree(path)


def test_killed_processes_lose_no_update_and_count_none_twice(directory: Path):
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for seed in SEEDS:
        waiting.put(seed)
    failed: list[str] = []
    lanes = [threading.Thread(target=_play, args=(directory / f"lane-{i}", waiting, failed)) for i in range(LANES)]
    for lane in lanes:
        lane.start()
    for lane in lanes:
        lane.join()
    assert waiting.empty(), f"lanes ended before their work: {failed}"
    assert not failed, "\n\n".join([f"{len(failed)} of {len(SEEDS)} schedules failed", *failed])


def _play(directory: Path, waiting: queue.SimpleQueue[int], failed: list[str]) -> None:
    with Lane(directory) as lane:
        while True:
            try:
                schedule = draw(waiting.get_nowait(), DEVICES)
            except queue.Empty:
                return
            problems = lane.play(schedule)
            if problems:
                failed.append(_report(str(schedule), schedule.seed, lane.kept(schedule), problems))


def _report(schedule: str, seed: int, kept: Path, problems: Sequence[str]) -> str:
    again = f"make faults FAULT_SEEDS={seed}"
    return "\n".join([schedule, *(f"  WRONG: {one}" for one in problems), f"  kept: {kept}", f"  again: {again}"])
