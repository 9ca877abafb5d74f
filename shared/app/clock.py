"""State of the machine's clock: whether a time server has set it."""

from __future__ import annotations

import shutil
import subprocess

TIMEDATECTL_TIMEOUT_S = 3.0
CLOCK_TOLERANCE_S = 300.0
"""A smaller difference of two clocks is no sign of a wrong one: several machines write to one database."""


def is_synchronised() -> bool | None:
    """Return whether systemd-timesyncd, chrony or ntpd keeps the clock synchronised; None if timedatectl does not know."""
    program = shutil.which("timedatectl")
    if program is None:
        return None
    command = [program, "show", "-p", "NTPSynchronized", "--value"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEDATECTL_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return {"yes": True, "no": False}.get(result.stdout.strip())
