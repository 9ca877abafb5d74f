"""The deadline of a round: the one of the settings, or an automatic one from the times of the devices in earlier rounds.

    deadline = 3 * median over the last 10 rounds of (time by which 90 % of the round's updates had arrived)

The first round has 600 s. A round that missed its quorum at its deadline doubles the next deadline, so that a slower fleet
succeeds before `max_failed_rounds`. The deadline is at least 60 s and twice the recruiting deadline, and at most one day.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

from fedpatch.coordinator.rounds.round_phases import RoundPolicy
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.rounds.run_spec import RunSpec

FIRST_DEADLINE_S = 600.0
SHORTEST_DEADLINE_S = 60.0
LONGEST_DEADLINE_S = 86_400.0
DEADLINE_FACTOR = 3.0
DEADLINE_WINDOW = 10
"""The number of rounds whose times count."""

_ROUNDING_S = 1e-6


def policy_of(spec: RunSpec, records: Sequence[RoundRecord]) -> RoundPolicy:
    """Return the policy of the round after `records`; a deadline in the settings stays as it is."""
    if not spec.auto_deadline:
        return spec.policy
    trained = [record for record in records if not record.is_evaluation]
    return replace(spec.policy, deadline_s=auto_deadline_s(trained, spec.policy.recruit_deadline_s))


def evaluation_policy(policy: RoundPolicy) -> RoundPolicy:
    """Return the policy of an evaluate round: it waits for all devices up to the deadline, and one answer is enough."""
    return replace(policy, min_cohort=1, quorum_updates=1, grace_s=policy.deadline_s, unmask_s=None, carries=False)


def auto_deadline_s(records: Sequence[RoundRecord], recruit_deadline_s: float) -> float:
    """Return the deadline of the round after `records`, in seconds from its invitation.

    Equal records give equal deadlines, so that a resumed round keeps the deadline in its work requests.

    Args:
        records: The rounds of the run so far, in order.
        recruit_deadline_s: Time to answer the invitation, in seconds; the deadline is at least twice that.
    """
    shortest_s = max(SHORTEST_DEADLINE_S, 2 * recruit_deadline_s)
    times = [record.report_p90_s for record in records if record.report_p90_s is not None][-DEADLINE_WINDOW:]
    deadline_s = DEADLINE_FACTOR * statistics.median(times) if times else FIRST_DEADLINE_S
    if records and _used_up(records[-1]):
        deadline_s = max(deadline_s, 2 * records[-1].deadline_s)
    return min(max(deadline_s, shortest_s), max(LONGEST_DEADLINE_S, shortest_s))


def _used_up(record: RoundRecord) -> bool:
    """Return whether the round missed its quorum at its deadline."""
    collected_s = record.seconds - record.phase_seconds.select
    return record.failure == "quorum_missed" and 0 < record.deadline_s <= collected_s + _ROUNDING_S
