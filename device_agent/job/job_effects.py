"""States of a job and its effects, which an EffectHandler (device_agent.job.effect_loop) performs in order.

`-> EVENT` names the events (device_agent.job.job_events) that report the end of an effect; other effects report nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from fedpatch.device_agent.job.download_plan import DownloadPlan
from fedpatch.device_agent.masking.masking_round import MaskingRound
from fedpatch.shared.masking.unmasking import Mask
from fedpatch.shared.privacy.skellam import SkellamNoise
from fedpatch.shared.wire.chunk_upload import SendChunk
from fedpatch.shared.wire.chunks import Chunk
from fedpatch.shared.wire.messages import Envelope, Manifest, WorkRequest


class JobState(StrEnum):
    """State of the job."""

    IDLE = "idle"
    DOWNLOADING = "downloading"
    TRAINING = "training"
    UPLOADING = "uploading"


@dataclass(frozen=True)
class JobKey:
    """The round of a run, in an epoch of the coordinator, that a job belongs to."""

    run: str
    epoch: int
    round: int
    task: str


@dataclass(frozen=True)
class SendMessage:
    """Publish a message on the device's `up` topic."""

    envelope: Envelope


@dataclass(frozen=True)
class StartDownload:
    """Open files for these blobs, and fetch them by URL or subscribe to their chunks -> DownloadStarted, DownloadByBroker.

    The blobs are the global model, or the deltas to it from the held version; there are none if the model itself is held.
    """

    blobs: tuple[Manifest, ...]


@dataclass(frozen=True)
class StopDownload:
    """Take no more chunks for now and keep those on the disk; a later StartDownload continues."""


@dataclass(frozen=True)
class WriteChunk:
    """Write a downloaded chunk to disk."""

    chunk: Chunk


@dataclass(frozen=True)
class StartTraining:
    """Verify the download, merge, train -> DownloadDamaged, or TrainingProgressed... and UpdateTrained or TrainingFailed.

    Attributes:
        key: The job; the answers repeat it.
        request: The work request.
        download_s: Seconds from the request to the last chunk.
        plan: How the downloaded blobs lead to the model of the request.
        ends_at: Monotonic seconds at which the round stops waiting for the update.
        attempt: Secret of the attempt at a masked round, for batch order and rounding; empty without masks.
    """

    key: JobKey
    request: WorkRequest
    download_s: float
    plan: DownloadPlan
    ends_at: float = field(default=0.0, compare=False)
    attempt: bytes = field(default=b"", compare=False, repr=False)


@dataclass(frozen=True)
class DropHeldModel:
    """Delete the held version of the global model: it did not lead to the requested one. `why` is for the device's log."""

    why: str


@dataclass(frozen=True)
class PauseTraining:
    """Let the running training wait before its next step."""


@dataclass(frozen=True)
class ContinueTraining:
    """End the pause of the training."""


@dataclass(frozen=True)
class StopTraining:
    """Stop the running training; its update is not needed."""


@dataclass(frozen=True)
class MaskUpdate:
    """Mask the trained vector -> UpdateTrained, or TrainingFailed.

    Attributes:
        key: The key that the training process was given; the answer repeats it.
        request: The work request.
        context: The group.
        masks: Masks to add.
        noise: Noise to add; None without differential privacy.
    """

    key: JobKey
    request: WorkRequest
    context: bytes
    masks: tuple[Mask, ...]
    noise: SkellamNoise | None = None


@dataclass(frozen=True)
class SaveMasking:
    """Write the state of the masked round to disk."""

    state: MaskingRound


@dataclass(frozen=True)
class SaveBase:
    """Write to disk that an update from these values of a model is about to be offered; if the disk refuses, it is not."""

    digest: str


@dataclass(frozen=True)
class SendAfterSave:
    """Write the state of the masked round to disk, then publish the message; if the disk refuses, nothing is published."""

    state: MaskingRound
    envelope: Envelope


@dataclass(frozen=True)
class ForgetMasking:
    """Delete the state of the last masked round: an unmasked one has begun."""


@dataclass(frozen=True)
class SpoolUpdate:
    """Note on disk that this update waits to be committed, and which request it answers; again for each newer epoch."""

    key: JobKey
    manifest: Manifest
    request: WorkRequest


@dataclass(frozen=True)
class EndJob:
    """End the job: delete the spooled update and the downloaded global model.

    Attributes:
        outcome: How the job ended, for the device's own log.
        gave_up: Whether the device gave up; False where its owner stopped the work.
        rest_s: Seconds for which the coordinator expects to send no further requests.
        committed: Job whose update was committed: its personal model becomes the current one. None if no update was
            committed.
        finished: Job that finished a model in an evaluate round: this model becomes the current personal model.
    """

    outcome: str
    gave_up: bool = False
    rest_s: float = 0.0
    committed: JobKey | None = None
    finished: JobKey | None = None


@dataclass(frozen=True)
class ReportFailure:
    """Log an effect that failed without a job, or a refused message about a masked group; no job ends because of it."""

    detail: str


Effect = (
    SendMessage
    | StartDownload
    | StopDownload
    | WriteChunk
    | StartTraining
    | DropHeldModel
    | PauseTraining
    | ContinueTraining
    | StopTraining
    | MaskUpdate
    | SaveMasking
    | SaveBase
    | SendAfterSave
    | ForgetMasking
    | SpoolUpdate
    | EndJob
    | ReportFailure
    | SendChunk
)
