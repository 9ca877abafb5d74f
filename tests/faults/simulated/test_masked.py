"""Masked rounds under faults, with the real agents: sums are right to the bit, no device reveals both secrets of a peer."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest

from tests.faults.simulated.schedules import Schedule, draw_masked, masked, play

_CHUNK = 10
SEEDS = range(200 if os.environ.get("CI") else 20)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """What a failure has to tell is in the world's own log."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


def test_masked_rounds_without_faults_have_everybody_in_them():
    world = play(Schedule(1, masked()))
    run = min(run for run, _ in world.oracle.records)
    rounds = [(record.outcome, record.reported) for (of, _), record in world.oracle.records.items() if of == run]
    assert rounds == [("aggregated", 9)] * 2


@pytest.mark.slow
@pytest.mark.parametrize("first", SEEDS[::_CHUNK])
def test_drawn_schedule_of_masked_rounds_keeps_all_promises(first):
    """Kills before writes on both sides, lost and repeated messages, reboots, several epochs."""
    for seed in range(first, first + _CHUNK):
        play(draw_masked(seed))
