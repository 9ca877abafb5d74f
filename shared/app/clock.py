"""Whether the machine's clock was set by a time server."""

from __future__ import annotations

import shutil
import subprocess

TIMEDATECTL_TIMEOUT_S = 3.0


def is_synchronised() -> bool | None:
    """As the kernel was told by systemd-timesyncd, chrony or ntpd; None where there is nobody to ask."""
    program = shutil.which("timedatectl")
    if program is None:
        return None
    command = [program, "show", "-p", "NTPSynchronized", "--value"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=TIMEDATECTL_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return {"yes": True, "no": False}.get(told.stdout.strip())
