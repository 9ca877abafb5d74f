"""The outcome of a training for the job: an update that may leave the device, a vector to mask, a measurement, or a failure."""

from __future__ import annotations

from fedpatch.device_agent.job.job_events import (
    JobEvent,
    ModelEvaluated,
    TrainingFailed,
    UpdateTrained,
    VectorTrained,
)
from fedpatch.device_agent.job.training_messages import Evaluated, Masked, Trained, TrainFailed
from fedpatch.device_agent.runtime.agent_ports import LimitsPort
from fedpatch.shared.wire.messages import WorkRequest
from fedpatch.shared.wire.reason_codes import FailReason


def outcome_of(
    event: Trained | Evaluated | Masked | TrainFailed, request: WorkRequest | None, limits: LimitsPort
) -> JobEvent:
    """Return the event of the job.

    Args:
        event: The answer of the training process.
        request: The request of the current work.
        limits: The owner's limits on what may leave the device.
    """
    match event:
        case Evaluated():
            return ModelEvaluated(event.key, event.evaluation)
        case TrainFailed():
            return TrainingFailed(event.key, event.reason, event.detail, event.cause)
    if why := limits.why_not_send(request, event.manifest):
        reason = FailReason.MASKING if isinstance(event, Masked) else FailReason.TRAINING
        return TrainingFailed(event.key, reason, why)
    if isinstance(event, Trained) and request is not None and request.masks:
        return VectorTrained(event.key)
    return UpdateTrained(event.key, event.manifest)
