"""The times at which the facts about the device are checked: at each request, each second during work, else each 30 s."""

from __future__ import annotations

from fedpatch.device_agent.job.job_effects import JobState
from fedpatch.device_agent.job.job_state_machine import Job

CHECK_AT_WORK_S = 1.0
CHECK_IDLE_S = 30.0
FRESH_S = 1.0
"""Older facts are checked again before a request is answered."""


def are_fresh(seen_at: float, now: float) -> bool:
    """Return whether a request is answered by facts of the time `seen_at`, both in monotonic seconds."""
    return now - seen_at <= FRESH_S


def next_check(job: Job, seen_at: float, changes: tuple[float | None, ...]) -> float:
    """Return the time of the next check, in monotonic seconds.

    Args:
        job: The job, which is only read.
        seen_at: Time of the last check.
        changes: Times at which time alone may change the decision; None: never.
    """
    # An update may wait for days until the coordinator requests it.
    rests = job.key is None or (job.state is JobState.UPLOADING and not job.awaits_clearance)
    wanted = [seen_at + (CHECK_IDLE_S if rests else CHECK_AT_WORK_S)]
    # A check leads to the next: without a pause between them, a deadline in the past would keep the loop busy.
    soonest = seen_at + CHECK_AT_WORK_S
    return min([*wanted, *(max(one, soonest) for one in changes if one is not None)])
