"""Pauses of devices: the times before which a device that declined or failed is not invited again."""

from __future__ import annotations

import math


class DevicePauses:
    """The devices that pause, each with the end of its pause, in seconds of the run's clock.

    Example:
        >>> pauses = DevicePauses()
        >>> pauses.begin("pi-1", until=60.0)
        >>> pauses.over(now=59.0), pauses.next_end, pauses.over(now=60.0)
        ([], 60.0, ['pi-1'])
    """

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        # The earliest end of a pause, so that a look before it costs nothing.
        self._next_end = math.inf

    def begin(self, device: str, until: float) -> None:
        """Let a device pause until a time."""
        self._until[device] = until
        self._next_end = min(self._next_end, until)

    def end(self, device: str) -> None:
        """End the pause of a device, if it has one; `next_end` may still be its end."""
        self._until.pop(device, None)

    def over(self, now: float) -> list[str]:
        """End the pauses that are over at `now`; return their devices."""
        if now < self._next_end:
            return []
        ended = [device for device, until in self._until.items() if until <= now]
        for device in ended:
            del self._until[device]
        self._next_end = min(self._until.values(), default=math.inf)
        return ended

    @property
    def next_end(self) -> float | None:
        """The time of the next end of a pause; None without a pause."""
        return self._next_end if self._until else None
