"""Reads how busy the device is, what is free on it, whether its clock is set, and whether its owner paused it."""

from __future__ import annotations

import ctypes
import errno
import os
import time
from pathlib import Path

from device_agent.conditions.bounded import CannotTell
from device_agent.conditions.meters import (
    clock_set,
    load_per_cpu,
    parse_available_mib,
    parse_chrony,
    parse_cpus,
    parse_load,
)
from device_agent.conditions.programs import run_program
from device_agent.conditions.tree import Tree
from device_agent.facts import Fact

_MIB = 1 << 20
_TIMESYNC = "run/systemd/timesync/synchronized"
_RTC = "sys/class/rtc/rtc0"
# linux/timex.h: a struct timex has five longs before its status; the first of them holds what is to be changed: nothing.
_TIMEX_BYTES = 512
_LONGS_BEFORE_STATUS = 5
_STA_UNSYNC = 0x40


def read_load(tree: Tree) -> Fact[float]:
    """The mean number of runnable processes over a minute, divided by the CPUs."""
    cpus = parse_cpus(tree.text("sys/devices/system/cpu/online") or "") or os.cpu_count() or 1
    return load_per_cpu(parse_load(tree.text("proc/loadavg") or ""), cpus)


def read_memory(tree: Tree) -> Fact[float]:
    """What a new program could take without swapping."""
    mib = parse_available_mib(tree.text("proc/meminfo") or "")
    return Fact.unknown("proc/meminfo does not tell") if mib is None else Fact(mib, "proc/meminfo: MemAvailable")


def read_disk(state_dir: Path) -> Fact[float]:
    """What this user may still write where the agent keeps its state, or will make its directory. Raises OSError."""
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


def read_pause(pause_file: Path) -> Fact[bool]:
    """Whether the owner's pause file is there. Raises OSError where nobody can tell."""
    try:
        os.lstat(pause_file)
    except (FileNotFoundError, NotADirectoryError):
        return Fact(False, f"there is no {pause_file}")
    return Fact(True, str(pause_file))


def read_clock(tree: Tree, now_s: float | None = None) -> Fact[bool]:
    """Whether the clock was set from outside since boot; `now_s` stands for the system clock in tests."""
    now_s = time.time() if now_s is None else now_s
    own = tree.text(f"{_RTC}/since_epoch") if tree.text(f"{_RTC}/hctosys") == "1" else None
    own_s = float(own) if own and own.isascii() and own.isdigit() and len(own) < 16 else None
    return clock_set(now_s, _synchronised(tree), own_s)


def _synchronised(tree: Tree) -> Fact[bool]:
    if tree.exists(_TIMESYNC):
        return Fact(True, _TIMESYNC)
    kernel = _ask_kernel() if tree.live else Fact[bool].unknown("no time service has left word")
    if kernel.value:
        return kernel
    program = tree.program("chronyc")
    if program is not None:
        try:
            follows = parse_chrony(run_program([program, "-n", "tracking"]).text)
        except CannotTell:
            return kernel
        if follows is not None:
            return Fact(follows, "chronyc tracking")
    return kernel


def _ask_kernel() -> Fact[bool]:
    """Time services tell the kernel when they have set the clock (adjtimex)."""
    space = ctypes.create_string_buffer(_TIMEX_BYTES)
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "adjtimex") or libc.adjtimex(space) < 0:
        why = os.strerror(ctypes.get_errno() or errno.ENOSYS)
        return Fact.unknown(f"the kernel does not tell whether the clock is synchronised ({why})")
    status = ctypes.c_int.from_buffer(space, _LONGS_BEFORE_STATUS * ctypes.sizeof(ctypes.c_long)).value
    unset = bool(status & _STA_UNSYNC)
    return Fact(not unset, f"the kernel: {'no time service has set the clock' if unset else 'synchronised'}")
