"""An owner's preferences: the fact that each depends on, and every objection to working now, the most lasting first.

A preference whose fact is unknown counts as met or missed by the setting `unknown`. Resources that the agent itself uses do
not count against the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from fedpatch.device_agent.policy.quiet_hours import HORIZON, QuietHours, next_midnight, parse_quiet_hours
from fedpatch.device_agent.policy.settings import PreferenceSettings, parse_unknown
from fedpatch.device_agent.policy.usage import SPENT_WORDS, Usage
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


BATTERY_MARGIN_PERCENT = 5.0
TEMPERATURE_MARGIN_C = 5.0
SPACE_MARGIN = 1.1
LOAD_MARGIN = 0.9

PAUSED_WORDS = "its owner has paused it"


def besides_pause(unwilling: Iterable[object]) -> list[str]:
    """Return the words of objections in status.json without those of a pause.

    The agent notices a new or an ended pause at its next look, up to 30 s later; another process reads the pause itself.
    """
    return [str(words) for words in unwilling if not str(words).startswith(PAUSED_WORDS)]


_MIB = 2**20


@dataclass(frozen=True)
class Objection:
    """A preference that is not met.

    Attributes:
        condition: The preference, as the coordinator knows it.
        words: Reason for the owner alone; it may name values, networks and files.
        retry_after_s: Seconds for which another request would most likely be declined.
        exact: Whether it would certainly be declined until then, as during quiet hours.
    """

    condition: Condition
    words: str
    retry_after_s: float
    exact: bool = False


@dataclass(frozen=True)
class Preferences:
    """An owner's settings, parsed; `allow_unknown` has an entry for every preference that depends on a fact."""

    settings: PreferenceSettings
    quiet_hours: QuietHours
    allow_unknown: Mapping[str, bool]

    @classmethod
    def of(cls, settings: PreferenceSettings) -> Preferences:
        """Parse checked settings. UsageError where they were not checked."""
        return cls(settings, parse_quiet_hours(settings.quiet_hours), parse_unknown(settings.unknown))

    def stricter(self) -> Preferences:
        """Return slightly stricter preferences to become willing again: a value that fluctuates at a limit changes nothing.

        No limit becomes impossible to meet.
        """
        was = self.settings
        battery_margin = min(BATTERY_MARGIN_PERCENT, (100 - was.min_battery) / 2) if was.min_battery else 0
        settings = replace(
            was,
            min_battery=int(was.min_battery + battery_margin),
            max_temperature=None if was.max_temperature is None else was.max_temperature - TEMPERATURE_MARGIN_C,
            max_load=None if was.max_load is None else was.max_load * LOAD_MARGIN,
            min_free_memory_mib=int(was.min_free_memory_mib * SPACE_MARGIN),
            min_free_disk_mib=int(was.min_free_disk_mib * SPACE_MARGIN),
        )
        return replace(self, settings=settings)


def unmet_preferences(
    preferences: Preferences,
    facts: Facts,
    spent: Usage,
    *,
    local: datetime,
    task: str = "",
    expected_bytes: int = 0,
    own: OwnUsage | None = None,
    working: bool = False,
) -> tuple[Objection, ...]:
    """Find all objections to working now, the most lasting first; none: the device works.

    Args:
        preferences: The owner's preferences.
        facts: The facts of this moment.
        spent: Usage of this day, including the current work.
        local: Aware local time, in a zone that has its clock changes.
        task: Name of the task of a request, "" for none.
        expected_bytes: Bytes that a requested work would move, both ways.
        own: Resources that the training uses, which do not count against the device.
        working: Whether the question is about the current work: a round that has begun does not exceed the rounds of a day.
    """
    wants = preferences.settings
    found = [*_by_facts(preferences, facts, own or OwnUsage()), *_by_clock(preferences, facts, local)]
    found += _by_allowance(wants, spent, local, expected_bytes, working=working)
    if facts.paused.value is not False:
        _, _, end = facts.paused.source.partition(", until ")
        words = f"whether it is paused is not known: {facts.paused.source}"
        if facts.paused.known:
            words = f"{PAUSED_WORDS}, until {end}" if end else PAUSED_WORDS
        found.append(Objection(Condition.PAUSED, words, 600.0))
    if task and wants.allowed_tasks and task not in wants.allowed_tasks:
        words = f"task {task} is not among allowed_tasks ({', '.join(wants.allowed_tasks)})"
        found.append(Objection(Condition.TASK_NOT_ALLOWED, words, 3600.0))
    return tuple(sorted(found, key=lambda one: -one.retry_after_s))


PAUSE = Objection(Condition.PAUSED, PAUSED_WORDS, 600.0)
"""The objection of a device that its owner has paused."""


def words_for_wire(objections: Sequence[Objection]) -> str:
    """Name the preferences that are not met, without any measured value."""
    return ", ".join(dict.fromkeys(one.condition.replace("_", " ") for one in objections))


def _by_facts(preferences: Preferences, facts: Facts, own: OwnUsage) -> Iterator[Objection]:
    for name, rule in RULES.items():
        answer = rule.answer(preferences.settings, facts, own)
        if answer is None or answer.met:
            continue
        if answer.met is False:
            yield Objection(rule.condition, answer.words, rule.retry_after_s)
        elif not preferences.allow_unknown[name]:
            words = f'{rule.subject} is not known: {answer.fact.source} (unknown = ["{name}=allow"] would let it work)'
            yield Objection(rule.condition, words, rule.retry_after_s)


def _by_clock(preferences: Preferences, facts: Facts, local: datetime) -> Iterator[Objection]:
    if not preferences.quiet_hours.spans:
        return
    if facts.clock_set.value is False and not preferences.allow_unknown["quiet_hours"]:
        words = f"whether it is quiet is not known: the clock is not set ({facts.clock_set.source})"
        yield Objection(Condition.QUIET_HOURS, words, 60.0)
        return
    until = preferences.quiet_hours.until(local)
    if until is not None:
        words = f"quiet hours, until {until.astimezone(local.tzinfo):%a %H:%M}"
        if until - local >= HORIZON:  # the day of the week would name today
            words = f"quiet hours, which do not end within {HORIZON.days} days"
        yield Objection(Condition.QUIET_HOURS, words, _seconds(local, until), exact=True)


def _by_allowance(
    wants: PreferenceSettings, spent: Usage, local: datetime, expected_bytes: int, *, working: bool
) -> Iterator[Objection]:
    used_up: list[tuple[Condition, str]] = []
    if not working and wants.max_rounds_per_day is not None and spent.rounds >= wants.max_rounds_per_day:
        words = f"{spent.rounds} rounds today, max_rounds_per_day is {wants.max_rounds_per_day}"
        used_up.append((Condition.ROUNDS_SPENT, words))
    limit_mib, spent_mib = wants.max_mib_per_day, spent.traffic_bytes / _MIB
    expected_mib = expected_bytes / _MIB
    full = limit_mib is not None and spent_mib >= limit_mib and not working
    if limit_mib is not None and (full or spent_mib + expected_mib > limit_mib):
        more = f" and {expected_mib:.1f} MiB to come" if expected_bytes else ""
        words = f"{spent_mib:.1f} MiB today{more}, max_mib_per_day is {limit_mib}"
        used_up.append((Condition.TRAFFIC_SPENT, words))
    if wants.max_minutes_per_day is not None and spent.training_s >= 60.0 * wants.max_minutes_per_day:
        words = f"{spent.training_s / 60.0:.0f} minutes of training today, max_minutes_per_day is {wants.max_minutes_per_day}"
        used_up.append((Condition.MINUTES_SPENT, words))
    for condition, words in used_up:
        known = SPENT_WORDS if spent.counts_as_spent else words
        yield Objection(condition, known, _seconds(local, next_midnight(local)), exact=True)


def _seconds(local: datetime, until: datetime) -> float:
    return (until - local.astimezone(UTC)).total_seconds()
