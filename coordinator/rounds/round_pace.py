"""The pace of rounds: the time at which the next round may begin, by `round_interval_s` and the pause after a failed round."""

from __future__ import annotations


class RoundPace:
    """Keeps the time at which the next round may begin, in seconds of the run's clock.

    Args:
        interval_s: Least time from the beginning of a training round to the next, in seconds.

    Attributes:
        next_at: The time at which the next training round is due.

    Example:
        >>> pace = RoundPace(interval_s=60.0)
        >>> pace.begin_round(began_at=10.0)
        >>> pace.end_round(now=30.0, pause_s=0.0)
        >>> pace.wake(now=69.0)
        >>> pace.pauses, pace.wakes_at
        (True, 70.0)
    """

    def __init__(self, interval_s: float) -> None:
        self.next_at = 0.0
        self._interval_s = interval_s
        self._pause_until: float | None = None

    def start(self, now: float, rest_s: float) -> None:
        """Begin the run `rest_s` before its first round is due."""
        if rest_s:
            self.next_at = self._pause_until = now + rest_s

    def begin_round(self, began_at: float) -> None:
        """Note the beginning of a training round."""
        self.next_at = began_at + self._interval_s

    def end_round(self, now: float, pause_s: float) -> None:
        """Pause after a training round until the next one is due, and for `pause_s` at least."""
        self._pause_until = max(self.next_at, now + pause_s) if pause_s else self.next_at

    def wake(self, now: float) -> None:
        """End the pause if it is over."""
        if self._pause_until is not None and now >= self._pause_until:
            self._pause_until = None

    @property
    def pauses(self) -> bool:
        """True until the end of the pause is noted (`wake`)."""
        return self._pause_until is not None

    @property
    def wakes_at(self) -> float | None:
        """The end of the pause; None without one."""
        return self._pause_until

    def left_s(self, now: float) -> float:
        """Return the seconds to the end of the pause; 0 without one."""
        return 0.0 if self._pause_until is None else max(0.0, self._pause_until - now)

    def rest_s(self, now: float) -> float:
        """Return the seconds until the next training round is due."""
        return max(0.0, self.next_at - now)


def rest_of_interval(interval_s: float, spent_s: float) -> float:
    """Return the seconds until the next training round is due, from within a round: `rest_s` of `committed`.

    Args:
        interval_s: Least time from the beginning of a training round to the next, in seconds.
        spent_s: Seconds since the beginning of this round.
    """
    return max(0.0, interval_s - spent_s)
