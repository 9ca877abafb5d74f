"""Quiet hours by the local clock, and the zone of that clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import TZPATH, ZoneInfo, ZoneInfoNotFoundError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.device_agent.policy.local_time import local_now
from fedpatch.device_agent.policy.quiet_hours import DAYS, next_midnight, parse_quiet_hours
from fedpatch.shared.errors import UsageError

# Clock changes of an hour, of half an hour and at midnight, a skipped day, and no change.
ZONE_NAMES = ("Europe/Berlin", "Australia/Lord_Howe", "America/Havana", "Pacific/Apia", "UTC")
try:
    ZONES = [ZoneInfo(name) for name in ZONE_NAMES]
except ZoneInfoNotFoundError:
    pytest.skip("no files of time zones here: no tzdata is installed", allow_module_level=True)
BERLIN = ZONES[0]

# Days on which some of these clocks change; MOMENTS has other days, too.
CHANGES = ["2026-03-08", "2026-03-29", "2026-04-04", "2026-10-03", "2026-10-25", "2026-11-01", "2011-12-30"]
NEAR = st.builds(
    lambda day, minutes: datetime.fromisoformat(day).replace(tzinfo=UTC) + timedelta(minutes=minutes),
    st.sampled_from(CHANGES),
    st.integers(-24 * 60, 48 * 60),
)
MOMENTS = NEAR | st.datetimes(datetime(2010, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC))


def at(text: str, zone: ZoneInfo = BERLIN, fold: int = 0) -> datetime:
    """A local time; with `fold`, its second occurrence."""
    return datetime.fromisoformat(text).replace(tzinfo=zone, fold=fold)


def left(hours: list[str], local: datetime) -> timedelta | None:
    until = parse_quiet_hours(hours).until(local)
    return None if until is None else until - local.astimezone(UTC)


@pytest.mark.parametrize(
    ("moment", "minutes"),
    [
        ("2026-11-20T21:59:59", None),
        ("2026-11-20T22:00:00", 540),
        ("2026-11-20T23:59:00", 421),
        ("2026-11-21T00:00:00", 420),
        ("2026-11-21T06:59:00", 1),
        ("2026-11-21T07:00:00", None),
    ],
)
def test_a_span_goes_over_midnight(moment, minutes):
    assert left(["22:00-07:00"], at(moment)) == (None if minutes is None else timedelta(minutes=minutes))


@pytest.mark.parametrize(
    ("entry", "quiet", "loud"),
    [
        ("mon-fri 08:00-18:00", "2026-11-20T08:00", "2026-11-21T08:00"),
        ("sat 08:00-18:00", "2026-11-21T17:59", "2026-11-20T12:00"),
        ("fri 22:00-06:00", "2026-11-21T05:59", "2026-11-20T05:59"),
        ("sat-mon 00:00-24:00", "2026-11-23T23:59", "2026-11-24T00:00"),
        ("SUN  20:00 - 24:00", "2026-11-22T20:00", "2026-11-22T19:59"),
    ],
)
def test_a_span_belongs_to_the_day_on_which_it_begins(entry, quiet, loud):
    """The 20th of November 2026 is a Friday."""
    assert left([entry], at(quiet)) is not None
    assert left([entry], at(loud)) is None


@pytest.mark.parametrize(
    ("hours", "moment", "fold", "hours_left"),
    [
        (["22:00-24:00", "00:00-06:00", "05:00-07:30"], "2026-11-20T23:00", 0, 8.5),
        (["00:00-24:00"], "2026-11-20T23:00", 0, 7 * 24),
        # On the 29th of March 2026 the clocks go from 2:00 to 3:00.
        (["22:00-07:00"], "2026-03-28T22:00", 0, 8),
        (["22:00-07:00"], "2026-03-29T03:00", 0, 4),
        (["02:30-05:00"], "2026-03-29T03:00", 0, 2),
        # On the 25th of October 2026 the clocks go from 3:00 back to 2:00.
        (["22:00-07:00"], "2026-10-24T22:00", 0, 10),
        (["22:00-07:00"], "2026-10-25T02:30", 1, 4.5),
        (["22:00-02:30"], "2026-10-25T02:00", 0, 1.5),
        (["22:00-02:30"], "2026-10-25T02:00", 1, 0.5),
        (["22:00-02:30"], "2026-10-25T02:45", 0, 0.75),
    ],
)
def test_quiet_time_that_is_left_counts_touching_spans_and_changes_of_the_clock(hours, moment, fold, hours_left):
    assert left(hours, at(moment, fold=fold)) == timedelta(hours=hours_left)


SPANS = st.tuples(
    st.sampled_from(["", "mon ", "sat-mon ", "tue-fri "]), *[st.integers(0, 95)] * 2
).filter(lambda span: span[1] != span[2]).map(
    lambda span: f"{span[0]}{span[1] // 4:02}:{span[1] % 4 * 15:02}-{span[2] // 4:02}:{span[2] % 4 * 15:02}"
)  # fmt: skip


@given(st.lists(SPANS, min_size=1, max_size=3), MOMENTS, st.sampled_from(ZONES))
def test_end_of_quiet_hours_is_exclusive(entries, moment, zone):
    """For any clock change, the end is exact: a request at that moment is not declined."""
    hours = parse_quiet_hours(entries)
    until = hours.until(moment.astimezone(zone))
    if until is not None and until - moment < timedelta(days=7):
        assert hours.until((until - timedelta(seconds=1)).astimezone(zone)) == until
        assert hours.until(until.astimezone(zone)) is None


@given(SPANS, MOMENTS, st.sampled_from(ZONES))
def test_whenever_the_clock_shows_a_quiet_hour_it_is_quiet(entry, moment, zone):
    """In every zone and night, the displayed time decides."""
    local = moment.astimezone(zone)
    (span,) = parse_quiet_hours([entry]).spans
    shown = local.hour * 60 + local.minute
    begun_today = local.weekday() in span.days and span.begin_min <= shown < span.end_min
    if begun_today:
        assert left([entry], local) is not None


@given(MOMENTS, st.sampled_from(ZONES))
def test_midnight_is_when_the_date_changes(moment, zone):
    local = moment.astimezone(zone)
    midnight = next_midnight(local)
    assert timedelta() < midnight - moment <= timedelta(hours=25)
    assert (midnight - timedelta(seconds=1)).astimezone(zone).date() == local.date()
    assert midnight.astimezone(zone).date() > local.date()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is not a time of day"),
        ("22-7", "is not a time of day"),
        ("22:00", "is not a time of day"),
        ("22:00-07:00 sat", "is not a time of day"),
        ("２２:00-07:00", "is not a time of day"),
        ("24:30-07:00", "a time that no clock shows"),
        ("22:60-07:00", "a time that no clock shows"),
        ("24:00-07:00", "begins at 24:00"),
        ("07:00-07:00", "write 00:00-24:00 for the whole day"),
        ("son 07:00-08:00", "'son' is not a day; the days are mon, tue"),
        ("mon-don 07:00-08:00", "'don' is not a day"),
    ],
)
def test_invalid_quiet_hours_are_refused_with_a_remedy(text, problem):
    with pytest.raises(UsageError, match=problem):
        parse_quiet_hours([text])


@given(st.text())
def test_any_text_is_read_or_refused(text):
    try:
        hours = parse_quiet_hours([text])
    except UsageError:
        return
    assert [set(span.days) <= set(range(len(DAYS))) for span in hours.spans] == [True]


WINTER, SUMMER = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 7, 1, tzinfo=UTC)


def zone_file(name: str) -> Path:
    """The file to which a link at /etc/localtime points."""
    found = next((Path(folder) / name for folder in TZPATH if (Path(folder) / name).exists()), None)
    if found is None:
        pytest.skip("no files of time zones here: no tzdata is installed")
    return found


def offsets(local: datetime) -> list[timedelta | None]:
    """UTC offsets of its zone in winter and in summer."""
    return [moment.astimezone(local.tzinfo).utcoffset() for moment in (WINTER, SUMMER)]


BERLIN_OFFSETS = [timedelta(hours=1), timedelta(hours=2)]


def test_the_zone_of_the_system_knows_when_its_clocks_change(monkeypatch):
    monkeypatch.delenv("TZ", raising=False)
    assert offsets(local_now(zone_file("Europe/Berlin"))) == BERLIN_OFFSETS


@pytest.mark.parametrize("prefix", ["", ":"])
def test_the_zone_of_the_environment_wins(monkeypatch, prefix):
    zone_file("Europe/Berlin")
    monkeypatch.setenv("TZ", f"{prefix}Europe/Berlin")
    assert offsets(local_now(Path("/nonexistent"))) == BERLIN_OFFSETS


def test_the_environment_may_name_a_file(monkeypatch):
    monkeypatch.setenv("TZ", f":{zone_file('Europe/Berlin')}")
    assert offsets(local_now(Path("/nonexistent"))) == BERLIN_OFFSETS


@pytest.mark.parametrize("name", ["", "Nowhere/Atall", "CET-1CEST", "../../etc/passwd"])
def test_without_a_zone_the_offset_of_this_moment_stands_in(monkeypatch, tmp_path, name):
    (tmp_path / "localtime").write_bytes(b"no zone")
    monkeypatch.setenv("TZ", name)
    local = local_now(tmp_path / "localtime")
    assert local.utcoffset() is not None
    assert abs(datetime.now(UTC) - local) < timedelta(minutes=2)
