"""What the device has spent today, kept over restarts: usage.json in the state directory, written at the end of a job."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import msgspec

from fedpatch.device_agent.policy.daily_budget import NOTHING, DayUsage, Usage
from fedpatch.device_agent.policy.quiet_hours import local_now
from fedpatch.shared.app.files import write_atomic

USAGE_NAME = "usage.json"
DAMAGED_SUFFIX = ".damaged"

_UNREADABLE = (OSError, msgspec.DecodeError, RecursionError)

_log = logging.getLogger("fedpatch.agent")


class UsageLedger:
    """The book of days of one state directory, which its caller has locked.

    A disk that refuses costs the memory of a restart, not the job: what was spent counts on in this process.
    """

    def __init__(self, directory: Path, clock: Callable[[], datetime] = local_now) -> None:
        self._path = directory / USAGE_NAME
        self._clock = clock
        self._book = _read_or_set_aside(self._path) or DayUsage.new(clock().date())

    @property
    def today(self) -> Usage:
        """What counts on this local day."""
        self._book = self._book.on(self._clock().date())
        return self._book.spent

    def note(self, more: Usage) -> None:
        """At the end of a job: what it took. The file is written only where that is something."""
        if more == NOTHING:
            return
        self._book = self._book.on(self._clock().date()).note(more)
        try:
            write_atomic(self._path, msgspec.json.encode(self._book))
        except OSError as error:
            _log.warning("%s: %s; what was spent today is forgotten at the next start", self._path, error.strerror)


def read_today(directory: Path, clock: Callable[[], datetime] = local_now) -> Usage:
    """What counts on this local day, for whoever has not locked the directory: a file that is damaged stays where it is.

    As for the ledger, a damaged file counts as none.
    """
    path, today = directory / USAGE_NAME, clock().date()
    try:
        book = _read(path) or DayUsage.new(today)
    except _UNREADABLE as error:
        _log.warning("%s: cannot be read (%s); what was spent today is not known", path, error)
        return NOTHING
    return book.on(today).spent


def _read(path: Path) -> DayUsage | None:
    """The book on the disk; None where there is none."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=DayUsage)
    except FileNotFoundError:
        return None


def _read_or_set_aside(path: Path) -> DayUsage | None:
    """The book on the disk; None where there is none, or none that can be read: that is set aside, and told."""
    try:
        return _read(path)
    except _UNREADABLE as error:
        aside = path.with_name(path.name + DAMAGED_SUFFIX)
        _log.error("%s: cannot be read (%s); set aside as %s, today's allowance begins anew", path, error, aside.name)
        try:
            os.replace(path, aside)
        except OSError as refused:
            _log.warning("%s: cannot be set aside: %s", path, refused.strerror)
        return None
