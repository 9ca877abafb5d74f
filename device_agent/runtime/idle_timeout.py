"""When the training process has had nothing to do for so long that its memory is better given back.

It holds hundreds of megabytes as long as torch is loaded; to load it again takes a Raspberry Pi half a minute.
"""

from __future__ import annotations


class IdleTimer:
    """Told again and again how things are; `tick` says when to release. With `release_s` 0 that is never."""

    def __init__(self, release_s: float) -> None:
        self._release_s = release_s
        self._since: float | None = None

    def see(self, *, idle: bool, now: float) -> None:
        """`idle`: there is a training process, and nothing that it works on or is about to be given."""
        if not idle or not self._release_s:
            self._since = None
        elif self._since is None:
            self._since = now

    def tick(self, now: float) -> bool:
        """Lets time pass; True when it has been idle for long enough, which is then no longer counted."""
        due = self.next_deadline()
        if due is None or now < due:
            return False
        self._since = None
        return True

    def next_deadline(self) -> float | None:
        """When `tick` has something to say."""
        return None if self._since is None else self._since + self._release_s
