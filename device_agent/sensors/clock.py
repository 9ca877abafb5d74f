"""The state of the device's clock: set by a time server, by its own clock chip, or not set."""

from __future__ import annotations

import ctypes
import errno
import os
import time

from fedpatch.device_agent.sensors.commands import run_program
from fedpatch.device_agent.sensors.device_facts import Fact
from fedpatch.device_agent.sensors.filesystem import SysFs
from fedpatch.device_agent.sensors.timeouts import FactUnavailable

_DAY_S = 86_400.0
_2025_S = 1_735_689_600


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


_TIMESYNC = "/run/systemd/timesync/synchronized"


_RTC = "/sys/class/rtc/rtc0"


# linux/timex.h: a struct timex has five longs before its status; the first of them selects the fields to change: none.
_TIMEX_BYTES = 512


_LONGS_BEFORE_STATUS = 5


_STA_UNSYNC = 0x40


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
