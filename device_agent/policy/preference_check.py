"""What an owner's preferences say to the facts: every objection there is to working now, the most lasting first.

A preference that nobody can tell whether it is met counts as met or missed as its owner said (`unknown`). What the work in
hand takes of the device itself is not held against it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from fedpatch.device_agent.policy.daily_budget import Usage
from fedpatch.device_agent.policy.preference_catalogue import RULES, OwnUsage
from fedpatch.device_agent.policy.quiet_hours import QuietHours, next_midnight, parse_quiet_hours
from fedpatch.device_agent.policy.settings import PreferenceSettings, parse_unknown
from fedpatch.device_agent.sensors.device_facts import Facts
from fedpatch.shared.wire.reason_codes import Condition

BATTERY_MARGIN_PERCENT = 5.0
TEMPERATURE_MARGIN_C = 5.0
SPACE_MARGIN = 1.1
LOAD_MARGIN = 0.9

_MIB = 2**20


@dataclass(frozen=True)
class Objection:
    """A preference that is missed. `words` are for the owner alone: they may name values, networks and files.

    Before `retry_after_s` asking again is most likely in vain; where `exact`, it certainly is.
    """

    condition: Condition
    words: str
    retry_after_s: float
    exact: bool = False


@dataclass(frozen=True)
class Preferences:
    """An owner's settings, read; `allow_unknown` has an entry for every preference that asks for a fact."""

    settings: PreferenceSettings
    quiet_hours: QuietHours
    allow_unknown: Mapping[str, bool]

    @classmethod
    def of(cls, settings: PreferenceSettings) -> Preferences:
        """UsageError where the settings were not checked."""
        return cls(settings, parse_quiet_hours(settings.quiet_hours), parse_unknown(settings.unknown))

    def stricter(self) -> Preferences:
        """What must be met to become willing again: a little more, or the device would change its mind at every tremor.

        Never more than can be had.
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


def judge(
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
    """All objections to working now, the most lasting first; none: the device works.

    `local` is the aware local time, in a zone that knows its changes; `spent` what counts today, the work in hand included.
    For an offer, `task` is the name of its task and `expected_bytes` what it will load down and up. `own` is what the agent
    itself takes of the device. With `working` the question is about the work in hand: a round that has begun is not one
    too many.
    """
    wants = preferences.settings
    found = [*_by_facts(preferences, facts, own or OwnUsage()), *_by_clock(preferences, facts, local)]
    found += _by_allowance(wants, spent, local, expected_bytes, working=working)
    if facts.paused.value is not False:
        words = (
            "its owner has paused it"
            if facts.paused.known
            else f"whether it is paused is not known: {facts.paused.source}"
        )
        found.append(Objection(Condition.PAUSED, words, 600.0))
    if task and wants.allowed_tasks and task not in wants.allowed_tasks:
        words = f"task {task} is not among allowed_tasks ({', '.join(wants.allowed_tasks)})"
        found.append(Objection(Condition.TASK_NOT_ALLOWED, words, 3600.0))
    return tuple(sorted(found, key=lambda one: -one.retry_after_s))


def words_for_wire(objections: Sequence[Objection]) -> str:
    """Which preferences are missed, and nothing of what was found."""
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
    if facts.clock_set.value is False:
        # Then nobody knows what time it is, whatever the clock shows.
        if not preferences.allow_unknown["quiet_hours"]:
            words = f"whether it is quiet is not known: the clock is not set ({facts.clock_set.source})"
            yield Objection(Condition.QUIET_HOURS, words, 60.0)
        return
    until = preferences.quiet_hours.until(local)
    if until is not None:
        words = f"quiet hours, until {until.astimezone(local.tzinfo):%a %H:%M}"
        yield Objection(Condition.QUIET_HOURS, words, _seconds(local, until), exact=True)


def _by_allowance(
    wants: PreferenceSettings, spent: Usage, local: datetime, expected_bytes: int, *, working: bool
) -> Iterator[Objection]:
    rest_s = _seconds(local, next_midnight(local))
    if not working and wants.max_rounds_per_day is not None and spent.rounds >= wants.max_rounds_per_day:
        words = f"{spent.rounds} rounds today, max_rounds_per_day is {wants.max_rounds_per_day}"
        yield Objection(Condition.ROUNDS_SPENT, words, rest_s, exact=True)
    limit_mib, spent_mib = wants.max_mib_per_day, spent.traffic_bytes / _MIB
    expected_mib = expected_bytes / _MIB
    full = limit_mib is not None and spent_mib >= limit_mib and not working
    if limit_mib is not None and (full or spent_mib + expected_mib > limit_mib):
        more = f" and {expected_mib:.1f} MiB to come" if expected_bytes else ""
        words = f"{spent_mib:.1f} MiB today{more}, max_mib_per_day is {limit_mib}"
        yield Objection(Condition.TRAFFIC_SPENT, words, rest_s, exact=True)
    if wants.max_minutes_per_day is not None and spent.training_s >= 60.0 * wants.max_minutes_per_day:
        words = f"{spent.training_s / 60.0:.0f} minutes of training today, max_minutes_per_day is {wants.max_minutes_per_day}"
        yield Objection(Condition.MINUTES_SPENT, words, rest_s, exact=True)


def _seconds(local: datetime, until: datetime) -> float:
    return (until - local.astimezone(UTC)).total_seconds()
