"""The conditions that count in each phase of the work: training uses no network, and an upload hardly any power."""

from __future__ import annotations

from collections.abc import Mapping

from fedpatch.device_agent.job.job_effects import JobState
from fedpatch.device_agent.policy.objections import Objection
from fedpatch.shared.wire.reason_codes import Condition

NETWORK_CONDITIONS = frozenset({Condition.NOT_WIFI, Condition.OTHER_SSID, Condition.METERED, Condition.TRAFFIC_SPENT})

# Each other phase has all conditions.
COUNTED: Mapping[JobState, frozenset[Condition]] = {
    JobState.TRAINING: frozenset(Condition) - NETWORK_CONDITIONS,
    JobState.UPLOADING: NETWORK_CONDITIONS | {Condition.PAUSED},
}


def objections_that_count(objections: tuple[Objection, ...], state: JobState) -> tuple[Objection, ...]:
    """Return the objections to the work in its present phase."""
    counted = COUNTED.get(state, frozenset(Condition))
    return tuple(one for one in objections if one.condition in counted)
