"""What the training process takes of the device, which its owner's limits must not hold against it."""

from __future__ import annotations

import math
import os
from pathlib import Path

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


class OwnLoad:
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
