"""The model deltas of a run: each round's step is made, saved, and offered to devices that hold an older model.

A run without a delta encoding has none. The last deltas are beside the checkpoints, as a cache that the run does not need:

    delta-000012.fp     the packed delta of round 12

Each file has a line with the format, the SHA-256 of the content, and the content. A damaged or missing delta is left out, and
devices then download the whole model. So no function waits for the disk, and no error of the store ends a run.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection

import msgpack

from fedpatch.coordinator.aggregation.server_delta import (
    ServerDelta,
    chain,
    quantised_step,
    step_seed,
    without_residuals,
)
from fedpatch.coordinator.aggregation.server_state import ServerState
from fedpatch.coordinator.blobs.blob_store import BlobStore, Place, blobs_at, read_sealed
from fedpatch.coordinator.rounds.run_spec import RunSpec
from fedpatch.shared.app.files import seal
from fedpatch.shared.errors import StateError, StoreUnavailable
from fedpatch.shared.tensors.arrays import Schema, values_digest
from fedpatch.shared.tensors.packing import Packed
from fedpatch.shared.tensors.subset import round_seed
from fedpatch.shared.wire.messages import ModelDelta, is_delta


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

    def apply(self, before: ServerState, aimed: ServerState, base: str, round_number: int) -> ServerState:
        """Quantise the step of a round.

        Args:
            before: The state before the round.
            aimed: The state that the strategy made.
            base: The version of the model before the round.
            round_number: Number of the round, failed and evaluate rounds included, by which its devices draw the public subset.

        Returns:
            The state after the quantised step; `aimed` itself in a run without a delta encoding.
        """
        if not self._active:
            return without_residuals(aimed)
        seed = step_seed(self._spec.seed, aimed.round)
        drawn = round_seed(self._spec.seed, round_number)
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


_LINE = b"fedpatch delta 1\n"

_NAME = re.compile(r"delta-.*\.fp")
_UNREADABLE = (StateError, ValueError, TypeError, msgpack.UnpackException)

_log = logging.getLogger("fedpatch.checkpoint")


def save_step(place: Place, step: ServerDelta, beside: Collection[int]) -> None:
    """Save a delta, replacing one of the same round, and delete the deltas of other rounds.

    Args:
        place: Blob store of the run, or its directory.
        step: The delta.
        beside: Rounds whose deltas stay.
    """
    packed = step.packed
    fields = (step.round, step.base, step.before, step.content, packed.encoding, packed.raw_bytes, packed.blob)
    content = msgpack.packb(fields)
    kept = {_name(number) for number in beside}
    blobs = blobs_at(place)
    try:
        blobs.delete(*(name for name in _names(blobs) if name not in kept))
        blobs.put(_name(step.round), seal(_LINE, content), durable=False)
    except (StateError, StoreUnavailable) as error:
        _log.warning("%s; devices take the whole model instead", error)


def load_steps(place: Place) -> list[ServerDelta]:
    """Return the undamaged deltas, by round."""
    blobs = blobs_at(place)
    found = []
    for name in _names(blobs):
        try:
            found.append(_read(blobs, name))
        except _UNREADABLE as error:
            _log.info("%s: left out (%s)", blobs.where(name), error)
    return [step for step in found if step is not None]


def step_problems(place: Place) -> list[str]:
    """Return the problems of the deltas."""
    blobs = blobs_at(place)
    problems = []
    for name in _names(blobs):
        try:
            _read(blobs, name)
        except _UNREADABLE as error:
            path = blobs.where(name)
            problems.append(str(error) if path in str(error) else f"{path}: is damaged ({error})")
    return problems


def _names(blobs: BlobStore) -> list[str]:
    return list(filter(_NAME.fullmatch, blobs.list()))


def _name(round_number: int) -> str:
    return f"delta-{round_number:06d}.fp"


def _read(blobs: BlobStore, name: str) -> ServerDelta | None:
    """Return a delta; None if the run has just deleted it."""
    if (content := read_sealed(blobs, name, _LINE, "a step of the global model")) is None:
        return None
    number, base, before, content_digest, encoding, raw_bytes, blob = msgpack.unpackb(content)
    if name != _name(number):
        raise ValueError("of another round")
    return ServerDelta(number, base, before, content_digest, Packed(blob, raw_bytes, encoding))
