"""Time that passes: the deadline of the round ends a job before its upload; requests of chunks and offers are repeated."""

from __future__ import annotations

from fedpatch.device_agent.job.job_context import JobContext
from fedpatch.device_agent.job.job_effects import Effect, JobState
from fedpatch.device_agent.job.job_end import give_up
from fedpatch.device_agent.job.job_events import Tick
from fedpatch.device_agent.job.model_download import ask_for_missing_chunks
from fedpatch.device_agent.job.update_upload import offer_when_due
from fedpatch.shared.wire.reason_codes import FailReason


def on_time_downloading(job: JobContext, event: Tick, now: float) -> list[Effect]:
    """Give up at the deadline; until then ask for missing chunks."""
    return _give_up_late(job) if now >= job.deadline else ask_for_missing_chunks(job, now)


def on_time_training(job: JobContext, event: Tick, now: float) -> list[Effect]:
    """Give up at the deadline."""
    return _give_up_late(job) if now >= job.deadline else []


def on_time_uploading(job: JobContext, event: Tick, now: float) -> list[Effect]:
    """Repeat the offer: an update may wait for days until the coordinator requests it."""
    return offer_when_due(job, now)


def next_deadline(job: JobContext) -> float | None:
    """Return the time at which Tick is due; None if there is none."""
    if job.state is JobState.IDLE:
        return None
    if job.upload is not None:
        return None if job.is_held else job.upload.next_deadline()
    ask_at = job.download.next_deadline() if job.download is not None else None
    return job.deadline if ask_at is None else min(job.deadline, ask_at)


def _give_up_late(job: JobContext) -> list[Effect]:
    if job.paused and job.paused_for is not None:
        return give_up(job, FailReason.UNWILLING, "the round's deadline passed in a pause", job.paused_for)
    if job.vector_waits:
        detail = "the round's deadline passed before the inbox of the group came"
        return give_up(job, FailReason.MASKING, detail)
    return give_up(job, FailReason.DEADLINE, "the round's deadline passed")
