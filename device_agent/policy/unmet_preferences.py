"""An owner's preferences, and every objection to working now, the most lasting first.

A preference whose fact is unknown counts as met or missed by the setting `unknown`. preference_rules has the record of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from fedpatch.device_agent.policy.daily_allowance import used_up
from fedpatch.device_agent.policy.objections import PAUSE, PAUSED_WORDS, Objection
from fedpatch.device_agent.policy.preference_rules import FACT_PREFERENCES, PREFERENCES, OwnUsage
from fedpatch.device_agent.policy.quiet_hours import QuietHours, parse_quiet_hours
from fedpatch.device_agent.policy.settings import PreferenceSettings, parse_unknown
from fedpatch.device_agent.policy.usage import Usage
from fedpatch.device_agent.sensors.device_facts import Facts


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
        spent: Usage of this day, including the current work.
        local: Aware local time, in a zone that has its clock changes.
        task: Name of the task of a request, "" for none.
        expected_bytes: Bytes that a requested work would move, both ways.
        own: Resources that the training uses, which do not count against the device.
        working: Whether the question is about the current work: a round that has begun does not exceed the rounds of a day.
    """
    wants = preferences.settings
    quiet = preferences.quiet_hours.objections(
        local, facts.clock_set, PREFERENCES["quiet_hours"], preferences.allow_unknown
    )
    found = [*_by_facts(preferences, facts, own or OwnUsage()), *quiet]
    found += used_up(wants, spent, local, expected_bytes, working=working)
    if facts.paused.value is not False:
        _, _, end = facts.paused.source.partition(", until ")
        words = f"whether it is paused is not known: {facts.paused.source}"
        if facts.paused.known:
            words = f"{PAUSED_WORDS}, until {end}" if end else PAUSED_WORDS
        found.append(replace(PAUSE, words=words))
    if task and wants.allowed_tasks and task not in wants.allowed_tasks:
        words = f"task {task} is not among allowed_tasks ({', '.join(wants.allowed_tasks)})"
        listed = PREFERENCES["allowed_tasks"]
        found.append(Objection(listed.condition, words, listed.retry_after_s))
    return tuple(sorted(found, key=lambda one: -one.retry_after_s))


def _by_facts(preferences: Preferences, facts: Facts, own: OwnUsage) -> Iterator[Objection]:
    for name, rule in FACT_PREFERENCES.items():
        limit = getattr(preferences.settings, name)
        fact = None if limit == rule.off else rule.fact(facts)
        if fact is None:
            continue
        if fact.value is not None:
            value = rule.without_own(fact.value, own)
            if not rule.met(limit, value):
                yield Objection(rule.condition, rule.words(limit=limit, value=value), rule.retry_after_s)
        elif not preferences.allow_unknown[name]:
            words = f'{rule.subject} is not known: {fact.source} (unknown = ["{name}=allow"] would let it work)'
            yield Objection(rule.condition, words, rule.retry_after_s)


def stricter(preferences: Preferences) -> Preferences:
    """Return preferences with the stricter limits of their records: a value that fluctuates at a limit changes nothing."""
    was = preferences.settings
    limits = {name: (getattr(was, name), one) for name, one in FACT_PREFERENCES.items()}
    changed = {name: one.stricter(limit) for name, (limit, one) in limits.items() if limit != one.off}
    return replace(preferences, settings=replace(was, **changed))
