"""Four versions of a global model, the deltas between them, and a job whose request names the last version."""

from __future__ import annotations

from dataclasses import replace

from fedpatch.device_agent.job.job_effects import Effect, JobState
from fedpatch.device_agent.job.job_events import AdmissionDecision, ChunkReceived, DownloadStarted
from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.shared.wire.chunks import cut
from fedpatch.shared.wire.messages import Manifest, ModelDelta, WorkRequest
from tests.device_agent.jobs import REQUEST, requested
from tests.support.specs import TASKS, envelope_of, model

BLOBS = tuple(letter * 250 for letter in (b"j", b"k", b"l", b"m"))
VERSIONS: tuple[Manifest, ...] = tuple(model(blob) for blob in BLOBS)
STEP_BLOBS = (b"jk" * 55, b"kl" * 40, b"lm" * 10)
STEPS = tuple(model(blob) for blob in STEP_BLOBS)
CONTENT = ("a1" * 32, "b2" * 32, "c3" * 32)
DELTAS = tuple(
    ModelDelta(base.digest, content, step) for base, content, step in zip(VERSIONS, CONTENT, STEPS, strict=False)
)


def delta_request() -> WorkRequest:
    """A request to train the last version, with three deltas that are together smaller than the whole model."""
    return replace(REQUEST, model=VERSIONS[-1], deltas=DELTAS)


def ask_holding(
    job: Job, held: str, request: WorkRequest | None = None, *, epoch: int = 1, now: float = 10.0
) -> list[Effect]:
    envelope = envelope_of(request or delta_request(), epoch=epoch)
    return job.handle(requested(envelope, TASKS, AdmissionDecision(True), held), now)


def arrive(job: Job, blob: bytes, now: float = 12.0) -> list[Effect]:
    """Deliver all chunks of a blob to the job."""
    manifest = model(blob)
    effects = [job.handle(ChunkReceived(cut(blob, manifest, index)), now) for index in range(manifest.chunk_count)]
    return [effect for several in effects for effect in several]


def by_steps(begins: int = 1) -> Job:
    """A job that trains since second 12, on the held version `begins` and all later deltas."""
    job = Job(max_blob_bytes=10_000)
    ask_holding(job, VERSIONS[begins].digest)
    job.handle(DownloadStarted({}), 10.0)
    for blob in STEP_BLOBS[begins:]:
        arrive(job, blob)
    assert job.state is JobState.TRAINING
    return job
