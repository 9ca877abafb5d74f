"""A clock that only its owner turns, and links over it that lose, double, delay and overtake."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass

Action = Callable[[], None]

LATENCY_S = 0.02


class Agenda:
    """What is to be done, in the order of its time; `now` moves only in `run_next`."""

    def __init__(self, now: float) -> None:
        self.now = now
        self._order = itertools.count()
        self._heap: list[tuple[float, int, Action]] = []

    def after(self, delay_s: float, action: Action) -> None:
        """Do this later; what is due at the same moment keeps its order."""
        heapq.heappush(self._heap, (self.now + delay_s, next(self._order), action))

    def next_at(self) -> float | None:
        """When there is something to do."""
        return self._heap[0][0] if self._heap else None

    def run_next(self) -> None:
        """Turns the clock to the next thing and does it."""
        at, _, action = heapq.heappop(self._heap)
        self.now = max(self.now, at)
        action()


@dataclass(frozen=True)
class Faults:
    """Of a link: the chance to lose a message, to double it, and by how much at most it is late."""

    drop: float = 0.0
    duplicate: float = 0.0
    delay_s: float = 0.0


class FaultyLink:
    """Delivers with faults, the same ones for the same random numbers."""

    def __init__(self, agenda: Agenda, rng: random.Random, faults: Faults) -> None:
        self.faults = faults
        self._agenda = agenda
        self._rng = rng

    def send(self, deliver: Action) -> None:
        """Perhaps `deliver` is called, once or twice, sooner or later."""
        copies = (self._rng.random() >= self.faults.drop) + (self._rng.random() < self.faults.duplicate)
        for _ in range(copies):
            self._agenda.after(LATENCY_S + self._rng.uniform(0, self.faults.delay_s), deliver)
