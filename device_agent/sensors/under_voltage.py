"""Reads under-voltage and throttling: the kernel's alarm of rpi_volt, else the firmware's bits (get_throttled)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from fedpatch.device_agent.sensors.device_facts import Fact
from fedpatch.device_agent.sensors.filesystem import SysFs
from fedpatch.device_agent.sensors.timeouts import FactUnavailable
from fedpatch.device_agent.sensors.vcgencmd import vcgencmd

# Bits of `vcgencmd get_throttled` for the present state; 16 bits higher they are for the time since boot.
_UNDER_VOLTAGE, _THROTTLED, _SOFT_LIMIT = 1 << 0, 1 << 2, 1 << 3
_BITS = re.compile(r"(?:throttled=)?(?:0x)?([0-9A-Fa-f]{1,8})")
_HWMON = "/sys/class/hwmon"
_PLATFORM = "/sys/devices/platform"


def parse_throttled(text: str) -> int | None:
    """The bits: `throttled=0x50005` as vcgencmd prints them, `50005` as the kernel does; None for anything else."""
    found = _BITS.fullmatch(text.strip())
    return int(found[1], 16) if found else None


def under_voltage(bits: int, source: str) -> Fact[bool]:
    """Return whether the supply's voltage is too low now."""
    return Fact(bool(bits & _UNDER_VOLTAGE), f"{source}: {bits:#x}")


def throttled(bits: int, source: str) -> Fact[bool]:
    """Return whether the processor is slowed down now, because of heat or lack of power."""
    return Fact(bool(bits & (_THROTTLED | _SOFT_LIMIT)), f"{source}: {bits:#x}")


class ThrottleState(NamedTuple):
    """Low voltage of the supply, and whether the processor is slowed down (by low voltage or heat)."""

    under_voltage: Fact[bool]
    throttled: Fact[bool]


def read_supply(tree: SysFs) -> ThrottleState:
    """The kernel's alarm of under-voltage, and the firmware's bits for it and for throttling."""
    try:
        bits, source = _throttled_bits(tree)
        found = ThrottleState(under_voltage(bits, source), throttled(bits, source))
    except FactUnavailable as error:
        found = ThrottleState(Fact.unknown(str(error)), Fact.unknown(str(error)))
    for chip in tree.names(_HWMON):
        alarm = tree.text(f"{_HWMON}/{chip}/in0_lcrit_alarm")
        if tree.text(f"{_HWMON}/{chip}/name") == "rpi_volt" and alarm in ("0", "1"):
            return ThrottleState(Fact(alarm == "1", f"{_HWMON}/{chip}/in0_lcrit_alarm"), found.throttled)
    return found


def _throttled_bits(tree: SysFs) -> tuple[int, str]:
    """Return the bits and their source. Files come first, since a program costs a process."""
    for path in _firmware_files(tree):
        bits = parse_throttled(tree.text(path) or "")
        if bits is not None:
            return bits, path
    bits = parse_throttled(vcgencmd(tree, "get_throttled"))
    if bits is None:
        raise FactUnavailable("vcgencmd get_throttled prints no bits; is this user in the group video?")
    return bits, "vcgencmd get_throttled"


def _firmware_files(tree: SysFs) -> Iterator[str]:
    for bus in tree.names(_PLATFORM):
        if bus.startswith("soc"):
            for device in tree.names(f"{_PLATFORM}/{bus}"):
                if device.endswith("firmware"):
                    yield f"{_PLATFORM}/{bus}/{device}/get_throttled"
