"""A virtual clock that only its owner advances, and timers on this clock."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial

Action = Callable[[], None]


class VirtualClock:
    """Queue of calls in the order of their time; `now` (seconds) moves only in `run_next`.

    `done` is the number of finished calls.
    """

    def __init__(self, now: float) -> None:
        self.now = now
        self.done = 0
        self._entered = 0
        self._heap: list[tuple[float, int, Action]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def at(self, moment_s: float, action: Action) -> None:
        """Queue a call for a time of the clock; calls for the same time run in the order of queueing."""
        self._entered += 1
        heapq.heappush(self._heap, (moment_s, self._entered, action))

    def after(self, delay_s: float, action: Action) -> None:
        """Queue a call for `delay_s` from now."""
        self.at(self.now + delay_s, action)

    def next_at(self) -> float | None:
        """Return the time of the next call; None without one."""
        return self._heap[0][0] if self._heap else None

    def run_next(self) -> None:
        """Set the clock to the next call, and run it."""
        moment_s, _, action = heapq.heappop(self._heap)
        self.now = max(self.now, moment_s)
        self.done += 1
        action()


class Timer:
    """Wakes a state machine at its deadline. A later deadline takes effect only at the time of the earlier one."""

    def __init__(self, agenda: VirtualClock, wake: Action) -> None:
        self._agenda = agenda
        self._wake = wake
        self._set_for: float | None = None

    def set(self, deadline: float | None) -> None:
        """Call `wake` at the deadline; it may also be called earlier, and must then set the timer again."""
        if deadline is not None and (self._set_for is None or deadline < self._set_for):
            self._set_for = deadline
            self._agenda.at(deadline, partial(self._ring, deadline))

    def _ring(self, moment_s: float) -> None:
        if moment_s == self._set_for:
            self._set_for = None
            self._wake()
