"""A sample of the drawn schedules of `make faults`. FAULT_SEEDS=1000..1100 runs others."""

from __future__ import annotations

import pytest

from tests.faults.simulated.schedules import chunks, draw, play

pytestmark = pytest.mark.usefixtures("quiet")


@pytest.mark.medium
@pytest.mark.parametrize("seeds", chunks(10), ids=str)
def test_drawn_schedule_keeps_all_promises(seeds):
    """Every committed update counts once; every round and the run end in time; models and patches are exact to the bit."""
    for seed in seeds:
        play(draw(seed))
