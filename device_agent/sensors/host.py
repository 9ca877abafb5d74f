"""Reads how busy the device is, its free memory and disk, and whether its owner paused it."""

from __future__ import annotations

import math
import os
import re
import stat
import time
from pathlib import Path

from fedpatch.device_agent.sensors.device_facts import Fact
from fedpatch.device_agent.sensors.filesystem import SysFs

_MAX_CPUS = 4096


def parse_load(text: str) -> float | None:
    """The first figure of /proc/loadavg: the mean over a minute; None for anything else."""
    try:
        value = float((text.split() or [""])[0])
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0.0 else None


def parse_available_mib(text: str) -> float | None:
    """MemAvailable of /proc/meminfo in MiB; None where it is not there."""
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["MemAvailable:"] and len(words) > 1:
            return int(words[1]) / 1024 if _is_count(words[1]) else None
    return None


def parse_cpus(text: str) -> int | None:
    """Return the number of CPUs in a list such as `0-3,6`; None for anything else."""
    count = 0
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        last = last if dash else first
        if not (_is_count(first) and _is_count(last)):
            return None
        count += int(last) - int(first) + 1
    return count if 0 < count <= _MAX_CPUS else None


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 15


def load_per_cpu(load: float | None, cpus: int) -> Fact[float]:
    """Return how busy the device is."""
    return Fact.unknown("/proc/loadavg cannot be read") if load is None else Fact(load / cpus, "/proc/loadavg")


_MIB = 1 << 20


def read_load(tree: SysFs) -> Fact[float]:
    """The mean number of runnable processes over a minute, divided by the CPUs."""
    cpus = parse_cpus(tree.text("/sys/devices/system/cpu/online") or "") or os.cpu_count() or 1
    return load_per_cpu(parse_load(tree.text("/proc/loadavg") or ""), cpus)


def read_memory(tree: SysFs) -> Fact[float]:
    """Return the memory that a new program could take without swapping."""
    mib = parse_available_mib(tree.text("/proc/meminfo") or "")
    if mib is None:
        return Fact.unknown("/proc/meminfo has no MemAvailable")
    return Fact(mib, "/proc/meminfo: MemAvailable")


def read_disk(state_dir: Path) -> Fact[float]:
    """Return the space left for this user where the agent keeps its state, or will make its directory. Raises OSError."""
    place = state_dir.absolute()
    while True:
        try:
            disk = os.statvfs(place)
        except (FileNotFoundError, NotADirectoryError):
            if place == place.parent:
                raise
            place = place.parent
        else:
            return Fact(disk.f_bavail * disk.f_frsize / _MIB, str(place))


PAUSE_FILE = "pause"
PAUSE_UNTIL = "until"
"""Word before the end of a pause in its file, in Unix seconds. A file with other content is a pause without end."""
_PAUSE_TEXT = re.compile(rf"{PAUSE_UNTIL} ([0-9]{{1,12}})\s*", re.ASCII)
_PAUSE_BYTES = 64


def read_pause(pause_file: Path, now_s: float | None = None) -> Fact[bool]:
    """Return whether the owner has paused the device. Raises OSError where that is unknown.

    A clock that is behind makes a pause longer, never shorter.
    """
    try:
        found = os.lstat(pause_file)
    except (FileNotFoundError, NotADirectoryError):
        return Fact(False, f"there is no {pause_file}")
    until_s = _pause_end(pause_file) if stat.S_ISREG(found.st_mode) else None
    if until_s is None:
        return Fact(True, str(pause_file))
    if until_s <= (time.time() if now_s is None else now_s):
        return Fact(False, f"the pause in {pause_file} is over")
    return Fact(True, f"{pause_file}, until {local_minute(until_s)}")


def local_minute(unix_s: float) -> str:
    """Format the end of a pause by the clock of the device, as the owner writes quiet hours: `2026-02-03 04:05 CET`."""
    return time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(unix_s))


def _pause_end(pause_file: Path) -> float | None:
    """Return the end of a pause in Unix seconds; None where the file names none, or this user may not read it."""
    try:
        with pause_file.open("rb") as file:
            text = file.read(_PAUSE_BYTES).decode("ascii", errors="replace")
    except OSError:
        return None
    end = _PAUSE_TEXT.fullmatch(text)
    return float(end[1]) if end else None
