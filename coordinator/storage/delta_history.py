"""Deltas or the whole model: the steps of the last rounds, and the chain that a device with an older model may download.

A device downloads the whole model if it has missed more than MAX_DELTAS rounds, if the chain would be larger than the model, or
in a run without a delta encoding.
"""

from __future__ import annotations

from collections.abc import Iterable

from fedpatch.coordinator.aggregation.quantised_step import quantised_step, step_seed
from fedpatch.coordinator.aggregation.server_state import ServerState
from fedpatch.coordinator.blobs.blob_store import BlobStore
from fedpatch.coordinator.rounds.run_spec import RunSpec
from fedpatch.coordinator.storage.delta_files import ServerDelta, load_steps, save_step
from fedpatch.shared.tensors.arrays import Schema, values_digest
from fedpatch.shared.wire.messages import MAX_DELTAS, ModelDelta, is_delta


class DeltaHistory:
    """The model deltas of one run, which together are at most as large as one model.

    Args:
        blobs: Blob store of the run.
        schema: Names, shapes and dtypes of the tensors that travel.
        spec: The terms of the run.
    """

    def __init__(self, blobs: BlobStore, schema: Schema, spec: RunSpec) -> None:
        self._blobs = blobs
        self._schema = schema
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
            return aimed
        seed = step_seed(self._spec.seed, aimed.round)
        state, packed = quantised_step(before, aimed, self._schema, self._spec.encoding, seed)
        self._made = ServerDelta(aimed.round, base, self._content(before), self._content(state), packed)
        return state

    def commit(self) -> None:
        """Save the step of the last `apply`, once its state is on disk."""
        if self._made is None:
            return
        self._steps = [*(step for step in self._steps if step.round < self._made.round), self._made]
        save_step(self._blobs, self._made, [step.round for step in self._steps])
        self._made = None

    def path_to(self, state: ServerState, most_bytes: int) -> list[tuple[bytes, ModelDelta]]:
        """Return the chain of deltas that leads to `state`, at most `most_bytes` together; drop all others."""
        if not self._active:
            return []
        self._steps = list(chain(self._steps, self._content(state), most_bytes))
        return [
            (
                step.packed.blob,
                ModelDelta(step.base, step.content, step.packed.manifest(self._spec.chunk_bytes, self._schema)),
            )
            for step in self._steps
        ]

    def _content(self, state: ServerState) -> str:
        """Return the digest of a state's tensors; the digest of the last state is cached."""
        if self._digest is None or self._digest[0] is not state:
            self._digest = (state, values_digest(state.tensors, self._schema))
        return self._digest[1]


def chain(steps: Iterable[ServerDelta], content: str, most_bytes: int) -> tuple[ServerDelta, ...]:
    """Return the chain of steps that leads to a model, the oldest first; each starts where the previous step ends.

    If several steps lead to the same model, the latest round's step is taken. So rolled-back rounds are left out.

    Args:
        steps: The steps that are stored.
        content: Digest of the tensors at the end of the chain.
        most_bytes: The greatest sum of the steps' sizes. A device that needs more, or more than MAX_DELTAS steps, downloads
            the whole model.
    """
    found: list[ServerDelta] = []
    left_bytes = most_bytes
    for step in sorted(steps, key=lambda delta: delta.round, reverse=True):
        if step.content != content or (found and step.round >= found[-1].round):
            continue
        left_bytes -= len(step.packed.blob)
        if left_bytes < 0 or len(found) == MAX_DELTAS:
            break
        found.append(step)
        content = step.before
    return tuple(reversed(found))
