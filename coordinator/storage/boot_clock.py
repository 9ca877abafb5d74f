"""Times that can be compared across a restart of the process or the machine.

While the machine runs, its uptime gives the time that has passed, also if the wall clock is set. The uptime restarts at each
boot. Across a boot only the wall clock is left; if it was set back, the time that has passed counts as 0.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class BootTime:
    """A time by both clocks.

    Attributes:
        boot: Name of the boot; "" on a system that does not name its boots.
        uptime_s: Seconds since that boot.
        unix_s: Unix time, in seconds.
    """

    boot: str
    uptime_s: float
    unix_s: float

    @classmethod
    def now(cls) -> BootTime:
        """Return the present time."""
        try:
            boot = _BOOT_ID.read_text(encoding="ascii").strip()
            uptime_s = seconds_with_suspension()
        except OSError:
            return cls("", 0.0, time.time())
        return cls(boot, uptime_s, time.time())

    def since(self, earlier: BootTime) -> float:
        """Return the seconds since `earlier`, at least 0."""
        same_boot = self.boot != "" and self.boot == earlier.boot
        passed_s = self.uptime_s - earlier.uptime_s if same_boot else self.unix_s - earlier.unix_s
        return max(0.0, passed_s)


def seconds_with_suspension() -> float:
    """Return monotonic seconds that also pass while the machine is suspended, unlike those of time.monotonic."""
    return time.clock_gettime(_CLOCK)
