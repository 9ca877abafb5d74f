"""What a device says to a work request, before any work is begun: whether it can, what it said before, what goes on."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fedpatch.device_agent.job.job_effects import JobKey
from fedpatch.shared.errors import WireError
from fedpatch.shared.wire.chunked_transfer import check_manifest
from fedpatch.shared.wire.messages import (
    ENCODINGS,
    OWNER_LIMITS_FEATURE,
    STORAGE_FEATURE,
    Decline,
    Failed,
    TaskCapability,
    WorkRequest,
)
from fedpatch.shared.wire.reason_codes import Condition, DeclineReason

_OWNER_LIMITS = (DeclineReason.PRIVATE_POLICY, DeclineReason.PLAN_LIMIT)


@dataclass(frozen=True)
class AdmissionDecision:
    """Whether the device works now. All of it reaches the coordinator: no value that was found, no path.

    `condition` is the preference that is missed, where one is; before `retry_after_s` it would say the same (0: unknown).
    `reason` is the word for it: an owner's limit has one of its own, and so has a disk that cannot be used.
    """

    accept: bool
    why: str = ""
    condition: Condition | None = None
    retry_after_s: float = 0.0
    reason: DeclineReason = DeclineReason.UNWILLING


def reason_to_decline(
    task: str, request: WorkRequest, tasks: tuple[TaskCapability, ...], verdict: AdmissionDecision, max_blob_bytes: int
) -> Decline | None:
    """The first that applies, or None. A lasting reason comes before a passing one."""
    own = next((t for t in tasks if t.task == task), None)
    if own is None:
        offered = ", ".join(t.task for t in tasks)
        detail = f"task {task!r} is not installed here (here: {offered})"
        return Decline(DeclineReason.UNKNOWN_TASK, detail[:500])
    if own.schema != request.schema:
        detail = f"coordinator has {request.schema}, this device {own.schema}; install the same task version on both"
        return Decline(DeclineReason.SCHEMA_MISMATCH, detail)
    foreign = {request.encoding, request.model.encoding}.difference(ENCODINGS)
    if foreign:
        return Decline(DeclineReason.UNSUPPORTED, f"encoding {min(foreign)!r} is not known here")
    try:
        check_manifest(request.model, max_blob_bytes)
    except WireError as error:
        return Decline(DeclineReason.UNSUPPORTED, str(error))
    if own.num_examples < 1:
        return Decline(DeclineReason.TOO_LITTLE_DATA, "no training examples here")
    if verdict.accept:
        return None
    reason = verdict.reason
    # An older coordinator would ignore a message with a word that it does not know.
    if reason is DeclineReason.STORAGE and STORAGE_FEATURE not in request.features:
        reason = DeclineReason.UNWILLING
    if reason in _OWNER_LIMITS and OWNER_LIMITS_FEATURE not in request.features:
        reason = DeclineReason.UNSUPPORTED
    return Decline(reason, verdict.why[:500], verdict.condition, verdict.retry_after_s)


def continues(
    job: JobKey | None, known: WorkRequest | None, key: JobKey, request: WorkRequest, *, downloading: bool
) -> bool:
    """Whether a request asks, in a newer epoch, for the very work that a job is on.

    What time is left may differ, which steps lead to the model, what the coordinator understands, whether it asks for a measure
    beside the work, and how the model is cut into chunks unless they are still awaited.
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
        measure_independent=known.measure_independent,
    )
    return same_model and same_terms == known


class AnsweredRequests:
    """What was decided on the last requests stays decided. Bounded: the last that was taken, and the last declined."""

    def __init__(self) -> None:
        self._taken: JobKey | None = None
        self._settled = False
        self._failed: Failed | None = None
        self._declined: tuple[JobKey, Decline] | None = None

    def accepted(self, key: JobKey) -> None:
        """The device works on it."""
        self._taken, self._settled, self._failed = key, False, None

    def settled(self) -> None:
        """The coordinator has said its last word on what was taken."""
        self._settled = True

    def gave_up(self, failed: Failed) -> None:
        """The device has said its last word on what was taken."""
        self._failed = failed

    def declined(self, key: JobKey, decline: Decline) -> None:
        """The device does not work on it, however often it is asked."""
        self._declined = key, decline

    def answer(self, key: JobKey) -> Decline | Failed | None:
        """What was said to this very request at the end: the coordinator may not have heard it."""
        if self._declined is not None and self._declined[0] == key:
            return self._declined[1]
        return self._failed if key == self._taken else None

    def is_superseded(self, key: JobKey) -> bool:
        """Whether a request was overtaken by a newer one of its run, or the coordinator is done with it already."""
        if key == self._taken:
            return self._settled
        heard = (self._taken, self._declined[0] if self._declined else None)
        return any(
            one is not None and one.run == key.run and (key.epoch, key.round) < (one.epoch, one.round) for one in heard
        )
