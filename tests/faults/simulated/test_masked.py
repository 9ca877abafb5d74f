"""Masked rounds under faults, with the real agents: sums are exact to the bit, no device reveals both secrets of a peer."""

from __future__ import annotations

import pytest

from tests.faults.simulated.schedules import Schedule, chunks, draw_masked, masked, play

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.medium
def test_masked_rounds_without_faults_have_everybody_in_them():
    world = play(Schedule(1, masked()))
    run = min(run for run, _ in world.oracle.records)
    rounds = [(record.outcome, record.reported) for (of, _), record in world.oracle.records.items() if of == run]
    assert rounds == [("aggregated", 9)] * 2


@pytest.mark.medium
@pytest.mark.parametrize("seeds", chunks(5), ids=str)
def test_drawn_schedule_of_masked_rounds_keeps_all_promises(seeds):
    """Kills before writes on both sides, lost and repeated messages, reboots, several epochs."""
    for seed in seeds:
        play(draw_masked(seed))
