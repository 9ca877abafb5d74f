"""Feeds trackers from a run without delaying it: each tracker has a thread, and is switched off at its first error."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from queue import SimpleQueue

from fedpatch.shared.app.plugins import load_entry_points
from fedpatch.shared.errors import UsageError, unknown_name
from fedpatch.shared.trackers.tracker import TrackedRound, TrackedRun, Tracker

ENTRY_POINT_GROUP = "fedpatch.trackers"
END_S = 30.0
"""Time that a tracker has for its last rounds when the run has ended."""

_log = logging.getLogger("fedpatch.trackers")


def split_name(text: str) -> tuple[str, str]:
    """Return name and place of NAME or NAME:PLACE.

    Raises:
        UsageError: No tracker of that name is installed.

    Example:
        >>> split_name("mlflow:sqlite:///runs.db")
        ('mlflow', 'sqlite:///runs.db')
    """
    name, _, place = text.partition(":")
    known = load_entry_points(ENTRY_POINT_GROUP)
    if name not in known:
        raise unknown_name("tracker", name, sorted(known))
    return name, place


def check_names(texts: Iterable[str]) -> None:
    """Raise UsageError if a tracker is not installed, or named twice."""
    names = [split_name(text)[0] for text in texts]
    if len(set(names)) < len(names):
        raise UsageError("a tracker is named twice; name each once")


def make_trackers(texts: Sequence[str]) -> dict[str, Tracker]:
    """Make the trackers that are named.

    Args:
        texts: Each NAME or NAME:PLACE.

    Returns:
        The trackers by name. They have opened nothing yet.

    Raises:
        UsageError: A tracker is unknown, or the package behind it is missing.
    """
    check_names(texts)
    made: dict[str, Tracker] = {}
    for name, place in map(split_name, texts):
        point = next(iter(load_entry_points(ENTRY_POINT_GROUP)[name].values()))
        try:
            make: Callable[[str], Tracker] = point.load()
        except Exception as error:  # the module is another package's
            raise UsageError(f"tracker {name!r} ({point.value}) cannot be loaded: {error}") from error
        made[name] = make(place)
    return made


def finite(figures: Mapping[str, float | None]) -> dict[str, float]:
    """Return the figures that are finite numbers."""
    return {name: float(value) for name, value in figures.items() if value is not None and math.isfinite(value)}


class Tracking:
    """The trackers of one run. A call puts the event into the queues of the trackers and returns at once."""

    def __init__(self, trackers: Mapping[str, Tracker], run: TrackedRun, say: Callable[[str], object]) -> None:
        self._feeds = [_Feed(name, tracker, run, say) for name, tracker in trackers.items()]

    def log(self, round: TrackedRound) -> None:
        """Track a round."""
        for feed in self._feeds:
            feed.calls.put(lambda tracker: tracker.log(round))

    def end(self, outcome: str, timeout_s: float = END_S) -> None:
        """Finish, and wait for the trackers. A tracker that takes longer is abandoned, with a line to the user."""
        for feed in self._feeds:
            feed.calls.put(lambda tracker: tracker.end(outcome))
            feed.calls.put(None)
        for feed in self._feeds:
            feed.join(timeout_s)


@contextmanager
def tracking(
    texts: Sequence[str], run: Callable[[], TrackedRun], say: Callable[[str], object], outcome: Callable[[], str]
) -> Iterator[Tracking | None]:
    """Track a run within the block.

    Args:
        texts: Trackers, each NAME or NAME:PLACE.
        run: Returns the description of the run; called where there are trackers.
        say: Shows a line to the user.
        outcome: Returns the reason of the end, after the block.

    Returns:
        A context manager with the tracking; None without trackers.
    """
    if not texts:
        yield None
        return
    followed = Tracking(make_trackers(texts), run(), say)
    try:
        yield followed
    except BaseException as error:
        followed.end("failed" if isinstance(error, Exception) else "interrupted")
        raise
    followed.end(outcome())


class _Feed:
    """One tracker with its thread."""

    def __init__(self, name: str, tracker: Tracker, run: TrackedRun, say: Callable[[str], object]) -> None:
        self.calls: SimpleQueue[Callable[[Tracker], None] | None] = SimpleQueue()
        self._name, self._tracker, self._say = name, tracker, say
        self._thread = threading.Thread(target=self._follow, args=(run,), name=f"tracker-{name}", daemon=True)
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._say(f"tracker {self._name}: not finished after {timeout_s:g} s; its last rounds may be missing")

    def _follow(self, run: TrackedRun) -> None:
        try:
            self._tracker.begin(run)
            while (call := self.calls.get()) is not None:
                call(self._tracker)
        except Exception as error:  # the tracker is another package's, and may raise anything
            _log.debug("tracker %s", self._name, exc_info=True)
            lines = str(error).splitlines() or [""]
            self._say(f"tracker {self._name} is switched off for this run: {type(error).__name__}: {lines[0]}")
