"""The clients of a simulated round: a share of the available ones, or none if they are too few."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.coordinator.cohort.selection import Selection
from fedpatch.shared.errors import UsageError
from fedpatch.simulator.experiment.client_selection import select

DEVICES = [f"pi{number:03}" for number in range(100)]

fleets = st.lists(st.from_regex(r"pi[0-9]{1,3}", fullmatch=True), min_size=1, max_size=40, unique=True)
fractions = st.floats(0, 1, exclude_min=True)
factors = st.floats(1, 5)
seeds = st.integers(0, 2**53)


@pytest.mark.parametrize(
    ("participation", "over_select", "min_cohort", "target", "invited"),
    [
        (1.0, 1.0, 1, 100, 100),
        (0.5, 1.0, 1, 50, 50),
        (0.29, 1.0, 1, 29, 29),
        (0.299, 1.0, 1, 29, 29),
        (0.1, 1.3, 1, 10, 13),
        (0.5, 1.1, 1, 50, 55),
        (0.07, 1.3, 1, 7, 10),
        (0.9, 1.3, 1, 90, 100),
        (0.001, 1.0, 1, 1, 1),
        (0.1, 1.0, 20, 20, 20),
        (0.1, 1.3, 100, 100, 100),
    ],
)
def test_select_from_a_hundred_devices_has_target_and_invited_counts(
    participation, over_select, min_cohort, target, invited
):
    """The target is int(C * |S|) updates, at least the minimum; more devices are invited, at most all."""
    chosen = select(DEVICES, participation, over_select, min_cohort, 0, 1)
    assert (chosen.target, len(chosen.invited)) == (target, invited)


@given(fleets, fractions, factors, st.integers(1, 10), seeds, st.integers(0, 1000))
def test_select_invites_each_available_device_at_most_once_within_bounds(
    devices, participation, over_select, min_cohort, seed, number
):
    chosen = select(devices, participation, over_select, min_cohort, seed, number)
    if len(devices) < min_cohort:
        assert chosen == Selection(0, ())
        return
    assert set(chosen.invited) <= set(devices)
    assert len(set(chosen.invited)) == len(chosen.invited)
    assert min_cohort <= chosen.target <= len(chosen.invited) <= len(devices)
    assert chosen.target >= math.floor(participation * len(devices))
    assert len(chosen.invited) <= math.ceil(chosen.target * over_select)


@given(fleets, fractions, factors, seeds, st.integers(0, 1000), st.randoms(use_true_random=False))
def test_select_depends_only_on_seed_round_and_set_of_devices(
    devices, participation, over_select, seed, number, shuffler
):
    chosen = select(devices, participation, over_select, 1, seed, number)
    random.seed(shuffler.random())
    before = random.getstate()
    again = select(shuffler.sample(devices, len(devices)), participation, over_select, 1, seed, number)
    assert again == chosen
    assert random.getstate() == before


@given(fleets, fractions, factors, factors, seeds)
def test_select_with_larger_over_selection_extends_the_smaller_cohort(devices, participation, one, other, seed):
    less, more = (select(devices, participation, factor, 1, seed, 1) for factor in sorted([one, other]))
    assert less.target == more.target
    assert more.invited[: len(less.invited)] == less.invited


def test_select_returns_the_recorded_cohort():
    """A run that is resumed with another version of the program keeps its cohorts."""
    assert select(DEVICES, 0.05, 1.0, 1, 7, 3).invited == ("pi072", "pi073", "pi018", "pi078", "pi037")


def test_select_differs_between_rounds_and_between_seeds():
    cohorts = {select(DEVICES, 0.1, 1.0, 1, seed, number).invited for seed in range(12) for number in range(12)}
    assert len(cohorts) == 144


def test_select_invites_every_device_equally_often():
    """In 1,000 rounds with 10 of 100 devices, each is invited about 100 times (five standard deviations: 48)."""
    counts = Counter(device for number in range(1000) for device in select(DEVICES, 0.1, 1.0, 1, 0, number).invited)
    assert set(counts) == set(DEVICES)
    assert max(abs(count - 100) for count in counts.values()) < 48


def test_select_counts_a_device_listed_twice_once():
    assert select([], 1.0, 1.0, 1, 0, 1) == Selection(0, ())
    assert select(["pi1", "pi1"], 1.0, 1.0, 2, 0, 1) == Selection(0, ())
    assert select(["pi1", "pi1"], 1.0, 1.0, 1, 0, 1) == Selection(1, ("pi1",))


@pytest.mark.parametrize(
    ("participation", "over_select", "min_cohort", "complaint"),
    [
        (0.0, 1.0, 1, r"participation 0\.0 must be above 0"),
        (1.1, 1.0, 1, r"participation 1\.1"),
        (math.nan, 1.0, 1, "participation nan"),
        (1.0, 0.9, 1, r"over-selection 0\.9 must be at least 1"),
        (1.0, math.inf, 1, "over-selection inf"),
        (1.0, math.nan, 1, "over-selection nan"),
        (1.0, 1.0, 0, "min cohort 0 must be at least 1"),
    ],
)
def test_select_number_out_of_range_is_usage_error(participation, over_select, min_cohort, complaint):
    with pytest.raises(UsageError, match=complaint):
        select(DEVICES, participation, over_select, min_cohort, 0, 1)
