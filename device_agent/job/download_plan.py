"""How a device comes to the global model of a request: all of it, or the steps to it from the version that is held."""

from __future__ import annotations

from dataclasses import dataclass

from fedpatch.shared.errors import WireError
from fedpatch.shared.wire.chunked_transfer import check_manifest
from fedpatch.shared.wire.messages import ENCODINGS, Manifest, ModelDelta, WorkRequest, is_delta


@dataclass(frozen=True)
class DownloadPlan:
    """`steps` lead from the version `held` to `model`, in their order; without `held` it is the whole model that comes."""

    model: Manifest
    held: str = ""
    steps: tuple[ModelDelta, ...] = ()

    def __str__(self) -> str:
        """In words, for the log."""
        if not self.held:
            return "the whole model"
        if not self.steps:
            return "the model held"
        return f"the model held and {len(self.steps)} {'step' if len(self.steps) == 1 else 'steps'} from there"

    @property
    def blobs(self) -> tuple[Manifest, ...]:
        """What is downloaded; nothing where `model` is held already."""
        return tuple(step.manifest for step in self.steps) if self.held else (self.model,)

    @property
    def saved_bytes(self) -> int:
        """How many bytes fewer that is than the whole model."""
        return self.model.size_bytes - sum(blob.size_bytes for blob in self.blobs)


def plan_download(request: WorkRequest, held: str, max_blob_bytes: int) -> DownloadPlan:
    """The way with the fewest bytes. `held` is the digest of the version that the device holds, "" where there is none.

    Steps that this device cannot read, or will not for their size, are no reason against the work: the whole model is
    always there.
    """
    whole = DownloadPlan(request.model)
    if held == request.model.digest:
        return DownloadPlan(request.model, held)
    begins = [at for at, delta in enumerate(request.deltas) if delta.base == held]
    if not begins:
        return whole
    way = DownloadPlan(request.model, held, request.deltas[begins[-1] :])
    return way if _can_be_gone(way, max_blob_bytes) else whole


def expected_bytes(request: WorkRequest, way: DownloadPlan) -> int:
    """What the work will take of the link, at most about: its way to the model, and an update of it.

    An update is as large as the model; one that travels as a difference has a half of its bits or less.
    """
    update = request.model.size_bytes // 2 if is_delta(request.encoding) else request.model.size_bytes
    return request.model.size_bytes - way.saved_bytes + update


def _can_be_gone(way: DownloadPlan, max_blob_bytes: int) -> bool:
    """Whether it is shorter than the whole model, and each step a blob of its own that this device can read."""
    blobs = way.blobs
    if way.saved_bytes <= 0 or len({blob.digest for blob in blobs}) < len(blobs):
        return False
    try:
        for blob in blobs:
            check_manifest(blob, max_blob_bytes)
    except WireError:
        return False
    return all(blob.encoding in ENCODINGS and blob.schema == way.model.schema for blob in blobs)
