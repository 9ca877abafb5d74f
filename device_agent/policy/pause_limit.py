"""The limit of a pause, `pause_limit_s`: the work of a device that is paused longer is abandoned."""

from __future__ import annotations


class PauseTimer:
    """The time of the current pause; `limit_s` is the longest one."""

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._since: float | None = None

    def begin(self, now: float) -> None:
        """Begin a pause at `now`, in monotonic seconds."""
        self._since = now

    def end(self) -> None:
        """End the pause, if there is one."""
        self._since = None

    def has_expired(self, now: float) -> bool:
        """Return whether the pause has lasted as long as the owner allows."""
        due = self.next_deadline()
        return due is not None and now >= due

    def next_deadline(self) -> float | None:
        """Return the time at which the pause expires; None without one."""
        return None if self._since is None else self._since + self.limit_s
