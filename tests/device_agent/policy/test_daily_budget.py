"""The book of days: what counts today, whatever the clock has said meanwhile."""

from __future__ import annotations

from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.device_agent.policy.usage import NOTHING, DayUsage, Usage

TODAY = date(2026, 11, 21)
LONG_AGO = date(1970, 1, 1)
FAR_AHEAD = date(2099, 12, 31)


def day(offset: int) -> date:
    """Days from today."""
    return TODAY + timedelta(days=offset)


def told(*story: date | int) -> int:
    """Rounds that count at the end of a story of dates that the clock shows and rounds that are noted."""
    book = DayUsage.new(TODAY)
    for one in story:
        book = book.note(Usage(rounds=one)) if isinstance(one, int) else book.on(one)
    return book.spent.rounds


@pytest.mark.parametrize(
    ("story", "counts"),
    [
        ([5, 2], 7),
        ([5, day(1)], 0),
        ([5, day(1), 2], 2),
        ([5, day(3), 2], 2),
        # The clock is set back, within a day or to one that has its account: nothing is given back.
        ([5, day(-1)], 5),
        ([5, day(-1), 2], 7),
        ([5, day(1), 2, day(0)], 7),
        ([5, day(1), 2, day(0), 1], 8),
        # A device without a clock of its own starts in the past, and is corrected.
        ([5, LONG_AGO, 2], 7),
        ([5, LONG_AGO, 2, TODAY], 7),
        ([5, LONG_AGO, 2, day(1)], 0),
        # The clock was wrong the other way: what was spent was spent, but not for ever.
        ([5, FAR_AHEAD, 2, TODAY], 7),
        ([5, FAR_AHEAD, 2, TODAY, 1, day(1)], 0),
        ([5, FAR_AHEAD, 2, LONG_AGO, 1, TODAY], 8),
        ([5, FAR_AHEAD, 2, LONG_AGO, 1, TODAY, 1, day(1)], 0),
    ],
)
def test_what_counts(story, counts):
    """After rounds and changes of the clock."""
    assert told(*story) == counts


@given(st.lists(st.integers(0, 5), min_size=1, max_size=10), st.lists(st.integers(0, 3), max_size=10))
def test_with_a_clock_that_is_right_every_day_counts_for_itself(rounds, gaps):
    """Days without a round between them or not."""
    today, book = TODAY, DayUsage.new(TODAY)
    for index, count in enumerate(rounds):
        gap = gaps[index] if index < len(gaps) else 1
        today += timedelta(days=gap)
        before = book.spent.rounds if gap == 0 else 0
        book = book.on(today).note(Usage(rounds=count))
        assert book.spent.rounds == before + count


@given(st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 3)), max_size=20))
def test_setting_the_clock_back_gives_nothing_back(steps):
    """However often and however far."""
    book, today, spent = DayUsage.new(TODAY), TODAY, 0
    for back, count in steps:
        today -= timedelta(days=back)
        book = book.on(today).note(Usage(rounds=count))
        spent += count
        assert book.spent.rounds == spent


@given(st.integers(1, 4000), st.integers(1, 4000), st.integers(0, 3), st.integers(0, 3))
def test_setting_it_back_and_right_again_gives_nothing_back(back, further, before, within):
    """As at each start of a device that has no clock of its own."""
    story = [before, day(-back), within, day(-back - further), within, TODAY]
    assert told(*story) == before + 2 * within


@given(st.lists(st.dates(), max_size=8), st.integers(0, 9))
def test_the_allowance_is_whole_again_two_midnights_after_any_confusion(dates, rounds):
    """Nobody is shut out for ever by a clock that was wrong once."""
    book = DayUsage.new(TODAY)
    for shown in dates:
        book = book.on(shown).note(Usage(rounds=rounds))
    for offset in range(3):
        book = book.on(day(offset))
    assert book.spent == NOTHING


def test_all_three_kinds_are_counted():
    """Rounds, bytes and seconds."""
    book = DayUsage.new(TODAY).note(Usage(1, 1000, 2.5)).note(Usage(traffic_bytes=24, training_s=0.5))
    assert book.spent == Usage(1, 1024, 3.0)
