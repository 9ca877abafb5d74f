"""What the work in hand has taken so far, for the owner's daily allowance.

What the training process takes of the device, which its owner's limits must not hold against it.
"""

from __future__ import annotations

import math
import os
from pathlib import Path

from fedpatch.device_agent.policy.daily_budget import Usage


class JobUsage:
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

    def spent(self, now: float) -> Usage:
        """Up to now."""
        running_s = 0.0 if self._training_since is None else now - self._training_since
        return Usage(self._rounds, self._bytes, self._trained_s + running_s)

    def take(self, now: float) -> Usage:
        """The same, and begin anew from here."""
        spent = self.spent(now)
        self._bytes, self._rounds, self._trained_s = 0, 0, 0.0
        self._training_since = None if self._training_since is None else now
        return spent


_PAGES_RESIDENT = 1  # of /proc/PID/statm
_MIB = 2**20
_LOAD_MEAN_S = 60.0
"""The kernel's shortest load average fades with this time (/proc/loadavg)."""


def resident_mib(pid: int | None) -> float:
    """Memory of a process, 0 where there is none."""
    if pid is None:
        return 0.0
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[_PAGES_RESIDENT])
    except (OSError, ValueError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / _MIB


class OwnLoadAverage:
    """The share of the kernel's load average that is the work's own: it rises and fades as that does, never at once: `mean`."""

    def __init__(self, threads: int, cpus: int) -> None:
        self._full = threads / cpus
        self.mean = 0.0
        self._busy = False
        self._at: float | None = None

    def see(self, busy: bool, now: float) -> None:
        """Brings `mean`, per CPU, up to `now` (monotonic, in seconds); from now on the work is `busy` or not."""
        if self._at is not None:
            fades = math.exp(-max(0.0, now - self._at) / _LOAD_MEAN_S)
            self.mean = self.mean * fades + (self._full if self._busy else 0.0) * (1.0 - fades)
        self._busy, self._at = busy, now
