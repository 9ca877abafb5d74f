"""The last model deltas as files beside the checkpoints: a cache that the run can do without.

    <run directory>/
        delta-000012.fp     the packed delta of round 12

Each file has a line with the format, the SHA-256 of the content, and the content. A damaged or missing file is left out, and
devices then download the whole model. So no function waits for the disk, and no error of the disk ends a run.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path

import msgpack

from fedpatch.coordinator.aggregation.server_delta import ServerDelta
from fedpatch.shared.app.checksummed_file import seal, unseal
from fedpatch.shared.app.files import write_atomic
from fedpatch.shared.errors import StateError
from fedpatch.shared.tensors.packing import Packed

_LINE = b"fedpatch delta 1\n"

_UNREADABLE = (OSError, StateError, ValueError, TypeError, msgpack.UnpackException)

_log = logging.getLogger("fedpatch.checkpoint")


def save_step(directory: Path, step: ServerDelta, beside: Collection[int]) -> None:
    """Save a delta in place of one of the same round, and delete the deltas of other rounds.

    Args:
        directory: Directory of the run.
        step: The delta.
        beside: Rounds whose deltas stay.
    """
    packed = step.packed
    fields = (step.round, step.base, step.before, step.content, packed.encoding, packed.raw_bytes, packed.blob)
    content = msgpack.packb(fields)
    kept = {_name(number) for number in beside}
    try:
        for path in directory.glob("delta-*.fp"):
            if path.name not in kept and path.is_file():
                path.unlink(missing_ok=True)
        write_atomic(directory / _name(step.round), seal(_LINE, content), durable=False)
    except OSError as error:
        _log.warning("%s: %s; devices take the whole model instead", error.filename or directory, error.strerror)


def load_steps(directory: Path) -> list[ServerDelta]:
    """Return the undamaged deltas, by round."""
    found = (_load(path) for path in sorted(directory.glob("delta-*.fp")))
    return [step for step in found if step is not None]


def _name(round_number: int) -> str:
    return f"delta-{round_number:06d}.fp"


def step_problem(path: Path) -> str | None:
    """Return the problem of a delta's file; None for none, also if the run has just deleted it."""
    try:
        _read(path)
    except FileNotFoundError:
        return None
    except _UNREADABLE as error:
        return str(error) if str(path) in str(error) else f"{path}: is damaged ({error})"
    return None


def _load(path: Path) -> ServerDelta | None:
    try:
        return _read(path)
    except _UNREADABLE as error:
        _log.info("%s: left out (%s)", path, error)
        return None


def _read(path: Path) -> ServerDelta:
    content = unseal(path, _LINE, path.read_bytes(), "a step of the global model")
    number, base, before, content_digest, encoding, raw_bytes, blob = msgpack.unpackb(content)
    if path.name != _name(number):
        raise ValueError("of another round")
    return ServerDelta(number, base, before, content_digest, Packed(blob, raw_bytes, encoding))
