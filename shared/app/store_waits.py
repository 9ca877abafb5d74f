"""The requests to stores that have no answer yet: of a database, of an object store.

A thread that waits for a store reports nothing. `StoreWaits.look`, which another thread calls, logs that a store is silent, and
later that it answers again.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fedpatch.shared.app.formatting import duration

REGISTRY, BLOBS = KINDS = ("registry", "blobs")
SILENT_AFTER_S = 10.0
"""Seconds without an answer after which a store counts as silent; the log repeats this after three times as many."""
ENDING_S = 3.0
"""Seconds for a request when the process shall end."""

_log = logging.getLogger("fedpatch.store")


@dataclass(frozen=True)
class _Request:
    kind: str
    place: str
    began_at: float
    patience_s: float
    abandon: Callable[[], None]


class StoreWaits(threading.Event):
    """The requests that wait. As an event it is set when the process shall end: from then on no thread waits long.

    Args:
        clock: Returns monotonic seconds: the one clock by which requests begin and are looked at.

    Example:
        >>> waits = StoreWaits(clock=iter([0.0, 42.0]).__next__)
        >>> with waits.request("registry", "postgresql://db/fleet", 60.0):
        ...     waits.words()
        'postgresql://db/fleet has not answered for 42 s'
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._numbers = itertools.count()
        self._open: dict[int, _Request] = {}
        self._answered: list[_Request] = []
        self._reported: dict[str, tuple[float, float]] = {}
        self._ending_since: float | None = None
        self._lock = threading.Lock()

    @contextmanager
    def request(
        self, kind: str, place: str, patience_s: float, abandon: Callable[[], None] = lambda: None
    ) -> Iterator[None]:
        """Count a request as waiting within a `with`.

        Args:
            kind: "registry" or "blobs".
            place: Name of the store, for people.
            patience_s: Seconds for which the request waits at most.
            abandon: Called by `look` after this time, and soon when the process shall end: it makes the request fail.
        """
        number = next(self._numbers)
        self._open[number] = request = _Request(kind, place, self._clock(), patience_s, abandon)
        try:
            yield
            if place in self._reported:
                self._answered.append(request)
        finally:
            del self._open[number]

    def silent_s(self, kind: str) -> float:
        """Return the seconds for which the oldest request to stores of a kind has waited; 0 without one."""
        now = self._clock()
        return max((now - one.began_at for one in list(self._open.values()) if one.kind == kind), default=0.0)

    def words(self) -> str:
        """Return the stores that are silent, in words; "" for none."""
        now = self._clock()
        since = self._silent(now)
        return "; ".join(f"{place} has not answered for {duration(now - one.began_at)}" for place, one in since.items())

    def look(self) -> None:
        """Log the stores that have become silent or answer again, and abandon requests that have waited too long."""
        now = self._clock()
        with self._lock:
            for request in self._overdue(now):
                request.abandon()
            silent = self._silent(now)
            for place, request in silent.items():
                waited_s, (_, report_at_s) = now - request.began_at, self._reported.get(place, (0.0, SILENT_AFTER_S))
                if waited_s >= report_at_s:
                    report_at_s = 3 * waited_s
                    most = duration(request.patience_s)
                    _log.warning("%s: no answer for %s; waiting for %s at most", place, duration(waited_s), most)
                self._reported[place] = (request.began_at, report_at_s)
            for place in self._reported.keys() - silent.keys():
                began_at, _ = self._reported.pop(place)
                if any(one.place == place for one in self._answered):
                    _log.warning("%s: answers again after %s", place, duration(now - began_at))
            self._answered.clear()

    def _silent(self, now: float) -> dict[str, _Request]:
        """Return the oldest request of each silent store."""
        oldest: dict[str, _Request] = {}
        for one in list(self._open.values()):  # in the order of their beginning
            if now - one.began_at >= SILENT_AFTER_S:
                oldest.setdefault(one.place, one)
        return oldest

    def _overdue(self, now: float) -> list[_Request]:
        if self.is_set() and self._ending_since is None:
            self._ending_since = now
        ends = self._ending_since is not None and now >= self._ending_since + ENDING_S
        waited = [(one, now - one.began_at) for one in list(self._open.values())]
        return [one for one, waited_s in waited if waited_s >= (ENDING_S if ends else one.patience_s)]
