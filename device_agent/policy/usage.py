"""Usage of the device: of the current job, and of the day in usage.json.

A wrong clock must not reset the daily budget. A day is a date of the local clock. The device has no other calendar, and its
clock may be wrong: a Pi without a battery for its clock starts in the past and is corrected minutes later. So the file has
the two latest days that the clock has shown, with these rules:

- usage is noted on the latest day, also while the clock shows an earlier day;
- on any day, all usage counts that was noted on it or on a later day. So no second allowance comes from setting the clock
  back, from setting it back and forward again, or from a restart of the device;
- once midnight passes while the clock shows a day before the latest, that latest day was never real: the count begins at
  zero.

A clock that is set forward by a day looks like midnight: a new day begins.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from fedpatch.device_agent.policy.local_time import local_now
from fedpatch.shared.app.files import read_state, write_atomic
from fedpatch.shared.errors import StateError, StateUnreadable
from fedpatch.shared.mqtt.traffic import Traffic
from fedpatch.shared.typed_values import learn_types

Count = Annotated[int, Meta(ge=0, le=2**53)]
Duration = Annotated[float, Meta(ge=0.0, le=1e9)]


@dataclass(frozen=True)
class Usage:
    """Rounds, bytes of all messages and models both ways, and seconds of training."""

    rounds: Count = 0
    traffic_bytes: Count = 0
    training_s: Duration = 0.0

    @property
    def counts_as_spent(self) -> bool:
        """True if the usage of the day is unknown, so that all of it counts as spent, as after `fedpatch-agent restore`."""
        return self.rounds >= ALL_SPENT.rounds

    def plus(self, more: Usage) -> Usage:
        """Sum of both."""
        return Usage(
            self.rounds + more.rounds, self.traffic_bytes + more.traffic_bytes, self.training_s + more.training_s
        )


NOTHING = Usage()
ALL_SPENT = Usage(rounds=10**6, traffic_bytes=2**50, training_s=86_400.0)
"""More than any allowance: the usage of a day whose usage is lost."""
SPENT_WORDS = "the allowance counts as spent, since the state was restored from a backup"


@dataclass(frozen=True)
class DailyBudget:
    """Usage of one day."""

    day: date
    spent: Usage


@dataclass(frozen=True)
class DayUsage:
    """Usage of the two latest days, the latest first, and the date that the clock showed last."""

    seen: date
    latest: DailyBudget
    before: DailyBudget | None = None

    @classmethod
    def new(cls, today: date) -> DayUsage:
        """No usage so far."""
        return cls(today, DailyBudget(today, NOTHING))

    def on(self, today: date) -> DayUsage:
        """Return the usage as it counts once the clock shows `today`."""
        if today == self.seen:
            return self
        if today > self.latest.day:
            return DayUsage(today, DailyBudget(today, NOTHING), self.latest)
        if today == self.latest.day or today < self.seen:
            return replace(self, seen=today)
        if today - self.seen == timedelta(days=1):
            return DayUsage.new(today)
        # The clock is set forward, but not to the latest day: that day was a mistake, but its usage was real.
        return DayUsage(today, DailyBudget(today, replace(self, seen=today).spent))

    @property
    def spent(self) -> Usage:
        """Usage that counts on the last date that the clock showed."""
        if self.before is None or self.before.day < self.seen:
            return self.latest.spent
        return self.latest.spent.plus(self.before.spent)

    def note(self, more: Usage) -> DayUsage:
        """The usage with `more` added."""
        return replace(self, latest=DailyBudget(self.latest.day, self.latest.spent.plus(more)))


learn_types(DayUsage)


class JobUsage:
    """Usage of the current work; `now` is monotonic seconds. A job counts as a round once it trains."""

    def __init__(self) -> None:
        self._bytes = 0
        self._rounds = 0
        self._trained_s = 0.0
        self._training_since: float | None = None
        self._link = Traffic()

    def moved(self, count: int) -> None:
        """Add bytes that were moved beside the link to the broker, as of a model by URL."""
        self._bytes += count

    def link_moved(self, traffic: Traffic) -> None:
        """Take the count of the link to the broker, which grows as long as this process runs."""
        self._bytes += traffic.since(self._link).total_bytes
        self._link = traffic

    def begins_round(self) -> None:
        """Count a round: its training has begun."""
        self._rounds += 1

    def trains(self, training: bool, now: float) -> bool:
        """Note whether training runs and is not paused; True where that has changed."""
        if training == (self._training_since is not None):
            return False
        if self._training_since is not None:
            self._trained_s += now - self._training_since
        self._training_since = now if training else None
        return True

    def spent(self, now: float) -> Usage:
        """Usage up to now."""
        running_s = 0.0 if self._training_since is None else now - self._training_since
        return Usage(self._rounds, self._bytes, self._trained_s + running_s)

    def take(self, now: float) -> Usage:
        """Return the usage up to now, and count from zero again."""
        spent = self.spent(now)
        self._bytes, self._rounds, self._trained_s = 0, 0, 0.0
        self._training_since = None if self._training_since is None else now
        return spent


USAGE_NAME = "usage.json"
DAMAGED_SUFFIX = ".damaged"

_UNREADABLE = (StateError, msgspec.DecodeError, RecursionError)

_log = logging.getLogger("fedpatch.agent")


class UsageFile:
    """Usage of the day in the file of a state directory, which the caller has locked.

    Where the disk refuses, the usage is kept in this process and lost at a restart.
    """

    def __init__(self, directory: Path, clock: Callable[[], datetime] = local_now) -> None:
        self._path = directory / USAGE_NAME
        self._clock = clock
        self._usage = _read_or_set_aside(self._path) or DayUsage.new(clock().date())

    @property
    def today(self) -> Usage:
        """Usage that counts on this local day."""
        before, day = self._usage, self._clock().date()
        self._usage = before.on(day)
        # A clock that was ahead: after a restart the file must show the days since then, or its usage would count for ever.
        if self._usage != before and before.latest.day > day:
            self._write()
        return self._usage.spent

    def note(self, more: Usage) -> None:
        """Add the usage of a job; the file is written only if there was any."""
        if more == NOTHING:
            return
        self._usage = self._usage.on(self._clock().date()).note(more)
        self._write()

    def _write(self) -> None:
        try:
            write_atomic(self._path, msgspec.json.encode(self._usage))
        except OSError as error:
            _log.warning("%s: %s; what was spent today is forgotten at the next start", self._path, error.strerror)


def read_today(directory: Path, clock: Callable[[], datetime] = local_now) -> Usage:
    """Read the usage of this local day without a lock; a damaged file stays where it is and counts as none."""
    path, today = directory / USAGE_NAME, clock().date()
    try:
        usage = _read(path) or DayUsage.new(today)
    except _UNREADABLE as error:
        _log.warning("%s: cannot be read (%s); what was spent today is not known", path, error)
        return NOTHING
    return usage.on(today).spent


def usage_problem(directory: Path) -> str:
    """Return the damage of the usage of the day in words; "" for none. Raises StateUnreadable if it cannot be read now."""
    path = directory / USAGE_NAME
    try:
        _read(path)
    except StateUnreadable:
        raise
    except _UNREADABLE as error:
        return f"{path}: is damaged ({error})"
    return ""


def _read(path: Path) -> DayUsage | None:
    """Usage on the disk; None where there is no file."""
    try:
        return msgspec.json.decode(read_state(path), type=DayUsage)
    except FileNotFoundError:
        return None


def _read_or_set_aside(path: Path) -> DayUsage | None:
    """Usage on the disk; None where there is no file. A damaged file is renamed and logged.

    Raises:
        StateUnreadable: It cannot be read now; it may be whole, and stays.
    """
    try:
        return _read(path)
    except StateUnreadable:
        raise
    except _UNREADABLE as error:
        aside = path.with_name(path.name + DAMAGED_SUFFIX)
        _log.error("%s: cannot be read (%s); set aside as %s, today's allowance begins anew", path, error, aside.name)
        try:
            os.replace(path, aside)
        except OSError as refused:
            _log.warning("%s: cannot be set aside: %s", path, refused.strerror)
        return None
