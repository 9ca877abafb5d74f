"""States of a job, and its effects: device_agent.runtime.effect_runner performs them in order.

It reports back where a line says so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from fedpatch.device_agent.job.download_plan import DownloadPlan
from fedpatch.shared.wire.chunked_transfer import Chunk, SendChunk
from fedpatch.shared.wire.messages import Envelope, Manifest, WorkRequest


class JobState(StrEnum):
    """Where the job is."""

    IDLE = "idle"
    DOWNLOADING = "downloading"
    TRAINING = "training"
    UPLOADING = "uploading"


@dataclass(frozen=True)
class JobKey:
    """Which round of which run, and in which epoch of the coordinator."""

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
    """Make room for these blobs and subscribe to their chunks; then `Job.fetching`.

    They are the global model, or the steps to it from the version that is held: none where it is held itself.
    """

    blobs: tuple[Manifest, ...]


@dataclass(frozen=True)
class WriteChunk:
    """Write a chunk of what is fetched to disk."""

    chunk: Chunk


@dataclass(frozen=True)
class StartTraining:
    """What was fetched is whole: check it, merge, train; then `Job.trained`, `Job.training_failed` or `Job.damaged`.

    `way` says how it leads to the model of the request, `ends_at` when the round stops waiting for the update.
    """

    key: JobKey
    request: WorkRequest
    download_s: float
    way: DownloadPlan
    ends_at: float = field(default=0.0, compare=False)


@dataclass(frozen=True)
class DropHeldModel:
    """The version of the global model that is held did not lead to the one that was asked for: delete it.

    `why` is for the device's own log.
    """

    why: str


@dataclass(frozen=True)
class StopTraining:
    """The training that runs is of no use any more."""


@dataclass(frozen=True)
class StopDownload:
    """Take no more chunks for now, and keep those that are here; a `StartDownload` goes on."""


@dataclass(frozen=True)
class PauseTraining:
    """The training that runs waits before its next step."""


@dataclass(frozen=True)
class ContinueTraining:
    """The training that waits goes on."""


@dataclass(frozen=True)
class SpoolUpdate:
    """Remember across restarts that this update waits to be committed, and to which request it is the answer.

    Said again when the job goes on in a newer epoch.
    """

    key: JobKey
    manifest: Manifest
    request: WorkRequest | None = None


@dataclass(frozen=True)
class EndJob:
    """The job is over: drop the spooled update and the global model. `outcome` is for the device's own log.

    Nothing more will be asked for `rest_s`, as far as the coordinator can tell. `committed` is the job whose update the
    coordinator has taken: its personal model becomes the present one. None: there is no such.
    """

    outcome: str
    gave_up: bool = False
    rest_s: float = 0.0
    committed: JobKey | None = None


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
    | SpoolUpdate
    | EndJob
    | SendChunk
)
