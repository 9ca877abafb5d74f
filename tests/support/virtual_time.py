"""Links under a virtual clock that lose, duplicate, delay and reorder messages."""

from __future__ import annotations

import random
from dataclasses import dataclass

from fedpatch.simulator.fleet.virtual_clock import Action, VirtualClock

LATENCY_S = 0.02


@dataclass(frozen=True)
class Faults:
    """Faults of a link: the probabilities of losing and of duplicating a message, and its longest delay."""

    drop: float = 0.0
    duplicate: float = 0.0
    delay_s: float = 0.0


class FaultyLink:
    """Delivers with faults, the same ones for the same random numbers."""

    def __init__(self, agenda: VirtualClock, rng: random.Random, faults: Faults) -> None:
        self.faults = faults
        self._agenda = agenda
        self._rng = rng

    def send(self, deliver: Action) -> None:
        """Schedule `deliver` never, once or twice, with a random delay."""
        copies = (self._rng.random() >= self.faults.drop) + (self._rng.random() < self.faults.duplicate)
        for _ in range(copies):
            self._agenda.after(LATENCY_S + self._rng.uniform(0, self.faults.delay_s), deliver)
