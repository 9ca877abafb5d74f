"""What the training process takes of the device, which its owner's limits must not hold against it."""

from __future__ import annotations

import os
from pathlib import Path

from device_agent.preference_rules import Own

_PAGES_RESIDENT = 1  # of /proc/PID/statm
_MIB = 2**20


def own_work(pid: int | None, threads: int) -> Own:
    """Of the process `pid`, which keeps `threads` CPUs busy; nothing where there is none."""
    if pid is None:
        return Own()
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text("ascii").split()[_PAGES_RESIDENT])
    except (OSError, ValueError, IndexError):
        return Own()
    return Own(threads / (os.cpu_count() or 1), pages * os.sysconf("SC_PAGE_SIZE") / _MIB)
