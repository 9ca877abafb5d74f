"""The allowance of a day: the rounds, MiB and minutes that the owner gives, against the usage of this day (policy.usage)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from fedpatch.device_agent.policy.objections import Objection
from fedpatch.device_agent.policy.preference_rules import PREFERENCES
from fedpatch.device_agent.policy.quiet_hours import next_midnight
from fedpatch.device_agent.policy.settings import PreferenceSettings
from fedpatch.device_agent.policy.usage import SPENT_WORDS, Usage

_MIB = 2**20


def used_up(
    wants: PreferenceSettings, spent: Usage, local: datetime, expected_bytes: int, *, working: bool
) -> Iterator[Objection]:
    """Yield an objection for each part of the allowance that is used up; it lasts until midnight.

    Args:
        spent: Usage of this day, including the current work.
        local: Aware local time, in a zone that has its clock changes.
        expected_bytes: Bytes that a requested work would move, both ways.
        working: Whether the question is about the current work: a round that has begun does not exceed the rounds of a day.
    """
    for name, words in _in_words(wants, spent, expected_bytes, working=working):
        left_s = (next_midnight(local) - local.astimezone(UTC)).total_seconds()
        yield Objection(
            PREFERENCES[name].condition, SPENT_WORDS if spent.counts_as_spent else words, left_s, exact=True
        )


def _in_words(
    wants: PreferenceSettings, spent: Usage, expected_bytes: int, *, working: bool
) -> Iterator[tuple[str, str]]:
    """Yield the names of the settings that are reached, each with the usage in words."""
    if not working and wants.max_rounds_per_day is not None and spent.rounds >= wants.max_rounds_per_day:
        yield "max_rounds_per_day", f"{spent.rounds} rounds today, max_rounds_per_day is {wants.max_rounds_per_day}"
    limit_mib, spent_mib = wants.max_mib_per_day, spent.traffic_bytes / _MIB
    expected_mib = expected_bytes / _MIB
    full = limit_mib is not None and spent_mib >= limit_mib and not working
    if limit_mib is not None and (full or spent_mib + expected_mib > limit_mib):
        more = f" and {expected_mib:.1f} MiB to come" if expected_bytes else ""
        yield "max_mib_per_day", f"{spent_mib:.1f} MiB today{more}, max_mib_per_day is {limit_mib}"
    if wants.max_minutes_per_day is not None and spent.training_s >= 60.0 * wants.max_minutes_per_day:
        minutes = f"{spent.training_s / 60.0:.0f} minutes of training today"
        yield "max_minutes_per_day", f"{minutes}, max_minutes_per_day is {wants.max_minutes_per_day}"
