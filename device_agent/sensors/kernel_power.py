"""Power of the device from the kernel's power supplies: external power, and the charge of its battery.

The attributes are those of /sys/class/power_supply (Linux, Documentation/ABI/testing/sysfs-class-power).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fedpatch.device_agent.sensors.commands import run_program
from fedpatch.device_agent.sensors.device_facts import Fact
from fedpatch.device_agent.sensors.filesystem import SysFs
from fedpatch.device_agent.sensors.power_facts import Power, parse_percent
from fedpatch.device_agent.sensors.timeouts import FactUnavailable

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
_PLACE = "/sys/class/power_supply"


@dataclass(frozen=True, kw_only=True)
class PowerSupply:
    """One power supply that feeds this device; None: unknown.

    `online`: whether power comes in. `energy` and `charge`: the present and the full amount, in µWh and µAh.
    """

    name: str
    stores: bool
    online: bool | None
    status: str
    capacity_percent: float | None
    energy: tuple[float, float] | None
    charge: tuple[float, float] | None


def parse_supply(name: str, attributes: Mapping[str, str]) -> PowerSupply | None:
    """Parse a power supply; None if it feeds another device (a wireless mouse has its own battery), or is not plugged in."""
    kind = attributes.get("type", "")
    if attributes.get("scope", "").lower() == "device" or not kind:
        return None
    stores = kind in _STORES
    if stores and attributes.get("present") == "0":
        return None
    online = _number(attributes.get("online"))
    return PowerSupply(
        name=name,
        stores=stores,
        online=None if online is None else online > 0,
        status=attributes.get("status", ""),
        capacity_percent=parse_percent(attributes.get("capacity")),
        energy=_contents(attributes, "energy"),
        charge=_contents(attributes, "charge"),
    )


def external_power(supplies: Sequence[PowerSupply]) -> Fact[bool]:
    """Return whether power comes in from outside; UNKNOWN where the state of a battery is not known.

    A running machine without any battery has external power, also if an unused socket reports none.
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


def _by_batteries(batteries: Sequence[PowerSupply]) -> Fact[bool]:
    """Decide by the batteries: none of them charges, and no inlet has a state."""
    for one in batteries:
        if one.status == "Discharging":
            return Fact(False, f"{_PLACE}/{one.name}: discharging")
    if all(one.status in ("Full", "Not charging") for one in batteries):
        return Fact(True, f"{_PLACE}/{batteries[0].name}: {batteries[0].status.lower()}")
    return Fact.unknown(f"{_PLACE}/{batteries[0].name} does not say whether it discharges")


def battery_percent(supplies: Sequence[PowerSupply]) -> Fact[float]:
    """Return the charge of all batteries together, weighted by capacity; UNKNOWN where there are none."""
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
    """Parse a whole number in the kernel's form, and no longer than the kernel writes."""
    digits = (text or "").strip()
    bare = digits.removeprefix("-")
    return float(int(digits)) if bare.isascii() and bare.isdigit() and len(bare) <= 18 else None


def read_supplies(tree: SysFs) -> Power:
    """Read /sys/class/power_supply; use systemd-ac-power if batteries do not decide. Raises FactUnavailable, OSError."""
    if not tree.exists("/sys/class"):
        raise FactUnavailable("there is no /sys/class here, so the power source of this device is unknown")
    found = (
        parse_supply(name, {one: text for one in ATTRIBUTES if (text := tree.text(f"{_PLACE}/{name}/{one}"))})
        for name in tree.names(_PLACE)
    )
    supplies = [one for one in found if one is not None]
    external = external_power(supplies)
    program = None if external.known else tree.program("systemd-ac-power")
    if program is not None:
        code = run_program([program]).code
        external = Fact(code == 0, "systemd-ac-power") if code in (0, 1) else external
    return Power(external, battery_percent(supplies))
