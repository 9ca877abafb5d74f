"""Plan of a download: the whole global model of a request, or only the deltas to it from the version that the device holds."""

from __future__ import annotations

from dataclasses import dataclass

from fedpatch.shared.errors import WireError
from fedpatch.shared.wire.chunks import check_manifest
from fedpatch.shared.wire.messages import ENCODINGS, Manifest, ModelDelta, WorkRequest, is_delta


@dataclass(frozen=True)
class DownloadPlan:
    """Downloads that lead a device to `model`.

    Attributes:
        model: Manifest of the model of the request.
        held: Digest of the held version that the deltas start from; "" for a download of the whole model.
        steps: Deltas from `held` to `model`, in order; empty where `model` itself is held.

    Example:
        >>> plan = DownloadPlan(Manifest("ab" * 32, 100, 100, 1, "fp32", 100, "cd" * 32))
        >>> str(plan), plan.blobs == (plan.model,), plan.saved_bytes
        ('the whole model', True, 0)
    """

    model: Manifest
    held: str = ""
    steps: tuple[ModelDelta, ...] = ()

    def __str__(self) -> str:
        """Describe the plan for the log."""
        if not self.held:
            return "the whole model"
        if not self.steps:
            return "the model held"
        return f"the model held and {len(self.steps)} {'step' if len(self.steps) == 1 else 'steps'} from there"

    @property
    def blobs(self) -> tuple[Manifest, ...]:
        """Blobs to download; none where `model` is held."""
        return tuple(step.manifest for step in self.steps) if self.held else (self.model,)

    @property
    def saved_bytes(self) -> int:
        """Bytes that this plan saves against the whole model."""
        return self.model.size_bytes - sum(blob.size_bytes for blob in self.blobs)


def plan_download(request: WorkRequest, held: str, max_blob_bytes: int) -> DownloadPlan:
    """Choose the download with the fewest bytes.

    Deltas that this device cannot read or that exceed its limit are no reason to decline: it can always download the whole
    model.

    Args:
        request: The work request; it need not be checked before.
        held: Digest of the global model that the device holds, "" for none.
        max_blob_bytes: Largest blob that the device accepts.

    Returns:
        A plan whose blobs are together no larger than the model.
    """
    whole = DownloadPlan(request.model)
    if held == request.model.digest:
        return DownloadPlan(request.model, held)
    starts = [index for index, delta in enumerate(request.deltas) if delta.base == held]
    if not starts:
        return whole
    plan = DownloadPlan(request.model, held, request.deltas[starts[-1] :])
    return plan if _is_usable(plan, max_blob_bytes) else whole


def expected_bytes(request: WorkRequest, plan: DownloadPlan) -> int:
    """Estimate the traffic of the work, both ways, in bytes: the download of `plan`, and an update unless work only measures.

    An update is taken to be as large as the model, or half as large if it travels as a delta.
    """
    if request.evaluates:
        return request.model.size_bytes - plan.saved_bytes
    update = request.model.size_bytes // 2 if is_delta(request.encoding) else request.model.size_bytes
    return request.model.size_bytes - plan.saved_bytes + update


def _is_usable(plan: DownloadPlan, max_blob_bytes: int) -> bool:
    """Return whether the plan is shorter than the whole model, and each delta is a distinct blob that this device can read."""
    blobs = plan.blobs
    if plan.saved_bytes <= 0 or len({blob.digest for blob in blobs}) < len(blobs):
        return False
    try:
        for blob in blobs:
            check_manifest(blob, max_blob_bytes)
    except WireError:
        return False
    return all(blob.encoding in ENCODINGS and blob.schema == plan.model.schema for blob in blobs)
