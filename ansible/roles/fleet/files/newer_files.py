"""Prints the files of a running service that are newer than its start: `newer_files.py UNIT FILE...`.

The start is taken from the monotonic clock, because the clock of a Raspberry Pi may have been wrong at boot. A link counts by
its own time, not by the time of its target. Missing files and times in the future do not count.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

_RUNNING = ("active", "activating", "reloading")


def newer(paths: list[str], began_at: float, now: float) -> list[str]:
    """Return the paths whose modification time is after `began_at` and not after `now`; both are Unix times in seconds."""
    return [path for path in paths if os.path.lexists(path) and began_at < os.lstat(path).st_mtime <= now]


def main() -> None:
    """Print the newer files, one per line; nothing for a service that does not run."""
    unit, *paths = sys.argv[1:]
    names = ("ActiveState", "ExecMainStartTimestampMonotonic")
    command = ["systemctl", "show", *(f"--property={name}" for name in names), unit]
    shown = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    values = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
    started_us = int(values.get(names[1]) or 0)
    if values.get(names[0]) in _RUNNING and started_us:
        now = time.time()
        found = newer(paths, now - time.monotonic() + started_us / 1e6, now)
        sys.stdout.writelines(f"{path}\n" for path in found)


if __name__ == "__main__":
    main()
