"""The steps of a run from one version of its global model to the next: made, kept, and laid out for devices.

In a run whose encoding carries no differences there are none.
"""

from __future__ import annotations

from pathlib import Path

from coordinator.delta_chain import Step, chain
from coordinator.delta_files import load_steps, save_step
from coordinator.preparation import Prepared
from coordinator.publisher import Blob
from coordinator.quantised_step import quantised_step, step_seed, without_residuals
from coordinator.run_spec import RunSpec
from coordinator.strategies import ServerState
from shared.messages import ModelDelta, is_delta
from shared.tensors import values_digest


class ModelSteps:
    """Of the run whose files are in `directory`. They take no more memory than one model."""

    def __init__(self, directory: Path, prepared: Prepared, spec: RunSpec) -> None:
        self._directory = directory
        self._schema = prepared.travelling
        self._spec = spec
        self._active = is_delta(spec.encoding)
        self._steps = load_steps(directory) if self._active else []
        self._made: Step | None = None
        self._digest: tuple[ServerState, str] | None = None

    def take(self, before: ServerState, aimed: ServerState, base: str) -> ServerState:
        """The state after a round that ends at `aimed`, as devices can follow it from the version `base`, which is `before`."""
        if not self._active:
            return without_residuals(aimed)
        seed = step_seed(self._spec.seed, aimed.round)
        state, packed = quantised_step(before, aimed, self._schema, self._spec.encoding, seed)
        self._made = Step(aimed.round, base, self._content(before), self._content(state), packed)
        return state

    def keep(self) -> None:
        """The state that was taken last lies on the disk: so may the step that led to it."""
        if self._made is None:
            return
        self._steps = [*(step for step in self._steps if step.round < self._made.round), self._made]
        save_step(self._directory, self._made, [step.round for step in self._steps])
        self._made = None

    def leading_to(self, state: ServerState, most_bytes: int) -> list[tuple[Blob, ModelDelta]]:
        """The chain that leads to `state`, together no larger than `most_bytes`; the others are not needed any more."""
        if not self._active:
            return []
        self._steps = list(chain(self._steps, self._content(state), most_bytes))
        return [self._described(step) for step in self._steps]

    def _described(self, step: Step) -> tuple[Blob, ModelDelta]:
        manifest = step.packed.manifest(self._spec.chunk_bytes, self._schema)
        return Blob(step.packed.blob, manifest), ModelDelta(step.base, step.content, manifest)

    def _content(self, state: ServerState) -> str:
        """Of the tensors of a state; that of the last one is asked for again."""
        if self._digest is None or self._digest[0] is not state:
            self._digest = (state, values_digest(state.tensors, self._schema))
        return self._digest[1]
