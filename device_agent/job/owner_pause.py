"""A pause of the work for its owner, its end, and work that the owner's policy abandons."""

from __future__ import annotations

from fedpatch.device_agent.job.job_context import JobContext
from fedpatch.device_agent.job.job_effects import (
    ContinueTraining,
    Effect,
    JobState,
    PauseTraining,
    StartDownload,
    StopDownload,
)
from fedpatch.device_agent.job.job_end import give_up
from fedpatch.device_agent.job.job_events import OwnerAbandoned, OwnerPaused, OwnerResumed
from fedpatch.device_agent.job.update_upload import offer_when_due
from fedpatch.shared.wire.reason_codes import FailReason


def on_owner_paused(job: JobContext, event: OwnerPaused, now: float) -> list[Effect]:
    """Pause the download or the training, or hold the update."""
    if job.paused:
        return []
    job.paused, job.awaits_clearance, job.paused_for = True, False, event.condition
    if job.state is JobState.TRAINING:
        return [PauseTraining()]
    if job.state is JobState.DOWNLOADING:
        job.download = None
        return [StopDownload()]
    return []


def on_owner_resumed(job: JobContext, event: OwnerResumed, now: float) -> list[Effect]:
    """End a pause, or offer the update that waited for this."""
    if not job.is_held:
        return []
    job.paused, job.awaits_clearance = False, False
    if job.upload is not None:
        job.upload.on_reconnect(now)
        return offer_when_due(job, now)
    if job.state is JobState.TRAINING:
        assert job.progress is not None
        return [ContinueTraining(), job.reply(job.progress.message())]
    assert job.plan is not None
    return [StartDownload(job.plan.blobs)]


def on_owner_abandoned(job: JobContext, event: OwnerAbandoned, now: float) -> list[Effect]:
    """Give up for the owner."""
    return give_up(job, FailReason.UNWILLING, event.detail, event.condition)
