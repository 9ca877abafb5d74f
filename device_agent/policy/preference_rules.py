"""The rule of each preference: the fact that it depends on, when it is met, and the words for an objection.

Resources that the agent itself uses do not count against the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from fedpatch.device_agent.policy.settings import PreferenceSettings
from fedpatch.device_agent.sensors.device_facts import Fact, Facts
from fedpatch.shared.wire.reason_codes import Condition, LinkKind

# The broker is on this device or reached by cable: neither link can be worse than a WiFi network.
_BETTER_THAN_WIFI = (LinkKind.LOOPBACK, LinkKind.ETHERNET)


@dataclass(frozen=True)
class OwnUsage:
    """Resources that the training uses: load per CPU, and memory in MiB."""

    load_per_cpu: float = 0.0
    memory_mib: float = 0.0


class Answer(NamedTuple):
    """Whether a preference is met (None: unknown), the fact it depends on, and the words for an objection."""

    met: bool | None
    fact: Fact[Any]
    words: str = ""


@dataclass(frozen=True)
class PreferenceRule:
    """Rules for the check of a preference. `answer` gives None where the owner has not set it; `subject` names the fact."""

    condition: Condition
    retry_after_s: float
    subject: str
    answer: Callable[[PreferenceSettings, Facts, OwnUsage], Answer | None]


def _charging(wants: PreferenceSettings, facts: Facts, own: OwnUsage) -> Answer | None:
    power = facts.external_power
    return Answer(power.value, power, "it runs on its battery") if wants.charging else None


def _battery(wants: PreferenceSettings, facts: Facts, own: OwnUsage) -> Answer | None:
    fact = facts.battery_percent
    if not wants.min_battery:
        return None
    if fact.value is None:
        return Answer(None, fact)
    return Answer(
        fact.value >= wants.min_battery, fact, f"the battery has {fact.value:.0f} %, it must have {wants.min_battery} %"
    )


def _supply(wants: PreferenceSettings, facts: Facts, own: OwnUsage) -> Answer | None:
    fact = facts.under_voltage
    if wants.under_voltage_ok:
        return None
    return Answer(None if fact.value is None else not fact.value, fact, "its power supply is too weak (under-voltage)")


def _unmetered(wants: PreferenceSettings, facts: Facts, own: OwnUsage) -> Answer | None:
    fact = facts.metered
    # The connection to a broker on this device costs nothing.
    if not wants.unmetered or facts.link.value is LinkKind.LOOPBACK:
        return None
    return Answer(None if fact.value is None else not fact.value, fact, "its connection is metered")


def _wifi(wants: PreferenceSettings, facts: Facts, own: OwnUsage) -> Answer | None:
    link = facts.link
    if not wants.wifi:
        return None
    if link.value is None:
        return Answer(None, link)
    met = link.value is LinkKind.WIFI or link.value in _BETTER_THAN_WIFI
    return Answer(met, link, f"its connection is {link.value}, neither WiFi nor Ethernet")


def _network(wants: PreferenceSettings, facts: Facts, own: OwnUsage) -> Answer | None:
    link, ssid = facts.link, facts.ssid
    if not wants.ssids or link.value in _BETTER_THAN_WIFI:
        return None
    if link.value in (LinkKind.CELLULAR, LinkKind.OTHER):
        return Answer(False, link, f"its connection is {link.value}, and none of ssids")
    if ssid.value is None:
        return Answer(None, ssid)
    return Answer(ssid.value in wants.ssids, ssid, f"the WiFi network {ssid.value!r} is not among ssids")


def _cool(wants: PreferenceSettings, facts: Facts, own: OwnUsage) -> Answer | None:
    fact = facts.temperature_c
    if wants.max_temperature is None:
        return None
    if fact.value is None:
        return Answer(None, fact)
    words = f"it has {fact.value:.0f} °C, it may have {wants.max_temperature:g} °C"
    return Answer(fact.value <= wants.max_temperature, fact, words)


def _idle(wants: PreferenceSettings, facts: Facts, own: OwnUsage) -> Answer | None:
    fact = facts.load_per_cpu
    if wants.max_load is None:
        return None
    if fact.value is None:
        return Answer(None, fact)
    load = max(0.0, fact.value - own.load_per_cpu)
    return Answer(load <= wants.max_load, fact, f"it has a load of {load:.2g} per CPU, max_load is {wants.max_load:g}")


def _memory(wants: PreferenceSettings, facts: Facts, own: OwnUsage) -> Answer | None:
    fact = facts.free_memory_mib
    if not wants.min_free_memory_mib:
        return None
    if fact.value is None:
        return Answer(None, fact)
    free = fact.value + own.memory_mib
    words = f"{free:.0f} MiB of memory are available, there must be {wants.min_free_memory_mib} MiB"
    return Answer(free >= wants.min_free_memory_mib, fact, words)


def _disk(wants: PreferenceSettings, facts: Facts, own: OwnUsage) -> Answer | None:
    fact = facts.free_disk_mib
    if not wants.min_free_disk_mib:
        return None
    if fact.value is None:
        return Answer(None, fact)
    words = f"{fact.value:.0f} MiB of disk are free, there must be {wants.min_free_disk_mib} MiB"
    return Answer(fact.value >= wants.min_free_disk_mib, fact, words)


def _clock(wants: PreferenceSettings, facts: Facts, own: OwnUsage) -> Answer | None:
    clock = facts.clock_set
    return Answer(clock.value, clock, "its clock was not set since it started") if wants.clock_set else None


# With retry times: a battery takes long to charge, a moment of load is soon over.
RULES: Mapping[str, PreferenceRule] = {
    "charging": PreferenceRule(Condition.NOT_CHARGING, 600.0, "whether it has external power", _charging),
    "min_battery": PreferenceRule(Condition.LOW_BATTERY, 900.0, "the battery's charge", _battery),
    "under_voltage_ok": PreferenceRule(Condition.UNDER_VOLTAGE, 300.0, "whether its power supply is too weak", _supply),
    "unmetered": PreferenceRule(Condition.METERED, 600.0, "whether its connection is metered", _unmetered),
    "wifi": PreferenceRule(Condition.NOT_WIFI, 600.0, "by what it is connected", _wifi),
    "ssids": PreferenceRule(Condition.OTHER_SSID, 600.0, "the WiFi network", _network),
    "max_temperature": PreferenceRule(Condition.TOO_HOT, 120.0, "the temperature", _cool),
    "max_load": PreferenceRule(Condition.BUSY, 60.0, "the load", _idle),
    "min_free_memory_mib": PreferenceRule(Condition.LOW_MEMORY, 120.0, "the available memory", _memory),
    "min_free_disk_mib": PreferenceRule(Condition.LOW_DISK, 900.0, "the free space", _disk),
    "clock_set": PreferenceRule(Condition.CLOCK_NOT_SET, 60.0, "whether the clock was set", _clock),
}
