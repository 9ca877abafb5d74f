"""Quiet hours of a device by its local clock, `22:00-07:00` or `mon-fri 08:00-18:00`, and the objection to work in them.

A span belongs to the day on which it begins. In a night in which the clocks change, it lasts up to an hour longer, never
shorter: it begins at the earlier and ends at the later of the two times that the local clock could mean.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from typing import TYPE_CHECKING

from fedpatch.device_agent.policy.objections import Objection
from fedpatch.shared.errors import UsageError

if TYPE_CHECKING:
    from fedpatch.device_agent.policy.preference_rules import Preference
    from fedpatch.device_agent.sensors.device_facts import Fact

DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_SPAN = re.compile(r"(?:([a-z]{3})(?:-([a-z]{3}))? +)?(\d\d):(\d\d) ?- ?(\d\d):(\d\d)", re.ASCII)
_REMEDY = "write e.g. 22:00-07:00 or mon-fri 08:00-18:00"
_DAY_MINUTES = 24 * 60
# Quiet hours without a gap never end: the coordinator should ask again after this time.
HORIZON = timedelta(days=7)


@dataclass(frozen=True)
class Span:
    """From `begin_min` to `end_min`, minutes after midnight of each of `days` (0 is Monday); the end may be on the next day."""

    days: frozenset[int]
    begin_min: int
    end_min: int


@dataclass(frozen=True)
class QuietHours:
    """All spans of an owner; they may overlap."""

    spans: tuple[Span, ...] = ()

    def until(self, local: datetime) -> datetime | None:
        """Return the end of the quiet time at `local`, an aware datetime, in UTC; None if it is not quiet.

        The end is at most a week ahead. It is exact over clock changes if the zone of `local` has them, as a zoneinfo zone
        does.
        """
        assert local.tzinfo is not None
        now = moment = local.astimezone(UTC)
        while moment - now < HORIZON:
            later = max(self._ends_around(moment, local.tzinfo), default=moment)
            if later <= moment:
                break
            moment = later
        return None if moment == now else min(moment, now + HORIZON)

    def objections(
        self, local: datetime, clock_set: Fact[bool], record: Preference, allow_unknown: Mapping[str, bool]
    ) -> Iterator[Objection]:
        """Yield the objection to work at `local`; none if it is not quiet.

        Args:
            local: Aware local time.
            clock_set: Whether the clock is set; with a wrong clock it is not known whether it is quiet.
            allow_unknown: Whether an unknown preference lets the device work, by name.
        """
        if not self.spans:
            return
        if clock_set.value is False and not allow_unknown["quiet_hours"]:
            words = f"whether it is quiet is not known: the clock is not set ({clock_set.source})"
            yield Objection(record.condition, words, record.retry_after_s)
        elif (until := self.until(local)) is not None:
            words = f"quiet hours, until {until.astimezone(local.tzinfo):%a %H:%M}"
            if until - local >= HORIZON:  # the day of the week would name today
                words = f"quiet hours, which do not end within {HORIZON.days} days"
            left_s = (until - local.astimezone(UTC)).total_seconds()
            yield Objection(record.condition, words, left_s, exact=True)

    def _ends_around(self, moment: datetime, zone: tzinfo) -> Iterator[datetime]:
        """The ends of the spans that `moment` is in."""
        today = moment.astimezone(zone).date()
        for offset in (-2, -1, 0, 1):  # a day more on either side, for clocks that change at midnight
            day = today + timedelta(days=offset)
            for span in self.spans:
                if day.weekday() in span.days:
                    begin, end = min(_moments(day, span.begin_min, zone)), max(_moments(day, span.end_min, zone))
                    if begin <= moment < end:
                        yield end


def next_midnight(local: datetime) -> datetime:
    """Return the end of the local day (UTC)."""
    assert local.tzinfo is not None
    # Where clocks are set forward at midnight, or back to it, the earlier offset gives the moment at which the date changes.
    return _moments(local.date(), _DAY_MINUTES, local.tzinfo)[0]


def parse_quiet_hours(entries: Sequence[str]) -> QuietHours:
    """Parse entries `HH:MM-HH:MM`, with an optional day or range of days before each.

    UsageError for other entries; it names them all.
    """
    spans, problems = [], []
    for entry in entries:
        try:
            spans.append(_parse_span(entry))
        except UsageError as error:
            problems.append(str(error))
    if problems:
        raise UsageError("; ".join(problems))
    return QuietHours(tuple(spans))


def _parse_span(text: str) -> Span:
    found = _SPAN.fullmatch(text.strip().lower())
    if found is None:
        raise UsageError(f"{text!r} is not a time of day; {_REMEDY}")
    first, last, *numbers = found.groups()
    begin_min, end_min = (_minutes(text, int(hour), int(minute)) for hour, minute in (numbers[:2], numbers[2:]))
    if begin_min == end_min:
        raise UsageError(f"{text!r} ends when it begins; write 00:00-24:00 for the whole day")
    if begin_min == _DAY_MINUTES:
        raise UsageError(f"{text!r} begins at 24:00; write 00:00 and the next day")
    return Span(_days(text, first, last), begin_min, end_min + (_DAY_MINUTES if end_min < begin_min else 0))


def _minutes(text: str, hour: int, minute: int) -> int:
    minutes = hour * 60 + minute
    if minute > 59 or minutes > _DAY_MINUTES:
        raise UsageError(f"{text!r} has a time that no clock shows; {_REMEDY}")
    return minutes


def _days(text: str, first: str | None, last: str | None) -> frozenset[int]:
    if first is None:
        return frozenset(range(7))
    for name in (first, last or first):
        if name not in DAYS:
            raise UsageError(f"{text!r}: {name!r} is not a day; the days are {', '.join(DAYS)}")
    begin, end = DAYS.index(first), DAYS.index(last or first)
    return frozenset((begin + step) % 7 for step in range((end - begin) % 7 + 1))


def _moments(day: date, minutes: int, zone: tzinfo) -> tuple[datetime, datetime]:
    """Return both moments (UTC) that a local time may mean; they differ only if the clock is set back or forward over it."""
    wall = datetime.combine(day, time()) + timedelta(minutes=minutes)
    return (
        wall.replace(tzinfo=zone, fold=0).astimezone(UTC),
        wall.replace(tzinfo=zone, fold=1).astimezone(UTC),
    )
