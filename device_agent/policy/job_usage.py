"""What the work in hand has taken so far, for the owner's daily allowance."""

from __future__ import annotations

from device_agent.allowance import Spent


class Meter:
    """Told of every byte and of training; `now` is monotonic, in seconds. A job counts as a round once it trains."""

    def __init__(self) -> None:
        self._bytes = 0
        self._rounds = 0
        self._trained_s = 0.0
        self._training_since: float | None = None

    def moved(self, count: int) -> None:
        """So many bytes of models or updates went down or up."""
        self._bytes += count

    def begins_round(self) -> None:
        """A training has begun."""
        self._rounds += 1

    def trains(self, training: bool, now: float) -> bool:
        """Whether the processor is at work on it, not while it is paused; True where that has changed."""
        if training == (self._training_since is not None):
            return False
        if self._training_since is not None:
            self._trained_s += now - self._training_since
        self._training_since = now if training else None
        return True

    def spent(self, now: float) -> Spent:
        """Up to now."""
        running_s = 0.0 if self._training_since is None else now - self._training_since
        return Spent(self._rounds, self._bytes, self._trained_s + running_s)

    def take(self, now: float) -> Spent:
        """The same, and begin anew from here."""
        spent = self.spent(now)
        self._bytes, self._rounds, self._trained_s = 0, 0, 0.0
        self._training_since = None if self._training_since is None else now
        return spent
