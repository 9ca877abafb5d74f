"""The download of the global model, or of the deltas to it, until it is complete and the training starts."""

from __future__ import annotations

from fedpatch.device_agent.job.download_plan import DownloadPlan
from fedpatch.device_agent.job.job_context import JobContext
from fedpatch.device_agent.job.job_effects import Effect, JobState, StartDownload, StartTraining, WriteChunk
from fedpatch.device_agent.job.job_events import ChunkReceived, DownloadByBroker, DownloadDamaged, DownloadStarted
from fedpatch.device_agent.job.masked_steps import training_attempt
from fedpatch.device_agent.job.training_progress import TrainingProgress
from fedpatch.shared.wire.chunk_download import Download


def on_download_started(job: JobContext, event: DownloadStarted, now: float) -> list[Effect]:
    """Take chunks from now on; those on the disk may be all."""
    assert job.plan is not None
    job.download = Download(job.plan.blobs, now, have=event.have, asks=not event.by_url)
    return _train_when_complete(job, now)


def on_download_by_broker(job: JobContext, event: DownloadByBroker, now: float) -> list[Effect]:
    """Ask for missing chunks from now on: the fetch by URL has failed."""
    if job.download is not None:
        job.download.ask_from(now)
    return []


def on_chunk(job: JobContext, event: ChunkReceived, now: float) -> list[Effect]:
    """Keep a missing chunk; train after the last one."""
    if job.download is None or not job.download.take(event.chunk, now):
        return []
    return [WriteChunk(event.chunk), *_train_when_complete(job, now)]


def ask_for_missing_chunks(job: JobContext, now: float) -> list[Effect]:
    """Return the messages that are due."""
    return [] if job.download is None else [job.reply(need) for need in job.download.tick(now)]


def on_download_damaged(job: JobContext, event: DownloadDamaged, now: float) -> list[Effect]:
    """Download the whole model."""
    return download_whole_model(job)


def download_whole_model(job: JobContext) -> list[Effect]:
    """Begin again, without deltas and without a URL; in a pause, when it is over."""
    assert job.request is not None
    job.state, job.plan, job.download = JobState.DOWNLOADING, DownloadPlan(job.request.model), None
    return [] if job.paused else [StartDownload(job.plan.blobs)]


def change_plan(job: JobContext, plan: DownloadPlan, now: float) -> list[Effect]:
    """Follow the deltas that a newer epoch of the coordinator offers.

    The chunks of these deltas are on the broker again, so the missing ones are requested soon, however long the pause had
    grown. A newer URL replaces the former one, which may have expired.

    Args:
        job: The job, which is downloading.
        plan: The blobs that the newer request asks for.
        now: The time, in seconds.
    """
    if job.plan is not None and plan.blobs == job.plan.blobs and not any(blob.url for blob in plan.blobs):
        if job.download is not None:
            job.download = Download(plan.blobs, now, have=job.download.have, asks=job.download.asks)
        return []
    downloads, job.plan, job.download = job.download is not None, plan, None
    return [StartDownload(plan.blobs)] if downloads else []


def _train_when_complete(job: JobContext, now: float) -> list[Effect]:
    if job.download is None or not job.download.complete:
        return []
    assert job.key is not None
    assert job.request is not None
    assert job.plan is not None
    job.state, job.download = JobState.TRAINING, None
    job.training_key = job.key
    job.progress = TrainingProgress(masked=job.request.secure is not None, now=now)
    download_s = now - job.accepted_at
    start = StartTraining(job.key, job.request, download_s, job.plan, job.deadline, training_attempt(job))
    return [start] if job.request.evaluates else [job.reply(job.progress.message()), start]
