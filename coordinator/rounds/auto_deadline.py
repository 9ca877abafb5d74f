"""The deadline of a round where the settings name none: from the times that the devices took in earlier rounds.

    deadline = 3 * median over the last 10 rounds of (time by which 90 % of the round's updates were in)

The first round has 600 s. A round that missed its quorum and had used up its deadline doubles the next deadline, so that a
fleet that needs longer gets there before `max_failed_rounds`. The bounds are 60 s, or twice the recruiting deadline where
that is longer, and one day.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

from fedpatch.coordinator.rounds.round_phases import RoundPolicy
from fedpatch.coordinator.rounds.run_records import RoundRecord
from fedpatch.coordinator.rounds.run_spec import RunSpec

FIRST_DEADLINE_S = 600.0
SHORTEST_DEADLINE_S = 60.0
LONGEST_DEADLINE_S = 86_400.0
DEADLINE_FACTOR = 3.0
DEADLINE_WINDOW = 10
"""Rounds whose times count."""

_ROUNDING_S = 1e-6


def policy_of(spec: RunSpec, records: Sequence[RoundRecord]) -> RoundPolicy:
    """The policy of the round that follows `records`: a deadline that was set stays as it is."""
    if not spec.auto_deadline:
        return spec.policy
    return replace(spec.policy, deadline_s=auto_deadline_s(records, spec.policy.recruit_deadline_s))


def auto_deadline_s(records: Sequence[RoundRecord], recruit_deadline_s: float) -> float:
    """Seconds from its invitation that the round after `records` may take. The same records give the same deadline.

    So a coordinator that takes up an open round goes on with the deadline that the devices were given.

    Args:
        records: The rounds of the run so far, in order.
        recruit_deadline_s: Seconds that devices have to answer; the deadline is at least twice that.

    Returns:
        The deadline in seconds.
    """
    shortest_s = max(SHORTEST_DEADLINE_S, 2 * recruit_deadline_s)
    times = [one.report_p90_s for one in records if one.report_p90_s is not None][-DEADLINE_WINDOW:]
    deadline_s = DEADLINE_FACTOR * statistics.median(times) if times else FIRST_DEADLINE_S
    if records and _used_up(records[-1]):
        deadline_s = max(deadline_s, 2 * records[-1].deadline_s)
    return min(max(deadline_s, shortest_s), max(LONGEST_DEADLINE_S, shortest_s))


def _used_up(record: RoundRecord) -> bool:
    """Whether the round missed its quorum because its time was up."""
    collected_s = record.seconds - record.phase_seconds.select
    return record.failure == "quorum_missed" and 0 < record.deadline_s <= collected_s + _ROUNDING_S
