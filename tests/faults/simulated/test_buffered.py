"""Buffered rounds under faults: each committed update enters at most one version, and is not older than allowed."""

from __future__ import annotations

import os
from functools import partial

import pytest

from tests.faults.simulated.schedules import Schedule, buffered, chunks, draw_buffered, kill_coordinator, play, stop

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.medium
@pytest.mark.parametrize("seeds", chunks(8), ids=str)
def test_drawn_schedule_with_buffered_rounds_keeps_all_promises(seeds):
    for seed in seeds:
        play(draw_buffered(seed))


@pytest.mark.medium
def test_coordinator_killed_as_it_saves_the_last_round_leaves_no_carried_work():
    world = play(draw_buffered(72))
    assert any("the run is complete" in line for line in world.log)


def test_versions_take_updates_of_older_models():
    world = play(Schedule(5, buffered(), chunk_bytes=1000))
    assert any(world.oracle.staleness)


@pytest.mark.parametrize("moment_s", [8.0, 16.0])
def test_stop_after_a_round_and_resume_lose_no_carried_work(moment_s):
    world = play(Schedule(7, buffered(), chunk_bytes=1000).at(moment_s, partial(stop, pause_s=2.0)))
    assert "resume" in " ".join(world.log)
    assert not any("stale" in line for line in world.log)


@pytest.mark.parametrize("fuse", range(0, 60, 3 if "FAULT_SEEDS" in os.environ else 12))
def test_kill_before_a_write_with_carried_work_open_loses_no_committed_update(fuse):
    """Every twelfth write, every third with `make faults`; drawn schedules kill at other writes."""
    schedule = Schedule(7, buffered(), chunk_bytes=1000)
    play(schedule.at(12.0, partial(kill_coordinator, pause_s=2.0, fuse=fuse)))
