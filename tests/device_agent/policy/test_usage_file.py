"""usage.json: what was spent today outlives a restart, and is written only when something was."""

from __future__ import annotations

import logging
import stat
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedpatch.device_agent.policy.usage import NOTHING, USAGE_NAME, Usage, UsageLedger, read_today

SPENT = Usage(rounds=1, traffic_bytes=4_000_000, training_s=12.5)


class Clock:
    """A local clock that is set by hand."""

    def __init__(self) -> None:
        self.now = datetime(2026, 11, 21, 23, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        """What it shows."""
        return self.now


@pytest.fixture
def clock() -> Clock:
    """It is eleven in the evening."""
    return Clock()


@pytest.fixture
def ledger(tmp_path, clock):
    """Opens the ledger of the state directory, as each start of an agent does."""
    return lambda: UsageLedger(tmp_path, clock)


def test_what_was_spent_outlives_a_restart(ledger):
    """So that starting the agent anew gives no second allowance."""
    first = ledger()
    assert first.today == NOTHING
    first.note(SPENT)
    first.note(SPENT)
    assert ledger().today == first.today == Usage(2, 8_000_000, 25.0)


def test_a_new_day_begins_at_midnight(ledger, clock):
    """Also without a restart, and for a ledger of yesterday."""
    first = ledger()
    first.note(SPENT)
    clock.now += timedelta(hours=1)
    assert first.today == ledger().today == NOTHING


def test_what_a_job_took_counts_for_the_day_on_which_it_ended(ledger, clock):
    """Also where nobody asked in between what counts."""
    first = ledger()
    first.note(SPENT)
    clock.now += timedelta(hours=1)
    first.note(SPENT)
    assert first.today == ledger().today == SPENT


def test_a_clock_that_starts_in_the_past_gives_no_second_allowance(ledger, clock):
    """A Pi without a clock of its own, after a restart and once its clock is set."""
    ledger().note(SPENT)
    right, clock.now = clock.now, datetime(1970, 1, 1, tzinfo=UTC)
    again = ledger()
    assert again.today == SPENT
    again.note(SPENT)
    clock.now = right
    assert again.today == ledger().today == Usage(2, 8_000_000, 25.0)


def test_nothing_is_written_where_nothing_was_spent(ledger, tmp_path, clock):
    """Neither at the start, nor when asked, nor at midnight, nor by a job that was declined."""
    first = ledger()
    first.note(NOTHING)
    clock.now += timedelta(days=1)
    assert first.today == NOTHING
    assert list(tmp_path.iterdir()) == []


def test_only_the_agent_may_read_it(ledger, tmp_path):
    """When a device works is its owner's own business."""
    ledger().note(SPENT)
    assert stat.S_IMODE((tmp_path / USAGE_NAME).stat().st_mode) == 0o600


def test_a_damaged_file_is_set_aside_and_told(ledger, tmp_path, caplog):
    """The agent starts all the same; the owner can look at what it was."""
    (tmp_path / USAGE_NAME).write_bytes(b"{ no")
    with caplog.at_level(logging.ERROR):
        assert ledger().today == NOTHING
    assert f"{tmp_path / USAGE_NAME}: cannot be read" in caplog.text
    assert "usage.json.damaged" in caplog.text
    assert (tmp_path / "usage.json.damaged").read_bytes() == b"{ no"
    ledger().note(SPENT)
    assert ledger().today == SPENT


def test_whoever_only_looks_sees_the_same_and_changes_nothing(ledger, tmp_path, clock, caplog):
    """The agent may be at work: a file that is damaged is told of, and stays for the agent to set aside."""
    assert read_today(tmp_path, clock) == NOTHING
    ledger().note(SPENT)
    assert read_today(tmp_path, clock) == SPENT
    clock.now += timedelta(hours=1)
    assert read_today(tmp_path, clock) == NOTHING
    (tmp_path / USAGE_NAME).write_bytes(b"{ no")
    with caplog.at_level(logging.WARNING):
        assert read_today(tmp_path, clock) == NOTHING
    assert f"{tmp_path / USAGE_NAME}: cannot be read" in caplog.text
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {USAGE_NAME: b"{ no"}


def test_a_disk_that_refuses_costs_no_job(tmp_path, clock, caplog):
    """What was spent still counts until the agent ends."""
    gone = tmp_path / "gone"
    gone.mkdir()
    found = UsageLedger(gone, clock)
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
    """Whatever is in it, the count that comes out is one."""
    (tmp_path / USAGE_NAME).write_bytes(data)
    found = UsageLedger(tmp_path, clock)
    clock.now += timedelta(days=1)
    assert found.today.rounds >= 0
    found.note(SPENT)
    assert UsageLedger(tmp_path, clock).today.rounds >= 1
