"""The record of each preference: all that follows from it, beside its setting in policy.settings.

From the records follow the objections (policy.unmet_preferences), the defaults for unknown facts (policy.settings), the margins
of a device that becomes willing again (policy.return_margins), and the table of docs/reference/preferences.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from operator import attrgetter, ge, le
from typing import Any

from fedpatch.device_agent.policy.return_margins import LOAD_MARGIN, TEMPERATURE_MARGIN_C, more_battery, more_space
from fedpatch.device_agent.sensors.device_facts import Fact, Facts
from fedpatch.shared.wire.reason_codes import Condition, LinkKind

# The broker is on this device or reached by cable: neither link can be worse than a WiFi network.
_BETTER_THAN_WIFI = (LinkKind.LOOPBACK, LinkKind.ETHERNET)


@dataclass(frozen=True)
class OwnUsage:
    """Resources that the training uses: load per CPU, and memory in MiB. They do not count against the device."""

    load_per_cpu: float = 0.0
    memory_mib: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Preference:
    """A preference.

    Attributes:
        condition: Its word for the coordinator.
        requires: The requirement, as the documentation words it.
        allowed_if_unknown: Whether a device works while it is unknown if the preference is met. Work is allowed if the
            preference is about a problem that many devices cannot measure and rarely have, and denied if it could cost the
            owner money or sleep. None: no fact decides.
        retry_after_s: Seconds until another request may be accepted: a battery takes long to charge, a moment of load is soon
            over.
        ends: The end of the objection in words, where the clock decides it in place of `retry_after_s`; else empty.
    """

    condition: Condition
    requires: str
    allowed_if_unknown: bool | None = None
    retry_after_s: float = 0.0
    ends: str = ""


@dataclass(frozen=True, kw_only=True)
class FactPreference(Preference):
    """A preference about a fact of the device; `limit` is the value of its setting.

    Attributes:
        off: The limit that requires nothing.
        fact: Returns the fact that decides; None where the preference does not apply.
        subject: The fact in words.
        met: Takes limit and value, and returns whether the preference is met.
        words: Formats `limit` and `value` of an objection for the owner.
        without_own: Returns the value without the resources that the training uses.
        stricter: Returns the limit of a device that becomes willing again: a value that fluctuates changes nothing. No limit
            becomes impossible to meet.
    """

    off: Any
    fact: Callable[[Facts], Fact[Any] | None]
    subject: str
    met: Callable[[Any, Any], bool]
    words: Callable[..., str]
    without_own: Callable[[Any, OwnUsage], Any] = lambda value, own: value
    stricter: Callable[[Any], Any] = lambda limit: limit


def _is(limit: Any, value: bool) -> bool:
    return value


def _is_not(limit: Any, value: bool) -> bool:
    return not value


def _metered(facts: Facts) -> Fact[bool] | None:
    """The connection to a broker on this device costs nothing."""
    return None if facts.link.value is LinkKind.LOOPBACK else facts.metered


def _network(facts: Facts) -> Fact[Any] | None:
    """The network's name; on a mobile network, which has none, the kind of the link."""
    if facts.link.value in _BETTER_THAN_WIFI:
        return None
    return facts.link if facts.link.value in (LinkKind.CELLULAR, LinkKind.OTHER) else facts.ssid


def _network_words(limit: tuple[str, ...], value: str) -> str:
    if isinstance(value, LinkKind):
        return f"its connection is {value}, and none of ssids"
    return f"the WiFi network {value!r} is not among ssids"


ALLOW, DENY = True, False

FACT_PREFERENCES: Mapping[str, FactPreference] = {
    "charging": FactPreference(
        condition=Condition.NOT_CHARGING,
        requires="external power",
        allowed_if_unknown=DENY,
        retry_after_s=600.0,
        off=False,
        fact=attrgetter("external_power"),
        subject="whether it has external power",
        met=_is,
        words="it runs on its battery".format,
    ),
    "min_battery": FactPreference(
        condition=Condition.LOW_BATTERY,
        requires="at least this charge",
        allowed_if_unknown=ALLOW,
        retry_after_s=900.0,
        off=0,
        fact=attrgetter("battery_percent"),
        subject="the battery's charge",
        met=le,
        words="the battery has {value:.0f} %, it must have {limit} %".format,
        stricter=more_battery,
    ),
    "under_voltage_ok": FactPreference(
        condition=Condition.UNDER_VOLTAGE,
        requires="if false, sufficient supply",
        allowed_if_unknown=ALLOW,
        retry_after_s=300.0,
        off=True,
        fact=attrgetter("under_voltage"),
        subject="whether its power supply is too weak",
        met=_is_not,
        words="its power supply is too weak (under-voltage)".format,
    ),
    "unmetered": FactPreference(
        condition=Condition.METERED,
        requires="an unmetered connection",
        allowed_if_unknown=DENY,
        retry_after_s=600.0,
        off=False,
        fact=_metered,
        subject="whether its connection is metered",
        met=_is_not,
        words="its connection is metered".format,
    ),
    "wifi": FactPreference(
        condition=Condition.NOT_WIFI,
        requires="WiFi or Ethernet",
        allowed_if_unknown=DENY,
        retry_after_s=600.0,
        off=False,
        fact=attrgetter("link"),
        subject="by what it is connected",
        met=lambda limit, value: value in (LinkKind.WIFI, *_BETTER_THAN_WIFI),
        words="its connection is {value}, neither WiFi nor Ethernet".format,
    ),
    "ssids": FactPreference(
        condition=Condition.OTHER_SSID,
        requires="one of these WiFi networks",
        allowed_if_unknown=DENY,
        retry_after_s=600.0,
        off=(),
        fact=_network,
        subject="the WiFi network",
        met=lambda limit, value: not isinstance(value, LinkKind) and value in limit,
        words=_network_words,
    ),
    "max_temperature": FactPreference(
        condition=Condition.TOO_HOT,
        requires="no hotter processor",
        allowed_if_unknown=ALLOW,
        retry_after_s=120.0,
        off=None,
        fact=attrgetter("temperature_c"),
        subject="the temperature",
        met=ge,
        words="it has {value:.0f} °C, it may have {limit:g} °C".format,
        stricter=lambda limit: limit - TEMPERATURE_MARGIN_C,
    ),
    "max_load": FactPreference(
        condition=Condition.BUSY,
        requires="no higher load per CPU",
        allowed_if_unknown=ALLOW,
        retry_after_s=60.0,
        off=None,
        fact=attrgetter("load_per_cpu"),
        subject="the load",
        met=ge,
        words="it has a load of {value:.2g} per CPU, max_load is {limit:g}".format,
        without_own=lambda value, own: max(0.0, value - own.load_per_cpu),
        stricter=lambda limit: limit * LOAD_MARGIN,
    ),
    "min_free_memory_mib": FactPreference(
        condition=Condition.LOW_MEMORY,
        requires="this available memory",
        allowed_if_unknown=ALLOW,
        retry_after_s=120.0,
        off=0,
        fact=attrgetter("free_memory_mib"),
        subject="the available memory",
        met=le,
        words="{value:.0f} MiB of memory are available, there must be {limit} MiB".format,
        without_own=lambda value, own: value + own.memory_mib,
        stricter=more_space,
    ),
    "min_free_disk_mib": FactPreference(
        condition=Condition.LOW_DISK,
        requires="this free space for the state directory",
        allowed_if_unknown=ALLOW,
        retry_after_s=900.0,
        off=0,
        fact=attrgetter("free_disk_mib"),
        subject="the free space",
        met=le,
        words="{value:.0f} MiB of disk are free, there must be {limit} MiB".format,
        stricter=more_space,
    ),
    "clock_set": FactPreference(
        condition=Condition.CLOCK_NOT_SET,
        requires="a clock set since boot",
        allowed_if_unknown=DENY,
        retry_after_s=60.0,
        off=False,
        fact=attrgetter("clock_set"),
        subject="whether the clock was set",
        met=_is,
        words="its clock was not set since it started".format,
    ),
}

_MIDNIGHT = "midnight"

PREFERENCES: Mapping[str, Preference] = {
    **FACT_PREFERENCES,
    # Unknown while the clock is not set.
    "quiet_hours": Preference(
        condition=Condition.QUIET_HOURS,
        requires="a local time outside them",
        allowed_if_unknown=DENY,
        retry_after_s=60.0,
        ends="their end",
    ),
    "max_rounds_per_day": Preference(condition=Condition.ROUNDS_SPENT, requires="fewer rounds today", ends=_MIDNIGHT),
    "max_mib_per_day": Preference(
        condition=Condition.TRAFFIC_SPENT, requires="room for more traffic today", ends=_MIDNIGHT
    ),
    "max_minutes_per_day": Preference(
        condition=Condition.MINUTES_SPENT, requires="less training today", ends=_MIDNIGHT
    ),
    "allowed_tasks": Preference(condition=Condition.TASK_NOT_ALLOWED, requires="a listed task", retry_after_s=3600.0),
}

ALLOWED_IF_UNKNOWN: Mapping[str, bool] = {
    name: one.allowed_if_unknown for name, one in PREFERENCES.items() if one.allowed_if_unknown is not None
}
"""True where a device works while a fact is unknown, by the preference that depends on it; the setting `unknown` changes it."""
