"""Drawn schedules of faults, a sample of those that `make faults` plays. FAULT_SEEDS=1000..1100 plays others."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.faults.simulated.schedules import chunks, draw, play


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """The details of a failure are in the world's own log."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("seeds", chunks(5, 60), ids=str)
def test_drawn_schedule_keeps_all_promises(seeds):
    """Every committed update counts, once; every round and the run end in time; models and patches are right to the bit."""
    for seed in seeds:
        play(draw(seed))
