"""The history of this device for its owner: a line for each end of work and each decline, with the bytes moved since the last.

`history.jsonl` in the state directory. It is not flushed, since each flush wears a memory card. It never leaves the device.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from fedpatch.device_agent.job.job_effects import JobKey
from fedpatch.shared.app.clock import is_synchronised
from fedpatch.shared.app.files import append_line, refusals_of, write_atomic
from fedpatch.shared.errors import StateError
from fedpatch.shared.mqtt.traffic import Traffic
from fedpatch.shared.typed_values import learn_types

HISTORY_NAME = "history.jsonl"
KEEP_DAYS = 90
MAX_BYTES = 4 * 2**20
"""Beyond this size, some 12,000 lines, the older half is deleted."""
REPEAT_S = 3600.0
"""A decline for the same reason is written once in this time, with the number of those before it."""

_DAY_S = 86_400.0
_log = logging.getLogger("fedpatch.owner")

WORKED, DECLINED, STOPPED = "worked", "declined", "stopped"

Moment = Annotated[float, Meta(ge=0.0, le=1e12)]
Bytes = Annotated[int, Meta(ge=0)]


@dataclass(frozen=True, kw_only=True)
class HistoryEntry:
    """One line.

    Attributes:
        at: Wall clock's time, in Unix seconds.
        what: WORKED at the end of work, DECLINED, or STOPPED at the end of the agent.
        words: Outcome of the work, or reason of the decline.
        run: Name of the run, "" for none.
        round: Number of the round.
        task: Name of the task.
        broker: URL of the broker, or of the server of models.
        sent_bytes: Bytes sent since the line before.
        received_bytes: Bytes received since the line before.
        model: Digest of the global model, "" for none.
        repeats: Declines for the same reason that were not written.
    """

    at: Moment
    what: str
    words: str
    run: str = ""
    round: int = 0
    task: str = ""
    broker: str = ""
    sent_bytes: Bytes = 0
    received_bytes: Bytes = 0
    model: str = ""
    repeats: int = 0


learn_types(HistoryEntry)


class DeviceHistory:
    """The history of one agent.

    Args:
        directory: State directory, which the caller has locked; None keeps no history.
        broker: URL of the broker.
        clock: Returns the wall clock's time.
        is_clock_set: Returns whether a time server has set the clock; entries are deleted by their age only then.
    """

    def __init__(
        self,
        directory: Path | None,
        broker: str = "",
        clock: Callable[[], float] = time.time,
        is_clock_set: Callable[[], bool | None] = is_synchronised,
    ) -> None:
        self._path = None if directory is None else directory / HISTORY_NAME
        self._broker = broker
        self._clock = clock
        self._is_clock_set = is_clock_set
        self._counted = Traffic()
        self._last: tuple[str, str, str] | None = None
        self._last_at = 0.0
        self._repeats = 0
        self._trim(keep_all=True)

    def note(self, what: str, words: str, traffic: Traffic, key: JobKey | None = None, model: str = "") -> None:
        """Write a line. An error of the disk is logged only.

        Args:
            what: WORKED, DECLINED or STOPPED.
            words: Outcome or reason.
            traffic: All bytes that this process has moved.
            key: The work; None for none.
            model: Digest of the global model of the work.
        """
        now, about = self._clock(), (what, key.run if key else "", words)
        if what == DECLINED and about == self._last and 0.0 <= now - self._last_at < REPEAT_S:
            self._repeats += 1
            return
        moved = traffic.since(self._counted)
        entry = HistoryEntry(
            at=max(0.0, now),
            what=what,
            words=words,
            run=key.run if key else "",
            round=key.round if key else 0,
            task=key.task if key else "",
            broker=self._broker,
            sent_bytes=max(0, moved.sent_bytes),
            received_bytes=max(0, moved.received_bytes),
            model=model,
            repeats=self._repeats,
        )
        self._counted, self._last, self._last_at, self._repeats = traffic, about, now, 0
        self._append(entry)

    def _append(self, entry: HistoryEntry) -> None:
        if self._path is None:
            return
        try:
            size = append_line(self._path, msgspec.json.encode(entry) + b"\n")
        except OSError as error:
            _log.warning("%s: %s; this entry of the history is lost", self._path, error.strerror)
            return
        if size > MAX_BYTES:
            self._trim(keep_all=False)

    def _trim(self, *, keep_all: bool) -> None:
        """Delete damaged lines, entries older than KEEP_DAYS, and the older half of a file that is too large."""
        if self._path is None:
            return
        try:
            entries, damaged = read_with_damage(self._path.parent)
            oldest = self._clock() - KEEP_DAYS * _DAY_S
            kept = [one for one in entries if one.at > oldest]
            # With a clock that no time server has set, entries would be deleted too early, or all of them.
            if len(kept) < len(entries) and not self._is_clock_set():
                kept = entries
            kept = kept if keep_all else kept[len(kept) // 2 :]
            if damaged or len(kept) < len(entries):
                write_atomic(self._path, b"".join(msgspec.json.encode(one) + b"\n" for one in kept), durable=False)
        except (OSError, StateError) as error:
            _log.warning("history: %s", error)


def read_history(directory: Path) -> list[HistoryEntry]:
    """Return the entries in a state directory, the oldest first; a damaged line is left out.

    Raises:
        StateError: The file cannot be read.
    """
    return read_with_damage(directory)[0]


def read_with_damage(directory: Path) -> tuple[list[HistoryEntry], int]:
    """Return the entries, and the number of damaged lines. Raises StateError as `read_history` does."""
    path = directory / HISTORY_NAME
    with refusals_of(path):
        try:
            lines = path.read_bytes().splitlines()
        except FileNotFoundError:
            return [], 0
    entries, damaged = [], 0
    for line in lines:
        try:
            entries.append(msgspec.json.decode(line, type=HistoryEntry))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            damaged += 1
    return entries, damaged
