"""Reads voltage, throttling and temperature: from files of the kernel, else from vcgencmd."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from device_agent.conditions.bounded import CannotTell
from device_agent.conditions.firmware import hottest, parse_temperature, parse_throttled, throttled, under_voltage
from device_agent.conditions.programs import run_program
from device_agent.conditions.tree import Tree
from device_agent.facts import Fact

_HWMON = "sys/class/hwmon"
_ZONES = "sys/class/thermal"
_PLATFORM = "sys/devices/platform"
_NO_PI = "neither the kernel nor vcgencmd says it (both are there on a Raspberry Pi)"


class Supply(NamedTuple):
    """How well the device is supplied."""

    under_voltage: Fact[bool]
    throttled: Fact[bool]


def read_supply(tree: Tree) -> Supply:
    """The kernel's alarm of under-voltage, and the firmware's bits for it and for throttling."""
    try:
        bits, source = _throttled_bits(tree)
        found = Supply(under_voltage(bits, source), throttled(bits, source))
    except CannotTell as error:
        found = Supply(Fact.unknown(str(error)), Fact.unknown(str(error)))
    for chip in tree.names(_HWMON):
        alarm = tree.text(f"{_HWMON}/{chip}/in0_lcrit_alarm")
        if tree.text(f"{_HWMON}/{chip}/name") == "rpi_volt" and alarm in ("0", "1"):
            return Supply(Fact(alarm == "1", f"{_HWMON}/{chip}/in0_lcrit_alarm"), found.throttled)
    return found


def _throttled_bits(tree: Tree) -> tuple[int, str]:
    """Bits and where they were found: a file costs nothing, a program a process."""
    for path in _firmware_files(tree):
        bits = parse_throttled(tree.text(path) or "")
        if bits is not None:
            return bits, path
    bits = parse_throttled(_vcgencmd(tree, "get_throttled"))
    if bits is None:
        raise CannotTell("vcgencmd get_throttled prints no bits; is this user in the group video?")
    return bits, "vcgencmd get_throttled"


def _firmware_files(tree: Tree) -> Iterator[str]:
    for bus in tree.names(_PLATFORM):
        if bus.startswith("soc"):
            for device in tree.names(f"{_PLATFORM}/{bus}"):
                if device.endswith("firmware"):
                    yield f"{_PLATFORM}/{bus}/{device}/get_throttled"


def read_temperature(tree: Tree) -> Fact[float]:
    """That of the processor's hottest part, in degrees Celsius."""
    found = hottest([*_thermal_zones(tree), *_chips(tree)])
    if found.known:
        return found
    celsius = parse_temperature(_vcgencmd(tree, "measure_temp", found.source))
    return found if celsius is None else Fact(celsius, "vcgencmd measure_temp")


def _thermal_zones(tree: Tree) -> Iterator[tuple[str, str, str]]:
    for zone in tree.names(_ZONES):
        place = f"{_ZONES}/{zone}"
        if zone.startswith("thermal_zone"):
            yield place, tree.text(f"{place}/type") or "", tree.text(f"{place}/temp") or ""


def _chips(tree: Tree) -> Iterator[tuple[str, str, str]]:
    for chip in tree.names(_HWMON):
        place = f"{_HWMON}/{chip}"
        yield place, tree.text(f"{place}/name") or "", tree.text(f"{place}/temp1_input") or ""


def _vcgencmd(tree: Tree, word: str, otherwise: str = _NO_PI) -> str:
    program = tree.program("vcgencmd")
    if program is None:
        raise CannotTell(otherwise)
    return run_program([program, word]).text
