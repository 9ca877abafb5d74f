"""Reads voltage, throttling and temperature: from files of the kernel, else from vcgencmd.

The text of a Raspberry Pi's firmware and of the kernel's sensors becomes facts about voltage and heat.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from fedpatch.device_agent.sensors.commands import run_program
from fedpatch.device_agent.sensors.device_facts import Fact
from fedpatch.device_agent.sensors.filesystem import SysFs
from fedpatch.device_agent.sensors.timeouts import FactUnavailable

# Bits of `vcgencmd get_throttled` for the present state; 16 bits higher they are for the time since boot.
_UNDER_VOLTAGE, _THROTTLED, _SOFT_LIMIT = 1 << 0, 1 << 2, 1 << 3
_BITS = re.compile(r"(?:throttled=)?(?:0x)?([0-9A-Fa-f]{1,8})")
_DEGREES = re.compile(r"temp=(-?[0-9]{1,3}(?:\.[0-9]{1,3})?)'C")
_PROCESSOR = re.compile(r"(cpu|soc|x86_pkg|package|big|little|center)", re.IGNORECASE)
_CHIPS = ("coretemp", "k10temp", "zenpower", "cpu_thermal")
_COLDEST_C, _HOTTEST_C = -55.0, 150.0


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


def parse_temperature(text: str) -> float | None:
    """Parse the output of `vcgencmd measure_temp`, in degrees Celsius; None for anything else."""
    found = _DEGREES.fullmatch(text.strip())
    return _plausible(float(found[1])) if found else None


def hottest(sensors: Iterable[tuple[str, str, str]]) -> Fact[float]:
    """The hottest sensor of the processor. `sensors`: place, type or chip name, and thousandths of a degree as text."""
    found = [
        (celsius, place)
        for place, kind, text in sensors
        if (kind in _CHIPS or _PROCESSOR.match(kind)) and (celsius := _from_thousandths(text)) is not None
    ]
    if not found:
        return Fact.unknown("no thermal zone or sensor of the processor")
    celsius, place = max(found)
    return Fact(celsius, place)


def _from_thousandths(text: str) -> float | None:
    bare = text.removeprefix("-")
    return _plausible(int(text) / 1000) if bare.isascii() and bare.isdigit() and len(bare) <= 9 else None


def _plausible(celsius: float) -> float | None:
    """Sensors that are off report -274, 0 K or 255 degrees."""
    return celsius if _COLDEST_C <= celsius <= _HOTTEST_C else None


_HWMON = "/sys/class/hwmon"
_ZONES = "/sys/class/thermal"
_PLATFORM = "/sys/devices/platform"
_NO_PI = "neither the kernel nor vcgencmd says it (both are there on a Raspberry Pi)"


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
    bits = parse_throttled(_vcgencmd(tree, "get_throttled"))
    if bits is None:
        raise FactUnavailable("vcgencmd get_throttled prints no bits; is this user in the group video?")
    return bits, "vcgencmd get_throttled"


def _firmware_files(tree: SysFs) -> Iterator[str]:
    for bus in tree.names(_PLATFORM):
        if bus.startswith("soc"):
            for device in tree.names(f"{_PLATFORM}/{bus}"):
                if device.endswith("firmware"):
                    yield f"{_PLATFORM}/{bus}/{device}/get_throttled"


def read_temperature(tree: SysFs) -> Fact[float]:
    """Return the temperature of the processor's hottest part, in degrees Celsius."""
    found = hottest([*_thermal_zones(tree), *_chips(tree)])
    if found.known:
        return found
    celsius = parse_temperature(_vcgencmd(tree, "measure_temp", found.source))
    return found if celsius is None else Fact(celsius, "vcgencmd measure_temp")


def _thermal_zones(tree: SysFs) -> Iterator[tuple[str, str, str]]:
    for zone in tree.names(_ZONES):
        place = f"{_ZONES}/{zone}"
        if zone.startswith("thermal_zone"):
            yield place, tree.text(f"{place}/type") or "", tree.text(f"{place}/temp") or ""


def _chips(tree: SysFs) -> Iterator[tuple[str, str, str]]:
    for chip in tree.names(_HWMON):
        place = f"{_HWMON}/{chip}"
        yield place, tree.text(f"{place}/name") or "", tree.text(f"{place}/temp1_input") or ""


def _vcgencmd(tree: SysFs, word: str, otherwise: str = _NO_PI) -> str:
    program = tree.program("vcgencmd")
    if program is None:
        raise FactUnavailable(otherwise)
    return run_program([program, word]).text
