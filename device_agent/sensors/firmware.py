"""What a Raspberry Pi's firmware and the kernel's sensors say of voltage and heat, as text to facts."""

from __future__ import annotations

import re
from collections.abc import Iterable

from device_agent.facts import Fact

# Bits of `vcgencmd get_throttled` that say what is so now; the same 16 bits higher say what has been so since boot.
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
    """Whether the supply's voltage is too low now."""
    return Fact(bool(bits & _UNDER_VOLTAGE), f"{source}: {bits:#x}")


def throttled(bits: int, source: str) -> Fact[bool]:
    """Whether the processor is slowed down now, for heat or for want of power."""
    return Fact(bool(bits & (_THROTTLED | _SOFT_LIMIT)), f"{source}: {bits:#x}")


def parse_temperature(text: str) -> float | None:
    """What `vcgencmd measure_temp` prints, in degrees Celsius; None for anything else."""
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
    """Sensors that are off say -274, 0 K or 255 degrees."""
    return celsius if _COLDEST_C <= celsius <= _HOTTEST_C else None
