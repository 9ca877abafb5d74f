"""Usage of a job, of a day and of the processor, and the file that keeps it."""

from __future__ import annotations

import logging
import os
import stat
from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedpatch.device_agent.policy.usage import NOTHING, USAGE_NAME, DayUsage, Usage, UsageFile, read_today
from fedpatch.device_agent.runtime.training_supervisor import resident_mib

TODAY = date(2026, 11, 21)
LONG_AGO = date(1970, 1, 1)
FAR_AHEAD = date(2099, 12, 31)


def day(offset: int) -> date:
    return TODAY + timedelta(days=offset)


def counted(*story: date | int) -> int:
    """Rounds that count at the end of a sequence of dates that the clock shows and numbers of rounds that are noted."""
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
        # The clock is set back, within a day or to a day that was already counted: nothing is given back.
        ([5, day(-1)], 5),
        ([5, day(-1), 2], 7),
        ([5, day(1), 2, day(0)], 7),
        ([5, day(1), 2, day(0), 1], 8),
        # A device without a real-time clock starts in the past, and its clock is corrected.
        ([5, LONG_AGO, 2], 7),
        ([5, LONG_AGO, 2, TODAY], 7),
        ([5, LONG_AGO, 2, day(1)], 0),
        # The clock was ahead: the usage counts, but not for ever.
        ([5, FAR_AHEAD, 2, TODAY], 7),
        ([5, FAR_AHEAD, 2, TODAY, 1, day(1)], 0),
        ([5, FAR_AHEAD, 2, LONG_AGO, 1, TODAY], 8),
        ([5, FAR_AHEAD, 2, LONG_AGO, 1, TODAY, 1, day(1)], 0),
    ],
)
def test_usage_counts_rounds_of_the_same_day(story, counts):
    assert counted(*story) == counts


@given(st.lists(st.integers(0, 5), min_size=1, max_size=10), st.lists(st.integers(0, 3), max_size=10))
def test_with_a_clock_that_is_right_every_day_counts_for_itself(rounds, gaps):
    today, book = TODAY, DayUsage.new(TODAY)
    for index, count in enumerate(rounds):
        gap = gaps[index] if index < len(gaps) else 1
        today += timedelta(days=gap)
        before = book.spent.rounds if gap == 0 else 0
        book = book.on(today).note(Usage(rounds=count))
        assert book.spent.rounds == before + count


@given(st.lists(st.tuples(st.integers(0, 4000), st.integers(0, 3)), max_size=20))
def test_setting_the_clock_back_gives_nothing_back(steps):
    book, today, spent = DayUsage.new(TODAY), TODAY, 0
    for back, count in steps:
        today -= timedelta(days=back)
        book = book.on(today).note(Usage(rounds=count))
        spent += count
        assert book.spent.rounds == spent


@given(st.integers(1, 4000), st.integers(1, 4000), st.integers(0, 3), st.integers(0, 3))
def test_setting_it_back_and_right_again_gives_nothing_back(back, further, before, within):
    """As at each start of a device without a real-time clock."""
    story = [before, day(-back), within, day(-back - further), within, TODAY]
    assert counted(*story) == before + 2 * within


@given(st.lists(st.dates(), max_size=8), st.integers(0, 9))
def test_the_allowance_is_whole_again_two_midnights_after_any_confusion(dates, rounds):
    book = DayUsage.new(TODAY)
    for shown in dates:
        book = book.on(shown).note(Usage(rounds=rounds))
    for offset in range(3):
        book = book.on(day(offset))
    assert book.spent == NOTHING


SPENT = Usage(rounds=1, traffic_bytes=4_000_000, training_s=12.5)


class Clock:
    """A local clock that the test sets."""

    def __init__(self) -> None:
        self.now = datetime(2026, 11, 21, 23, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def account(tmp_path, clock):
    """Opens the account of the state directory, as each start of an agent does."""
    return lambda: UsageFile(tmp_path, clock)


def test_usage_survives_a_restart(account, tmp_path):
    first = account()
    assert first.today == NOTHING
    first.note(SPENT)
    first.note(SPENT)
    assert account().today == first.today == Usage(2, 8_000_000, 25.0)
    assert stat.S_IMODE((tmp_path / USAGE_NAME).stat().st_mode) == 0o600


@pytest.mark.parametrize("asked", [False, True])
def test_a_new_day_begins_at_midnight_whether_or_not_somebody_asked(account, clock, asked):
    first = account()
    first.note(SPENT)
    clock.now += timedelta(hours=1)
    assert not asked or first.today == account().today == NOTHING
    first.note(SPENT)
    assert first.today == account().today == SPENT


def test_a_clock_that_starts_in_the_past_gives_no_second_allowance(account, clock):
    """A Pi without a real-time clock, after a restart and once its clock is set."""
    account().note(SPENT)
    right, clock.now = clock.now, datetime(1970, 1, 1, tzinfo=UTC)
    again = account()
    assert again.today == SPENT
    again.note(SPENT)
    clock.now = right
    assert again.today == account().today == Usage(2, 8_000_000, 25.0)


def test_nothing_is_written_where_nothing_was_spent(account, tmp_path, clock):
    first = account()
    first.note(NOTHING)
    clock.now += timedelta(days=1)
    assert first.today == NOTHING
    assert list(tmp_path.iterdir()) == []


def test_damaged_usage_file_is_moved_aside_and_logged(account, tmp_path, caplog):
    (tmp_path / USAGE_NAME).write_bytes(b"{ no")
    with caplog.at_level(logging.ERROR):
        assert account().today == NOTHING
    assert f"{tmp_path / USAGE_NAME}: cannot be read" in caplog.text
    assert "usage.json.damaged" in caplog.text
    assert (tmp_path / "usage.json.damaged").read_bytes() == b"{ no"
    account().note(SPENT)
    assert account().today == SPENT


def test_reader_sees_the_same_usage_and_changes_no_file(account, tmp_path, clock, caplog):
    assert read_today(tmp_path, clock) == NOTHING
    account().note(SPENT)
    assert read_today(tmp_path, clock) == SPENT
    clock.now += timedelta(hours=1)
    assert read_today(tmp_path, clock) == NOTHING
    (tmp_path / USAGE_NAME).write_bytes(b"{ no")
    with caplog.at_level(logging.WARNING):
        assert read_today(tmp_path, clock) == NOTHING
    assert f"{tmp_path / USAGE_NAME}: cannot be read" in caplog.text
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {USAGE_NAME: b"{ no"}


@pytest.mark.parametrize("later_days", [1, 3])
def test_usage_under_a_clock_that_was_ahead_counts_on_one_day_with_restarts_between(account, clock, later_days):
    """A device may be switched off each night, so that no midnight passes while its agent runs."""
    right = clock.now
    clock.now = right + timedelta(days=1000)
    account().note(SPENT)
    clock.now = right
    assert account().today == SPENT
    clock.now = right + timedelta(days=later_days)
    account().today  # noqa: B018  # the agent looks before each decision
    clock.now += timedelta(days=1)
    assert account().today == NOTHING


def test_midnight_under_a_corrected_clock_is_known_after_a_restart(account, clock):
    right = clock.now
    clock.now = right + timedelta(days=1000)
    account().note(SPENT)
    clock.now = right
    running = account()
    assert running.today == SPENT
    clock.now = right + timedelta(days=1)
    assert running.today == account().today == NOTHING


def test_a_disk_that_refuses_costs_no_job(tmp_path, clock, caplog):
    """The usage still counts until the agent ends."""
    gone = tmp_path / "gone"
    gone.mkdir()
    found = UsageFile(gone, clock)
    gone.rmdir()
    with caplog.at_level(logging.WARNING):
        found.note(SPENT)
    assert found.today == SPENT
    assert "forgotten at the next start" in caplog.text


FILES = st.binary(max_size=200) | st.builds(
    lambda day, rounds: b'{"seen":"%b","latest":{"day":"%b","spent":{"rounds":%d}}}' % (day, day, rounds),
    st.sampled_from([b"2026-11-21", b"2026-13-01", b"0001-01-01", b"9999-12-31", b"now"]),
    st.integers(-(2**70), 2**70),
)


@given(FILES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_file_stops_the_agent(tmp_path, clock, data):
    (tmp_path / USAGE_NAME).write_bytes(data)
    found = UsageFile(tmp_path, clock)
    clock.now += timedelta(days=1)
    assert found.today.rounds >= 0
    found.note(SPENT)
    assert UsageFile(tmp_path, clock).today.rounds >= 1


def test_a_process_has_its_memory():
    assert resident_mib(os.getpid()) > 5.0
    assert resident_mib(None) == 0.0
    assert resident_mib(2**22 + 1) == 0.0
