"""The cohort: a random draw that depends only on seed, round and devices."""

from __future__ import annotations

import math
import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from fedpatch.coordinator.cohort.selection import draw

DEVICES = [f"pi{number:03}" for number in range(100)]

fleets = st.lists(st.from_regex(r"pi[0-9]{1,3}", fullmatch=True), max_size=40, unique=True)
targets = st.integers(1, 50)
factors = st.floats(1, 5)
seeds = st.integers(0, 2**53)


@given(fleets, targets, factors, seeds, st.integers(0, 1000))
def test_draw_invites_each_device_at_most_once_and_as_many_as_the_factor_says(devices, target, factor, seed, number):
    drawn = draw(devices, target, factor, seed, number)
    assert set(drawn.invited) <= set(devices)
    assert len(set(drawn.invited)) == len(drawn.invited)
    assert min(target, len(devices)) <= len(drawn.invited) <= math.ceil(target * factor)
    assert (drawn.target, drawn.absent) == (target, frozenset())


@given(fleets, targets, factors, seeds, st.integers(0, 1000), st.randoms(use_true_random=False))
def test_draw_depends_only_on_seed_round_and_set_of_devices(devices, target, factor, seed, number, shuffler):
    drawn = draw(devices, target, factor, seed, number)
    random.seed(shuffler.random())
    before = random.getstate()
    assert draw([*shuffler.sample(devices, len(devices)), *devices], target, factor, seed, number) == drawn
    assert random.getstate() == before


@given(fleets, targets, factors, factors, seeds)
def test_draw_with_a_larger_factor_extends_the_smaller_cohort(devices, target, one, other, seed):
    less, more = (draw(devices, target, factor, seed, 1) for factor in sorted([one, other]))
    assert more.invited[: len(less.invited)] == less.invited


def test_draw_returns_the_recorded_cohort():
    """A run that is resumed with another version of the program keeps its cohorts."""
    assert draw(DEVICES, 5, 1.0, 7, 3).invited == ("pi072", "pi073", "pi018", "pi078", "pi037")


def test_draw_invites_every_device_equally_often():
    """In 1,000 rounds with 10 of 100 devices, each is invited about 100 times (five standard deviations: 48)."""
    counts = Counter(device for number in range(1000) for device in draw(DEVICES, 10, 1.0, 0, number).invited)
    assert set(counts) == set(DEVICES)
    assert max(abs(count - 100) for count in counts.values()) < 48
