"""Reads how busy the device is, its free memory and disk, whether its clock is set, and whether its owner paused it.

Text and numbers of the kernel and the clock become facts.
"""

from __future__ import annotations

import ctypes
import errno
import math
import os
import re
import stat
import time
from pathlib import Path

from fedpatch.device_agent.sensors.commands import run_program
from fedpatch.device_agent.sensors.device_facts import Fact
from fedpatch.device_agent.sensors.filesystem import SysFs
from fedpatch.device_agent.sensors.timeouts import FactUnavailable

_2025_S = 1_735_689_600
_DAY_S = 86_400.0
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


def clock_set(now_s: float, synchronised: Fact[bool], own_clock_s: float | None) -> Fact[bool]:
    """Return whether the system clock was set since boot.

    Args:
        now_s: The system clock, in seconds since 1970.
        synchronised: The answer of time services and the kernel.
        own_clock_s: The clock that runs without power and sets the system clock at boot, in seconds since 1970; None: there
            is none.
    """
    if now_s < _2025_S:
        return Fact(False, "the clock shows a year before 2025")
    if synchronised.value:
        return synchronised
    if own_clock_s is not None and own_clock_s >= _2025_S and abs(own_clock_s - now_s) < _DAY_S:
        return Fact.assumed(True, "/sys/class/rtc/rtc0: set at boot from the clock that runs without power")
    return synchronised


def parse_chrony(text: str) -> bool | None:
    """Return whether chrony follows a time server, as `chronyc tracking` prints it; None where that is unknown."""
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon and key.strip() == "Leap status":
            return value.strip() != "Not synchronised"
    return None


_MIB = 1 << 20
_TIMESYNC = "/run/systemd/timesync/synchronized"
_RTC = "/sys/class/rtc/rtc0"
# linux/timex.h: a struct timex has five longs before its status; the first of them selects the fields to change: none.
_TIMEX_BYTES = 512
_LONGS_BEFORE_STATUS = 5
_STA_UNSYNC = 0x40


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


def read_clock(tree: SysFs, now_s: float | None = None) -> Fact[bool]:
    """Return whether the clock was set from outside since boot; tests give `now_s` in place of the system clock."""
    now_s = time.time() if now_s is None else now_s
    own = tree.text(f"{_RTC}/since_epoch") if tree.text(f"{_RTC}/hctosys") == "1" else None
    own_s = float(own) if own and own.isascii() and own.isdigit() and len(own) < 16 else None
    return clock_set(now_s, _synchronised(tree), own_s)


def _synchronised(tree: SysFs) -> Fact[bool]:
    if tree.exists(_TIMESYNC):
        return Fact(True, _TIMESYNC)
    kernel = _ask_kernel() if tree.live else Fact[bool].unknown("no time service has left word")
    if kernel.value:
        return kernel
    program = tree.program("chronyc")
    if program is not None:
        try:
            follows = parse_chrony(run_program([program, "-n", "tracking"]).text)
        except FactUnavailable:
            return kernel
        if follows is not None:
            return Fact(follows, "chronyc tracking")
    return kernel


def _ask_kernel() -> Fact[bool]:
    """Return whether a time service has set the clock, by the kernel's flag (adjtimex)."""
    space = ctypes.create_string_buffer(_TIMEX_BYTES)
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "adjtimex") or libc.adjtimex(space) < 0:
        why = os.strerror(ctypes.get_errno() or errno.ENOSYS)
        return Fact.unknown(f"the kernel does not know whether the clock is synchronised ({why})")
    status = ctypes.c_int.from_buffer(space, _LONGS_BEFORE_STATUS * ctypes.sizeof(ctypes.c_long)).value
    unset = bool(status & _STA_UNSYNC)
    return Fact(not unset, f"the kernel: {'no time service has set the clock' if unset else 'synchronised'}")
