"""Schedules are replayed by their seed, and leave nothing out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.coordinator.rounds.run_records import RoundRecord
from tests.faults.scene import NAMES, num_examples, reporters
from tests.faults.schedules import STRIKES, Victim, draw, seeds
from tests.faults.watch import Happening

DEVICES = NAMES[:3]


@given(st.integers(0, 2**32))
def test_a_seed_gives_the_same_schedule_again(seed: int):
    """A schedule is a function of its seed, and names a device where a device is meant."""
    schedule = draw(seed, DEVICES)
    assert schedule == draw(seed, DEVICES)
    assert STRIKES[0] <= len(schedule.strikes) <= STRIKES[1]
    for strike in schedule.strikes:
        assert (strike.device in DEVICES) == (strike.victim not in (Victim.COORDINATOR, Victim.BROKER))
        assert str(strike) in str(schedule)


def test_the_schedules_of_the_suite_strike_everything_at_every_moment():
    """Among the first forty, each victim is struck, each moment is one of a strike, and both kinds of rounds occur."""
    schedules = [draw(seed, DEVICES) for seed in range(40)]
    strikes = [strike for schedule in schedules for strike in schedule.strikes]
    assert {strike.victim for strike in strikes} == set(Victim)
    assert {strike.after for strike in strikes} == {None, *Happening}
    assert {schedule.hasty for schedule in schedules} == {True, False}
    struck = {(strike.after, strike.victim) for strike in strikes}
    assert {(moment, Victim.COORDINATOR) for moment in Happening} <= struck


def test_seeds_are_told_one_by_one_or_from_first_to_last():
    """`100..102` are three."""
    assert seeds("7") == [7]
    assert seeds("1,100..102") == [1, 100, 101, 102]
    with pytest.raises(ValueError, match="invalid literal"):
        seeds("all")


@given(st.lists(st.sampled_from(NAMES), min_size=1, max_size=6))
def test_the_books_of_a_round_tell_who_reported_and_who_was_counted_twice(counted: list[str]):
    """From the sum of examples and the number of updates follows the one set of devices; with one twice, there is none."""
    total = sum(num_examples(device) for device in counted)
    record = RoundRecord(1, "aggregated", 4, 4, 0, reported=len(counted), num_examples=total)
    if len(set(counted)) == len(counted):
        assert set(reporters(record, NAMES)) == set(counted)
    else:
        with pytest.raises(ValueError, match="each once"):
            reporters(record, NAMES)
