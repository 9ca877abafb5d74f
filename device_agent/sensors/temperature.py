"""Reads the temperature of the processor: from the kernel's sensors, else from vcgencmd."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from fedpatch.device_agent.sensors.device_facts import Fact
from fedpatch.device_agent.sensors.filesystem import SysFs
from fedpatch.device_agent.sensors.vcgencmd import vcgencmd

_DEGREES = re.compile(r"temp=(-?[0-9]{1,3}(?:\.[0-9]{1,3})?)'C")
_PROCESSOR = re.compile(r"(cpu|soc|x86_pkg|package|big|little|center)", re.IGNORECASE)
_CHIPS = ("coretemp", "k10temp", "zenpower", "cpu_thermal")
_COLDEST_C, _HOTTEST_C = -55.0, 150.0


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


def read_temperature(tree: SysFs) -> Fact[float]:
    """Return the temperature of the processor's hottest part, in degrees Celsius."""
    found = hottest([*_thermal_zones(tree), *_chips(tree)])
    if found.known:
        return found
    celsius = parse_temperature(vcgencmd(tree, "measure_temp", found.source))
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
