"""Reasons to decline a work request that the request itself, the tasks and the encodings of the device give.

They need neither the disk nor the owner, so they are looked at before the owner's decision. A lasting reason comes before a
passing one.
"""

from __future__ import annotations

from fedpatch.shared.errors import WireError
from fedpatch.shared.wire.chunks import check_manifest
from fedpatch.shared.wire.messages import ENCODINGS, Decline, TaskCapability, WorkRequest
from fedpatch.shared.wire.reason_codes import DeclineReason


def refusal_of(
    task: str,
    request: WorkRequest,
    tasks: tuple[TaskCapability, ...],
    max_blob_bytes: int,
    masked: tuple[str, ...],
) -> Decline | None:
    """Find the first reason to decline a request, whatever the owner decides.

    Args:
        max_blob_bytes: Largest model that the device accepts.
        masked: Encodings of the device's updates in masked rounds; none if it declines masked rounds.

    Returns:
        The message to send; None where nothing in the request is against it.
    """
    own = next((t for t in tasks if t.task == task), None)
    if own is None:
        offered = ", ".join(t.task for t in tasks)
        detail = f"task {task!r} is not installed here (here: {offered})"
        return Decline(DeclineReason.UNKNOWN_TASK, detail[:500])
    if own.schema != request.schema:
        remedy = "install the same task version on both, with the same frozen values if it has any"
        detail = f"coordinator has {request.schema}, this device {own.schema}; {remedy}"
        return Decline(DeclineReason.SCHEMA_MISMATCH, detail)
    if request.secure is not None and not masked:
        return Decline(DeclineReason.UNSUPPORTED, "this device does not mask updates")
    known = ENCODINGS if request.secure is None else masked
    foreign = {request.encoding}.difference(known) | {request.model.encoding}.difference(ENCODINGS)
    if foreign:
        return Decline(DeclineReason.UNSUPPORTED, f"encoding {min(foreign)!r} is not known here")
    try:
        check_manifest(request.model, max_blob_bytes)
    except WireError as error:
        return Decline(DeclineReason.UNSUPPORTED, str(error))
    if own.num_examples < 1:
        return Decline(DeclineReason.TOO_LITTLE_DATA, "no training examples here")
    return None
