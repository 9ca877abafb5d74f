"""The link or the coordinator is back: messages in transit may be lost, so the waiting side asks again soon."""

from __future__ import annotations

from fedpatch.device_agent.job.job_context import JobContext
from fedpatch.device_agent.job.job_effects import Effect
from fedpatch.device_agent.job.job_events import CoordinatorStarted, LinkRestored


def on_link_restored(job: JobContext, event: LinkRestored | CoordinatorStarted, now: float) -> list[Effect]:
    """Ask for missing chunks, or offer the update, without the pause that has grown."""
    if job.download is not None:
        job.download.on_reconnect(now)
    if job.upload is not None:
        job.upload.on_reconnect(now)
    return []


def on_coordinator_started(job: JobContext, event: CoordinatorStarted, now: float) -> list[Effect]:
    """Expect requests of a restored coordinator too, which may repeat rounds of an epoch that this device knows."""
    job.answers.coordinator_is_new = True
    return on_link_restored(job, event, now)
