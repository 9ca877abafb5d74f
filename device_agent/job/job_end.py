"""The end of a job: with an outcome, or given up with `Failed`."""

from __future__ import annotations

from msgspec import UNSET, UnsetType

from fedpatch.device_agent.job.job_context import JobContext
from fedpatch.device_agent.job.job_effects import Effect, EndJob, JobKey, JobState, ReportFailure, StopTraining
from fedpatch.device_agent.job.job_events import EffectFailed, MessageReceived
from fedpatch.shared.wire.messages import Cancel, Failed
from fedpatch.shared.wire.reason_codes import Condition, FailCause, FailReason


def end_job(
    job: JobContext,
    outcome: str,
    *,
    gave_up: bool = False,
    rest_s: float = 0.0,
    committed: JobKey | None = None,
    finished: JobKey | None = None,
) -> list[Effect]:
    """End the current work.

    Args:
        outcome: As for EndJob, like the other parameters.
        rest_s: Announced seconds without work.
        committed: The work whose update is committed.
        finished: The work that is finished.
    """
    stop: list[Effect] = [StopTraining()] if job.state is JobState.TRAINING else []
    job.state, job.paused, job.awaits_clearance = JobState.IDLE, False, False
    job.vector_waits = False
    job.key = job.request = job.plan = job.download = job.upload = job.training_key = None
    return [*stop, EndJob(outcome, gave_up, rest_s, committed, finished)]


def give_up(
    job: JobContext,
    reason: FailReason,
    detail: str,
    condition: Condition | None = None,
    cause: FailCause | UnsetType = UNSET,
) -> list[Effect]:
    """End the current work with `Failed`.

    Args:
        reason: Reason for the coordinator.
        detail: Reason in words, which stays on the device.
        condition: The preference of the owner that is not met, where that is the reason.
        cause: The cause of a failed training, for the coordinator.
    """
    failed = Failed(reason, condition, cause)
    job.answers.gave(failed)
    gave_up = reason is not FailReason.UNWILLING
    words = f"gave up: {reason}: {detail}" if gave_up else f"stopped for its owner: {detail}"
    return [job.reply(failed), *end_job(job, words, gave_up=gave_up)]


def on_cancel(job: JobContext, event: MessageReceived, now: float) -> list[Effect]:
    """End the job: its round does not need it."""
    body = event.envelope.body
    assert isinstance(body, Cancel)
    return end_job(job, f"cancelled: {body.reason}")


def on_effect_failed(job: JobContext, event: EffectFailed, now: float) -> list[Effect]:
    """Give up: the next effects of the work would fail too."""
    return give_up(job, event.reason, event.detail)


def on_effect_failed_idle(job: JobContext, event: EffectFailed, now: float) -> list[Effect]:
    """Report the failure: there is no work that could end."""
    return [ReportFailure(event.detail)]
