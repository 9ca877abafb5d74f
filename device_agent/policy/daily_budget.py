"""What a device has spent of its daily allowance, as a book of days that a wrong clock cannot empty.

A day is a date of the local clock. The device has no other calendar, and that one may be wrong: a Pi without a battery
for its clock starts in the past and is corrected minutes later. So the book holds the two latest days it has seen, and

- what is spent is noted on the latest day, also while the clock stands before it;
- on any day, everything counts that was noted on it or on a later one. Setting the clock back, then, gives no second
  allowance, nor does setting it back and forward again, nor starting the device anew;
- once midnight passes while the clock stands before the latest day, that one was never real: the count begins at zero.

Midnight cannot be told from a clock that is set forward by a day: that begins a new day.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import Annotated

from msgspec import Meta

Count = Annotated[int, Meta(ge=0, le=2**53)]
Duration = Annotated[float, Meta(ge=0.0, le=1e9)]


@dataclass(frozen=True)
class Usage:
    """Rounds taken part in, bytes of models and updates both ways, seconds of training."""

    rounds: Count = 0
    traffic_bytes: Count = 0
    training_s: Duration = 0.0

    def plus(self, more: Usage) -> Usage:
        """Both together."""
        return Usage(
            self.rounds + more.rounds, self.traffic_bytes + more.traffic_bytes, self.training_s + more.training_s
        )


NOTHING = Usage()


@dataclass(frozen=True)
class DailyBudget:
    """What was spent on a day."""

    day: date
    spent: Usage


@dataclass(frozen=True)
class DayUsage:
    """The two latest days of accounts, the latest first, and the date that the clock showed last."""

    seen: date
    latest: DailyBudget
    before: DailyBudget | None = None

    @classmethod
    def new(cls, today: date) -> DayUsage:
        """An empty book."""
        return cls(today, DailyBudget(today, NOTHING))

    def on(self, today: date) -> DayUsage:
        """The book as the clock shows `today`."""
        if today == self.seen:
            return self
        if today > self.latest.day:
            return DayUsage(today, DailyBudget(today, NOTHING), self.latest)
        if today == self.latest.day or today < self.seen:
            return replace(self, seen=today)
        if today - self.seen == timedelta(days=1):
            return DayUsage.new(today)
        # The clock is set forward to where it stood before the latest day: that was a mistake, but its costs were not.
        return DayUsage(today, DailyBudget(today, replace(self, seen=today).spent))

    @property
    def spent(self) -> Usage:
        """What counts on the day that was seen last."""
        if self.before is None or self.before.day < self.seen:
            return self.latest.spent
        return self.latest.spent.plus(self.before.spent)

    def note(self, more: Usage) -> DayUsage:
        """The book with `more` in it."""
        return replace(self, latest=DailyBudget(self.latest.day, self.latest.spent.plus(more)))
