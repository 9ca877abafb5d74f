"""The test for a work request that asks, in a newer epoch of the coordinator, for the work that the device does already."""

from __future__ import annotations

from dataclasses import replace

from fedpatch.device_agent.job.job_effects import JobKey
from fedpatch.shared.wire.messages import WorkRequest


def continues(
    job: JobKey | None, known: WorkRequest | None, key: JobKey, request: WorkRequest, *, downloading: bool
) -> bool:
    """Return whether a request asks, in a newer epoch, for the same work as a job.

    These may differ: the remaining time, the deltas to the model, the coordinator's features, its epoch as a leader and the
    measurement beside the work. The chunks of the model may be cut differently, unless they are still being downloaded.

    Args:
        job: The current job; None if there is none.
        known: Its request; None if there is no job.
        key: The requested job.
        request: The new request.
        downloading: Whether the job still downloads its model.
    """
    if job is None or known is None or key.epoch <= job.epoch:
        return False
    if (key.run, key.round, key.task) != (job.run, job.round, job.task):
        return False
    same_model = request.model == known.model if downloading else request.model.digest == known.model.digest
    same_terms = replace(
        request,
        model=known.model,
        deltas=known.deltas,
        deadline_s=known.deadline_s,
        features=known.features,
        leader_epoch=known.leader_epoch,
        # A coordinator that was updated in the middle of a round names the values of the same model.
        content=known.content if request.secure is None and not known.content else request.content,
        # All devices of a masked round get the same request, and their keys depend on it.
        measure_independent=known.measure_independent if request.secure is None else request.measure_independent,
    )
    return same_model and same_terms == known
