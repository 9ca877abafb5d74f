"""Moments that can be compared across a restart of the process, or of the machine.

While the machine runs, its own count of seconds tells how long something took, whatever becomes of the wall clock. That
count begins anew at each boot; then only the wall clock is left, and a clock that was set back counts as no time at all.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class BootTime:
    """`uptime_s` counts from the boot named `boot` ("": the system does not name its boots); `unix_s` is the wall clock's."""

    boot: str
    uptime_s: float
    unix_s: float

    @classmethod
    def now(cls) -> BootTime:
        """This moment."""
        try:
            boot = _BOOT_ID.read_text(encoding="ascii").strip()
            uptime_s = time.clock_gettime(time.CLOCK_BOOTTIME)
        except (OSError, AttributeError):
            return cls("", 0.0, time.time())
        return cls(boot, uptime_s, time.time())

    def since(self, earlier: BootTime) -> float:
        """Seconds from `earlier` to this moment, 0 or more."""
        same_boot = self.boot != "" and self.boot == earlier.boot
        passed_s = self.uptime_s - earlier.uptime_s if same_boot else self.unix_s - earlier.unix_s
        return max(0.0, passed_s)
