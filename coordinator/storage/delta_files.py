"""Files of model deltas, beside the checkpoints, as a cache that the run does not need.

    delta-000012.fp     the packed delta of round 12

Each file has a line with the format, the SHA-256 of the content, and the content. A damaged or missing delta is left out, and
devices then download the whole model. So no function waits for the disk, and no error of the store ends a run.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from dataclasses import dataclass

import msgpack

from fedpatch.coordinator.blobs.blob_store import BlobStore, Place, blobs_at, read_sealed
from fedpatch.shared.app.files import seal
from fedpatch.shared.errors import StateError, StoreUnavailable
from fedpatch.shared.tensors.packing import Packed
from fedpatch.shared.wire.messages import ENCODINGS

_LINE = b"fedpatch delta 1\n"
_NAME = re.compile(r"delta-.*\.fp")
_UNREADABLE = (StateError, ValueError, TypeError, msgpack.UnpackException)

_log = logging.getLogger("fedpatch.checkpoint")


@dataclass(frozen=True)
class ServerDelta:
    """The packed step of one round's global model.

    Attributes:
        round: The round that made the step.
        base: The version that the step starts from: the digest of that whole model's manifest.
        before: Digest of the tensors before the step (shared.tensors.arrays.values_digest).
        content: Digest of the tensors after it.
        packed: The step as it travels.
    """

    round: int
    base: str
    before: str
    content: str
    packed: Packed


def save_step(place: Place, step: ServerDelta, beside: Collection[int]) -> None:
    """Save a delta, replacing one of the same round, and delete the deltas of other rounds.

    Args:
        place: Blob store of the run, or its directory.
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
    """Return a delta; None if the run has just deleted it, or an earlier version wrote it in an encoding of its own."""
    if (content := read_sealed(blobs, name, _LINE, "a step of the global model")) is None:
        return None
    number, base, before, content_digest, encoding, raw_bytes, blob = msgpack.unpackb(content)
    if name != _name(number):
        raise ValueError("of another round")
    if encoding not in ENCODINGS:
        return None
    return ServerDelta(number, base, before, content_digest, Packed(blob, raw_bytes, encoding))
