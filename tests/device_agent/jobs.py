"""Jobs in each of their states, at known seconds."""

from __future__ import annotations

from collections.abc import Iterable

from fedpatch.device_agent.job.download_plan import plan_download
from fedpatch.device_agent.job.job_effects import Effect, JobKey, JobState, SendMessage
from fedpatch.device_agent.job.job_events import (
    AdmissionDecision,
    ChunkReceived,
    DownloadStarted,
    UpdateTrained,
    WorkRequested,
)
from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.shared.wire.chunks import cut
from fedpatch.shared.wire.messages import MAX_BLOB_BYTES, Body, Envelope, TaskCapability, WorkRequest
from tests.support.specs import CHUNK_BYTES, RUN, SCHEMA, TASK, TASKS, envelope_of, model, run_spec, update

BLOB = b"m" * 250
DIGEST = update().digest
REQUEST = WorkRequest(SCHEMA, "affine", run_spec().plan, model(), "fp32", CHUNK_BYTES, 300.0)
KEY = JobKey(RUN, 1, 1, TASK)
WILLING = AdmissionDecision(True)


def replies(effects: list[Effect]) -> list[Body]:
    return [effect.envelope.body for effect in effects if isinstance(effect, SendMessage)]


def requested(
    envelope: Envelope,
    tasks: tuple[TaskCapability, ...] = TASKS,
    decision: AdmissionDecision = WILLING,
    held: str = "",
) -> WorkRequested:
    request = envelope.body
    assert isinstance(request, WorkRequest)
    return WorkRequested(envelope, tasks, decision, plan_download(request, held, MAX_BLOB_BYTES))


def ask(job: Job, round_number: int = 1, now: float = 10.0, accept: bool = True, **changes) -> list[Effect]:
    decision = AdmissionDecision(accept, "" if accept else "no")
    return job.handle(requested(envelope_of(REQUEST, round_number, **changes), decision=decision), now)


def here(job: Job, indices: Iterable[int], now: float) -> list[Effect]:
    """Begin the download of the global model, with these chunks on the disk."""
    return job.handle(DownloadStarted({model().digest: frozenset(indices)}), now)


def downloading(have: frozenset[int] = frozenset()) -> Job:
    """A job whose download has begun, at second 10."""
    job = Job(max_blob_bytes=10_000)
    ask(job)
    assert here(job, have, 10.0) == []
    return job


def training() -> Job:
    """A job that trains since second 12."""
    job = downloading()
    for index in range(3):
        job.handle(ChunkReceived(cut(BLOB, model(), index)), 12.0)
    assert job.state is JobState.TRAINING
    return job


def uploading() -> Job:
    """A job whose update was offered at second 20."""
    job = training()
    job.handle(UpdateTrained(KEY, update()), 20.0)
    return job


IN_EACH_STATE = [downloading, training, uploading]
