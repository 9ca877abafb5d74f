"""What the kernel's power supplies say together: whether the device is fed from outside, and how full its battery is.

The attributes are those of /sys/class/power_supply (Linux, Documentation/ABI/testing/sysfs-class-power).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from device_agent.facts import Fact

ATTRIBUTES = (
    "type",
    "scope",
    "online",
    "present",
    "status",
    "capacity",
    "energy_now",
    "energy_full",
    "charge_now",
    "charge_full",
)
_STORES = ("Battery", "UPS")
_PLACE = "sys/class/power_supply"


class Power(NamedTuple):
    """The two facts about power, from one source."""

    external: Fact[bool]
    battery_percent: Fact[float]


@dataclass(frozen=True, kw_only=True)
class Supply:
    """One power supply that feeds this device; None stands for what it does not say.

    `online`: whether power comes in. `energy` and `charge`: what is left and what fits, in µWh and µAh.
    """

    name: str
    stores: bool
    online: bool | None
    status: str
    capacity_percent: float | None
    energy: tuple[float, float] | None
    charge: tuple[float, float] | None


def parse_percent(text: str | None) -> float | None:
    """A number from 0 to 100; None for anything else."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) and 0.0 <= value <= 100.0 else None


def parse_supply(name: str, attributes: Mapping[str, str]) -> Supply | None:
    """None for what feeds something else (a wireless mouse has a battery of its own), or is not plugged in."""
    kind = attributes.get("type", "")
    if attributes.get("scope", "").lower() == "device" or not kind:
        return None
    stores = kind in _STORES
    if stores and attributes.get("present") == "0":
        return None
    online = _number(attributes.get("online"))
    return Supply(
        name=name,
        stores=stores,
        online=None if online is None else online > 0,
        status=attributes.get("status", ""),
        capacity_percent=parse_percent(attributes.get("capacity")),
        energy=_contents(attributes, "energy"),
        charge=_contents(attributes, "charge"),
    )


def external_power(supplies: Sequence[Supply]) -> Fact[bool]:
    """Whether power comes in from outside; UNKNOWN where batteries are there and nothing says what they do.

    A machine without any battery runs, so power comes in, whatever a socket says that it does not use.
    """
    inlets = [one for one in supplies if not one.stores]
    batteries = [one for one in supplies if one.stores]
    for one in inlets:
        if one.online:
            return Fact(True, f"{_PLACE}/{one.name}: online")
    for one in batteries:
        if one.status == "Charging":
            return Fact(True, f"{_PLACE}/{one.name}: charging")
    if not batteries:
        return Fact.assumed(True, f"no battery in {_PLACE}, so it runs on mains")
    for one in inlets:
        if one.online is False:
            return Fact(False, f"{_PLACE}/{one.name}: not online")
    return _by_batteries(batteries)


def _by_batteries(batteries: Sequence[Supply]) -> Fact[bool]:
    """None of them charges, and there is no inlet that says anything."""
    for one in batteries:
        if one.status == "Discharging":
            return Fact(False, f"{_PLACE}/{one.name}: discharging")
    if all(one.status in ("Full", "Not charging") for one in batteries):
        return Fact(True, f"{_PLACE}/{batteries[0].name}: {batteries[0].status.lower()}")
    return Fact.unknown(f"{_PLACE}/{batteries[0].name} does not say whether it discharges")


def battery_percent(supplies: Sequence[Supply]) -> Fact[float]:
    """How full all batteries are together, weighted by what they hold; UNKNOWN where there are none."""
    batteries = [one for one in supplies if one.stores]
    if not batteries:
        return Fact.unknown(f"no battery in {_PLACE}")
    names = " and ".join(one.name for one in batteries)
    if len(batteries) == 1 and batteries[0].capacity_percent is not None:
        return Fact(batteries[0].capacity_percent, f"{_PLACE}/{names}: capacity")
    for what in ("energy", "charge"):
        full = _fullness(getattr(one, what) for one in batteries)
        if full is not None:
            return Fact(full, f"{_PLACE}/{names}: {what}")
    shares = [one.capacity_percent for one in batteries if one.capacity_percent is not None]
    if len(shares) == len(batteries):
        return Fact(sum(shares) / len(shares), f"{_PLACE}/{names}: mean capacity")
    return Fact.unknown(f"{_PLACE}/{names}: no capacity, energy or charge that makes sense")


def _fullness(contents: Iterable[tuple[float, float] | None]) -> float | None:
    known = list(contents)
    pairs = [one for one in known if one is not None]
    if len(pairs) < len(known):
        return None
    return min(100.0, 100.0 * sum(now for now, _ in pairs) / sum(full for _, full in pairs))


def _contents(attributes: Mapping[str, str], what: str) -> tuple[float, float] | None:
    now, full = _number(attributes.get(f"{what}_now")), _number(attributes.get(f"{what}_full"))
    return None if now is None or full is None or now < 0 or full <= 0 else (now, full)


def _number(text: str | None) -> float | None:
    """Of whole numbers only, as the kernel writes them, and no longer than those of the kernel."""
    digits = (text or "").strip()
    bare = digits.removeprefix("-")
    return float(int(digits)) if bare.isascii() and bare.isdigit() and len(bare) <= 18 else None
