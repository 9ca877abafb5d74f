"""Events of a job: messages of the coordinator, completions of effects, decisions of the owner, and time.

`Job.handle(event, now)` returns the effects of an event; `Job.tick(now)` those of the time. An effect has finished when its
completion event arrives.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from msgspec import UNSET, UnsetType

from fedpatch.device_agent.job.download_plan import DownloadPlan
from fedpatch.device_agent.job.job_effects import JobKey
from fedpatch.shared.wire.chunks import Chunk
from fedpatch.shared.wire.messages import Envelope, Evaluation, Manifest, TaskCapability, WorkRequest
from fedpatch.shared.wire.reason_codes import Condition, DeclineReason, FailCause, FailReason


@dataclass(frozen=True)
class AdmissionDecision:
    """The answer of a device to a work request. The coordinator receives all fields: no measured value, no path.

    Attributes:
        accept: Whether the owner, the limits and the storage allow the work.
        why: Reason of a decline, in words.
        condition: The preference that is not met, where there is one.
        retry_after_s: Seconds for which the answer would be the same; 0 where that is unknown.
        reason: Code of a decline; limits of the owner and an unusable disk have codes of their own.
    """

    accept: bool
    why: str = ""
    condition: Condition | None = None
    retry_after_s: float = 0.0
    reason: DeclineReason = DeclineReason.UNWILLING


def decline(reason: DeclineReason, why: str, retry_after_s: float = 0.0) -> AdmissionDecision:
    """Return a decline with a code of its own.

    Args:
        why: The reason, in words.
        retry_after_s: Seconds for which the answer would be the same; 0 where that is unknown.
    """
    return AdmissionDecision(False, why, retry_after_s=retry_after_s, reason=reason)


# ---- from the coordinator


@dataclass(frozen=True)
class WorkRequested:
    """The coordinator sent a work request.

    Attributes:
        envelope: The message; its body is a WorkRequest.
        tasks: Tasks of this device; empty while the task is being loaded.
        decision: The device's decision; it counts only for work that has not begun.
        plan: The download that leads to the request's model.
    """

    envelope: Envelope
    tasks: tuple[TaskCapability, ...]
    decision: AdmissionDecision
    plan: DownloadPlan


@dataclass(frozen=True)
class MessageReceived:
    """The coordinator sent any other message."""

    envelope: Envelope


@dataclass(frozen=True)
class ChunkReceived:
    """A chunk of the global model, or of a delta to it, arrived."""

    chunk: Chunk


@dataclass(frozen=True)
class LinkRestored:
    """The connection is back; messages in transit may be lost."""


@dataclass(frozen=True)
class CoordinatorStarted:
    """Another process of a coordinator has started; messages in transit may be lost. Its state may be that of a backup."""


# ---- completions of effects


@dataclass(frozen=True)
class DownloadStarted:
    """StartDownload: files are open, and subscriptions made or a fetch by URL begun.

    Attributes:
        have: Chunks on the disk, by the digest of their blob.
        by_url: Whether chunks are fetched by URL; DownloadByBroker follows if that fails.
    """

    have: Mapping[str, Collection[int]]
    by_url: bool = False


@dataclass(frozen=True)
class DownloadByBroker:
    """StartDownload: the fetch by URL has failed, and the subscriptions are made; missing chunks come by the broker."""


@dataclass(frozen=True)
class DownloadDamaged:
    """StartTraining: the SHA-256 of a downloaded blob is wrong."""


@dataclass(frozen=True)
class TrainingProgressed:
    """StartTraining: `done` of `total` steps are done."""

    key: JobKey
    done: int
    total: int


@dataclass(frozen=True)
class VectorTrained:
    """StartTraining: the vector of a masked round is on the disk, not masked yet."""

    key: JobKey


@dataclass(frozen=True)
class UpdateTrained:
    """StartTraining, or MaskUpdate: the update is on the disk."""

    key: JobKey
    manifest: Manifest


@dataclass(frozen=True)
class ModelEvaluated:
    """StartTraining: the model was measured, as the request asks; nothing is on the disk."""

    key: JobKey
    evaluation: Evaluation


@dataclass(frozen=True)
class TrainingFailed:
    """StartTraining: there is no update. `detail` is for the device's own log, `cause` for the coordinator too."""

    key: JobKey
    reason: FailReason
    detail: str
    cause: FailCause | UnsetType = UNSET


@dataclass(frozen=True)
class EffectFailed:
    """Disk, broker or system refused an effect; the effects after it were dropped. `detail` is for the device's own log."""

    reason: FailReason
    detail: str


@dataclass(frozen=True)
class UpdateRestored:
    """An update from before a restart waits to be committed."""

    key: JobKey
    manifest: Manifest
    request: WorkRequest


# ---- from the owner's policy


@dataclass(frozen=True)
class OwnerPaused:
    """The owner needs the device; the work waits, and its deadline stays. `condition` is the preference that is not met."""

    condition: Condition | None = None


@dataclass(frozen=True)
class OwnerResumed:
    """The pause is over, or a finished update may be sent."""


@dataclass(frozen=True)
class OwnerAbandoned:
    """The owner's policy abandons the work. `detail` is for the device's own log."""

    detail: str
    condition: Condition | None = None


# ---- from the clock


@dataclass(frozen=True)
class Tick:
    """Time has passed; `Job.tick` makes it."""


FromCoordinator = WorkRequested | MessageReceived | ChunkReceived | LinkRestored | CoordinatorStarted
Completion = (
    DownloadStarted
    | DownloadByBroker
    | DownloadDamaged
    | TrainingProgressed
    | VectorTrained
    | UpdateTrained
    | ModelEvaluated
    | TrainingFailed
    | EffectFailed
    | UpdateRestored
)
FromOwner = OwnerPaused | OwnerResumed | OwnerAbandoned
JobEvent = FromCoordinator | Completion | FromOwner | Tick
