"""What the kernel's and the clock's figures mean, as text and numbers to facts."""

from __future__ import annotations

import math

from device_agent.facts import Fact

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
    """How many CPUs a list such as `0-3,6` names; None for anything else."""
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
    """How busy the device is."""
    return Fact.unknown("proc/loadavg cannot be read") if load is None else Fact(load / cpus, "proc/loadavg")


def clock_set(now_s: float, synchronised: Fact[bool], own_clock_s: float | None) -> Fact[bool]:
    """Whether the system clock can be believed.

    `synchronised`: what services and the kernel say; `own_clock_s`: what the clock that runs without power says (seconds
    since 1970) and set the system's clock from at boot, None where there is none.
    """
    if now_s < _2025_S:
        return Fact(False, "the clock shows a year before 2025")
    if synchronised.value:
        return synchronised
    if own_clock_s is not None and own_clock_s >= _2025_S and abs(own_clock_s - now_s) < _DAY_S:
        return Fact.assumed(True, "sys/class/rtc/rtc0: set at boot from the clock that runs without power")
    return synchronised


def parse_chrony(text: str) -> bool | None:
    """Whether chrony follows a time server, as `chronyc tracking` prints it; None where it does not say."""
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon and key.strip() == "Leap status":
            return value.strip() != "Not synchronised"
    return None
