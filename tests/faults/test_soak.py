"""What grows is found; a fleet that plays rounds for a minute, on a broker that is killed often, leaves nothing behind."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.faults.slopes import slope
from tests.faults.soak import BOUNDS, lines, soak

ROUNDS = range(1, 501)
# Of a hundred runs of the suite none is to fail by chance; something left behind in each round is a hundred standard errors.
CERTAIN = 5.0
# Memory needs longer than a minute to settle: allocators fill their arenas first. `make soak` judges it.
COUNTED = [name for name in BOUNDS if not name.endswith("resident_kib")]


@given(st.floats(-100, 100), st.floats(0, 50), st.integers())
def test_a_growth_is_found_within_its_uncertainty(gradient: float, noise: float, seed: int):
    """Of a line with noise the slope comes out, at most twelve standard errors off; a warm-up before it does not matter."""
    rng = random.Random(seed)
    values = [gradient * number / 100 + rng.gauss(0, noise) - (1000 if number < 100 else 0) for number in ROUNDS]
    found = slope(ROUNDS, values)
    assert abs(found.per_100_rounds - gradient) <= 12 * found.standard_error + 1e-6
    assert found.exceeds(gradient - 12 * found.standard_error - 1e-3)
    assert not found.exceeds(gradient + 12 * found.standard_error + 1e-3)


def test_too_few_samples_are_no_finding():
    with pytest.raises(ValueError, match="too few"):
        slope([1, 2, 3], [1, 2, 3])


@pytest.mark.faults
@pytest.mark.broker
@pytest.mark.system
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_minute_of_rounds_leaves_nothing_behind(tmp_path: Path):
    """Open files, files on disks, rows of the registry and topics on the broker do not grow with the rounds."""
    measured = soak(tmp_path, agents=3, rounds=10_000, limit_s=40, kill_every_s=10)
    told = "\n".join(lines(measured))
    assert measured.broker_kills >= 3
    assert measured.aggregated >= measured.rounds / 2 > 5, told
    found = measured.slopes()
    assert [name for name in COUNTED if found[name].exceeds(BOUNDS[name], CERTAIN)] == [], told
