"""The effects of a line on frames: delay, jitter, loss, a rate. Without IO, and deterministic for a seed.

The kernel's own network emulator (sch_netem) is not in every kernel; this module does not need it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True)
class LineTerms:
    """One direction of a link. A frame is dropped if `queue_bytes` wait before it, as in any router.

    A `rate_bit_s` of 0 means no limit. Jitter (the standard deviation of the delay) keeps the order of frames, like the queue
    of an access point.
    """

    delay_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0
    rate_bit_s: float = 0.0
    queue_bytes: int = 64 * 1024


PERFECT = LineTerms()
WIFI = LineTerms(delay_s=0.08, jitter_s=0.02, loss=0.05, rate_bit_s=1e6)
"""A Pi at the far end of the house: 80 ms each way, one frame in twenty lost, 1 Mbit/s."""


class Line:
    """One direction of one link, which frames enter one after the other."""

    def __init__(self, rng: random.Random, terms: LineTerms = PERFECT) -> None:
        self.terms = terms
        self._rng = rng
        self._free_at = 0.0
        self._last_arrival = 0.0

    def enter(self, size_bytes: int, now: float) -> float | None:
        """Return the time at which a frame that enters now arrives at the other end; None if it is lost."""
        terms = self.terms
        if self._rng.random() < terms.loss:
            return None
        leaves = now
        if terms.rate_bit_s:
            begins = max(now, self._free_at)
            if (begins - now) * terms.rate_bit_s / 8 > terms.queue_bytes:
                return None
            leaves = self._free_at = begins + size_bytes * 8 / terms.rate_bit_s
        arrival = leaves + max(0.0, self._rng.gauss(terms.delay_s, terms.jitter_s))
        self._last_arrival = max(arrival, self._last_arrival)
        return self._last_arrival
