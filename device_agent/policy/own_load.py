"""The load that the training causes, which does not count against the device."""

from __future__ import annotations

import math

_LOAD_MEAN_S = 60.0
"""The kernel's shortest load average fades with this time (/proc/loadavg)."""


class OwnLoadAverage:
    """Share of the kernel's load average that the training causes; it rises and fades as slowly as the load average does.

    Args:
        threads: Threads of the training.
        cpus: Processors of the device.

    Example:
        >>> own = OwnLoadAverage(threads=1, cpus=4)
        >>> own.see(True, 0.0)
        >>> own.see(True, 60.0)
        >>> round(own.mean, 2)
        0.16
    """

    def __init__(self, threads: int, cpus: int) -> None:
        self._full = threads / cpus
        self.mean = 0.0
        self._busy = False
        self._at: float | None = None

    def see(self, busy: bool, now: float) -> None:
        """Bring `mean`, the load per CPU, up to `now` in monotonic seconds; from now on the training is `busy` or not."""
        if self._at is not None:
            fades = math.exp(-max(0.0, now - self._at) / _LOAD_MEAN_S)
            self.mean = self.mean * fades + (self._full if self._busy else 0.0) * (1.0 - fades)
        self._busy, self._at = busy, now
