"""Drawn schedules of faults, more of them with CI=true. FAULT_SEEDS=1000..1100 plays others than the usual ones."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest

from tests.faults.simulated.schedules import draw, play

_CHUNK = 20
_FIRST, _, _END = os.environ.get("FAULT_SEEDS", "0..200" if os.environ.get("CI") else "0..60").partition("..")
SEEDS = range(int(_FIRST), int(_END or _FIRST) + (not _END))


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """What a failure has to tell is in the world's own log."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("first", SEEDS[::_CHUNK])
def test_drawn_schedule_keeps_all_promises(first):
    """Every committed update counts, once; every round and the run end in time; models and patches are right to the bit."""
    for seed in range(first, min(first + _CHUNK, SEEDS.stop)):
        play(draw(seed))
