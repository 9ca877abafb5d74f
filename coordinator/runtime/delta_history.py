"""The model deltas of a run: each round's step is made, saved, and offered to devices that hold an older model.

A run without a delta encoding has none.
"""

from __future__ import annotations

from fedpatch.coordinator.aggregation.server_delta import (
    ServerDelta,
    chain,
    quantised_step,
    step_seed,
    without_residuals,
)
from fedpatch.coordinator.aggregation.strategies import ServerState
from fedpatch.coordinator.blobs.blob_store import BlobStore
from fedpatch.coordinator.rounds.run_spec import RunSpec
from fedpatch.coordinator.runtime.model_publisher import Blob
from fedpatch.coordinator.runtime.run_preparation import Prepared
from fedpatch.coordinator.storage.delta_cache import load_steps, save_step
from fedpatch.shared.tensors.arrays import values_digest
from fedpatch.shared.tensors.subset import round_seed
from fedpatch.shared.wire.messages import ModelDelta, is_delta


class DeltaHistory:
    """The model deltas of one run, which together are at most as large as one model.

    Args:
        blobs: Blob store of the run.
        prepared: The parts of the run that follow from its settings.
        spec: The terms of the run.
    """

    def __init__(self, blobs: BlobStore, prepared: Prepared, spec: RunSpec) -> None:
        self._blobs = blobs
        self._schema = prepared.travelling
        self._spec = spec
        self._active = is_delta(spec.encoding)
        self._steps = load_steps(blobs) if self._active else []
        self._made: ServerDelta | None = None
        self._digest: tuple[ServerState, str] | None = None

    def apply(self, before: ServerState, aimed: ServerState, base: str) -> ServerState:
        """Quantise the step of a round.

        Args:
            before: The state before the round.
            aimed: The state that the strategy made.
            base: The version of the model before the round.

        Returns:
            The state after the quantised step; `aimed` itself in a run without a delta encoding.
        """
        if not self._active:
            return without_residuals(aimed)
        seed = step_seed(self._spec.seed, aimed.round)
        drawn = round_seed(self._spec.seed, aimed.round)
        state, packed = quantised_step(before, aimed, self._schema, self._spec.encoding, seed, drawn)
        self._made = ServerDelta(aimed.round, base, self._content(before), self._content(state), packed)
        return state

    def commit(self) -> None:
        """Save the step of the last `apply`, once its state is on disk."""
        if self._made is None:
            return
        self._steps = [*(step for step in self._steps if step.round < self._made.round), self._made]
        save_step(self._blobs, self._made, [step.round for step in self._steps])
        self._made = None

    def path_to(self, state: ServerState, most_bytes: int) -> list[tuple[Blob, ModelDelta]]:
        """Return the chain of deltas that leads to `state`, at most `most_bytes` together; drop all others."""
        if not self._active:
            return []
        self._steps = list(chain(self._steps, self._content(state), most_bytes))
        return [self._described(step) for step in self._steps]

    def _described(self, step: ServerDelta) -> tuple[Blob, ModelDelta]:
        manifest = step.packed.manifest(self._spec.chunk_bytes, self._schema)
        return Blob(step.packed.blob, manifest), ModelDelta(step.base, step.content, manifest)

    def _content(self, state: ServerState) -> str:
        """Return the digest of a state's tensors; that of the last state is remembered."""
        if self._digest is None or self._digest[0] is not state:
            self._digest = (state, values_digest(state.tensors, self._schema))
        return self._digest[1]
