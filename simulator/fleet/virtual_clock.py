"""A virtual clock that only its owner advances, and the timers that are due at its times."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial

Action = Callable[[], None]


class VirtualClock:
    """Queue of calls in the order of their time; `now` (seconds) moves only in `run_next`.

    `done` counts what was done so far.
    """

    def __init__(self, now: float) -> None:
        self.now = now
        self.done = 0
        self._entered = 0
        self._heap: list[tuple[float, int, Action]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def at(self, moment_s: float, action: Action) -> None:
        """Do this at a point of the clock; what is due at the same moment keeps its order."""
        self._entered += 1
        heapq.heappush(self._heap, (moment_s, self._entered, action))

    def after(self, delay_s: float, action: Action) -> None:
        """Do this later."""
        self.at(self.now + delay_s, action)

    def next_at(self) -> float | None:
        """When there is something to do."""
        return self._heap[0][0] if self._heap else None

    def run_next(self) -> None:
        """Turns the clock to the next thing and does it."""
        moment_s, _, action = heapq.heappop(self._heap)
        self.now = max(self.now, moment_s)
        self.done += 1
        action()


class Timer:
    """Wakes a state machine at its deadline. One that has moved to a later time costs nothing until the old one comes."""

    def __init__(self, agenda: VirtualClock, wake: Action) -> None:
        self._agenda = agenda
        self._wake = wake
        self._set_for: float | None = None

    def set(self, deadline: float | None) -> None:
        """`wake` is called by then; perhaps earlier too, and it must then set the alarm again."""
        if deadline is not None and (self._set_for is None or deadline < self._set_for):
            self._set_for = deadline
            self._agenda.at(deadline, partial(self._ring, deadline))

    def _ring(self, moment_s: float) -> None:
        if moment_s == self._set_for:
            self._set_for = None
            self._wake()
