"""The upload of the update: offers until the coordinator grants it, then chunks within the window, until it is committed."""

from __future__ import annotations

from dataclasses import replace

from fedpatch.device_agent.job.job_context import JobContext
from fedpatch.device_agent.job.job_effects import Effect, JobState, SpoolUpdate
from fedpatch.device_agent.job.job_end import end_job, give_up
from fedpatch.device_agent.job.job_events import MessageReceived, UpdateRestored, UpdateTrained
from fedpatch.device_agent.job.masked_steps import note_masked_update
from fedpatch.shared.errors import WireError
from fedpatch.shared.wire.chunk_upload import SendChunk, Upload
from fedpatch.shared.wire.messages import Ack, Committed, Grant, Manifest, Offer, Refused, RetryAfter
from fedpatch.shared.wire.reason_codes import FailReason


def on_update_trained(job: JobContext, event: UpdateTrained, now: float) -> list[Effect]:
    """Keep the update on the disk, then offer it."""
    assert job.key is not None and job.request is not None
    try:
        saved = note_masked_update(job, event.manifest)
    except WireError as error:
        return give_up(job, FailReason.MASKING, str(error))
    _begin(job, event.manifest, now)
    return [*saved, SpoolUpdate(job.key, event.manifest, job.request), *offer_when_due(job, now)]


def on_update_restored(job: JobContext, event: UpdateRestored, now: float) -> list[Effect]:
    """Continue the upload from before a restart."""
    job.key, job.request = event.key, event.request
    job.answers.accepted(event.key)
    _begin(job, event.manifest, now)
    return []


def on_grant(job: JobContext, event: MessageReceived, now: float) -> list[Effect]:
    """Send the first chunks. While the update is held, the grant is for another device; the next offer asks again."""
    body = event.envelope.body
    assert isinstance(body, Grant)
    return [] if job.upload is None or job.is_held else _packets(job, job.upload.on_grant(body, now))


def on_ack(job: JobContext, event: MessageReceived, now: float) -> list[Effect]:
    """Send the next chunks within the window."""
    body = event.envelope.body
    assert isinstance(body, Ack)
    return [] if job.upload is None or job.is_held else _packets(job, job.upload.on_ack(body, now))


def on_retry_after(job: JobContext, event: MessageReceived, now: float) -> list[Effect]:
    """Make the next offer later."""
    body = event.envelope.body
    assert isinstance(body, RetryAfter)
    if job.upload is not None and not job.is_held:
        job.upload.on_retry_after(body.delay_s, now)
    return []


def on_committed(job: JobContext, event: MessageReceived, now: float) -> list[Effect]:
    """End the job: the update is on the coordinator's disk."""
    body = event.envelope.body
    assert isinstance(body, Committed)
    return end_job(job, "committed", rest_s=body.rest_s, committed=job.key)


def on_refused(job: JobContext, event: MessageReceived, now: float) -> list[Effect]:
    """End the job: the coordinator will never accept the update."""
    body = event.envelope.body
    assert isinstance(body, Refused)
    return end_job(job, f"refused: {body.reason} {body.detail}".rstrip())


def offer_when_due(job: JobContext, now: float) -> list[Effect]:
    """Return the offer that is due, unless the update is held."""
    return [] if job.upload is None or job.is_held else _packets(job, job.upload.tick(now))


def _begin(job: JobContext, manifest: Manifest, now: float) -> None:
    job.state = JobState.UPLOADING
    job.upload = Upload(manifest, now)
    job.awaits_clearance = job.ask_to_send and not job.paused


def _packets(job: JobContext, packets: list[Offer | SendChunk]) -> list[Effect]:
    return [job.reply(_vouched(job, packet)) if isinstance(packet, Offer) else packet for packet in packets]


def _vouched(job: JobContext, offer: Offer) -> Offer:
    """Return an offer, in a masked round with the device's codes over the masking set."""
    state = job.masking.state if job.masking is not None else None
    return offer if state is None or state.update != offer.manifest.digest else replace(offer, codes=state.codes)
