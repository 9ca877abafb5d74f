"""The steps of a run from one version of its global model to the next: made, kept, and laid out for devices.

In a run whose encoding carries no differences there are none.
"""

from __future__ import annotations

from pathlib import Path

from fedpatch.coordinator.aggregation.server_delta import (
    ServerDelta,
    chain,
    quantised_step,
    step_seed,
    without_residuals,
)
from fedpatch.coordinator.aggregation.strategies import ServerState
from fedpatch.coordinator.rounds.run_spec import RunSpec
from fedpatch.coordinator.runtime.model_publisher import Blob
from fedpatch.coordinator.runtime.run_preparation import Prepared
from fedpatch.coordinator.storage.delta_cache import load_steps, save_step
from fedpatch.shared.tensors.arrays import values_digest
from fedpatch.shared.wire.messages import ModelDelta, is_delta


class DeltaHistory:
    """Of the run whose files are in `directory`. They take no more memory than one model."""

    def __init__(self, directory: Path, prepared: Prepared, spec: RunSpec) -> None:
        self._directory = directory
        self._schema = prepared.travelling
        self._spec = spec
        self._active = is_delta(spec.encoding)
        self._steps = load_steps(directory) if self._active else []
        self._made: ServerDelta | None = None
        self._digest: tuple[ServerState, str] | None = None

    def apply(self, before: ServerState, aimed: ServerState, base: str) -> ServerState:
        """The state after a round that ends at `aimed`, as devices can follow it from the version `base`, which is `before`."""
        if not self._active:
            return without_residuals(aimed)
        seed = step_seed(self._spec.seed, aimed.round)
        state, packed = quantised_step(before, aimed, self._schema, self._spec.encoding, seed)
        self._made = ServerDelta(aimed.round, base, self._content(before), self._content(state), packed)
        return state

    def commit(self) -> None:
        """The state that was taken last lies on the disk: so may the step that led to it."""
        if self._made is None:
            return
        self._steps = [*(step for step in self._steps if step.round < self._made.round), self._made]
        save_step(self._directory, self._made, [step.round for step in self._steps])
        self._made = None

    def path_to(self, state: ServerState, most_bytes: int) -> list[tuple[Blob, ModelDelta]]:
        """The chain that leads to `state`, together no larger than `most_bytes`; the others are not needed any more."""
        if not self._active:
            return []
        self._steps = list(chain(self._steps, self._content(state), most_bytes))
        return [self._described(step) for step in self._steps]

    def _described(self, step: ServerDelta) -> tuple[Blob, ModelDelta]:
        manifest = step.packed.manifest(self._spec.chunk_bytes, self._schema)
        return Blob(step.packed.blob, manifest), ModelDelta(step.base, step.content, manifest)

    def _content(self, state: ServerState) -> str:
        """Of the tensors of a state; that of the last one is asked for again."""
        if self._digest is None or self._digest[0] is not state:
            self._digest = (state, values_digest(state.tensors, self._schema))
        return self._digest[1]
