"""The global models that are kept as bases of carried work."""

from __future__ import annotations

from fedpatch.coordinator.blobs.blob_store import BlobStore
from fedpatch.coordinator.buffered.carried_work import CarriedWork
from fedpatch.coordinator.rounds.run_spec import RunSpec
from fedpatch.coordinator.runtime.model_packing import pack_model
from fedpatch.coordinator.runtime.run_preparation import Prepared
from fedpatch.coordinator.storage.checkpoint import load_checkpoint_after
from fedpatch.shared.errors import StateError, StateUnreadable, UpdateRefused, UsageError
from fedpatch.shared.tensors.arrays import Tensors
from fedpatch.shared.wire.reason_codes import RefuseReason


class KeptBases:
    """The global models from which carried work was trained: the last ones in memory, earlier ones from the checkpoints.

    Args:
        blobs: Blob store of the run.
        prepared: The parts of the run that follow from its settings.
        spec: The terms of the run.
    """

    def __init__(self, blobs: BlobStore, prepared: Prepared, spec: RunSpec) -> None:
        self._blobs = blobs
        self._prepared = prepared
        self._spec = spec
        self._known: dict[int, tuple[str, Tensors]] = {}

    def keep(self, version: int, base: str, tensors: Tensors) -> None:
        """Keep a published model, and drop models that are too old for any update.

        Args:
            version: Completed rounds of the model.
            base: Digest of the model.
        """
        carry = self._spec.carry
        if carry is None:
            return
        known = {**self._known, version: (base, tensors)}
        self._known = {number: one for number, one in known.items() if number >= version - carry.max_staleness}

    def of(self, work: CarriedWork) -> Tensors:
        """Return the base of carried work.

        Raises:
            UpdateRefused: "stale": the base is gone or damaged.
        """
        base, tensors = self._known.get(work.version) or self._load(work.version)
        if base != work.base:
            raise UpdateRefused(
                RefuseReason.STALE, f"its base {work.base[:12]} is not the model of version {work.version}"
            )
        return tensors

    def _load(self, version: int) -> tuple[str, Tensors]:
        try:
            state = load_checkpoint_after(self._blobs, version)
        except StateUnreadable:
            raise
        except (StateError, UsageError) as error:
            raise UpdateRefused(RefuseReason.STALE, f"the model of version {version} is not kept any more") from error
        base = pack_model(state, self._prepared, self._spec)[1].digest
        self._known = {**self._known, version: (base, state.tensors)}
        return base, state.tensors
