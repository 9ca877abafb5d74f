"""The global model of a round as tensors: the whole download, or the held model and the deltas to the new one.

No unchecked data are used for training. A blob has the SHA-256 of its manifest. However the model came, its tensors have the
digest that the request announces (`content`), which is part of the digest of a masked round. The digest beside a delta is no
substitute: it comes with that delta, so it may differ from device to device.
"""

from __future__ import annotations

import hashlib
import logging
from typing import Any

from fedpatch.device_agent.job.training_messages import Downloaded, TrainCommand
from fedpatch.device_agent.state.download_files import bytes_of
from fedpatch.device_agent.state.model_cache import Held, ModelCache
from fedpatch.shared.errors import FedpatchError, SchemaMismatch, StateError, WireError
from fedpatch.shared.tensors.arrays import Array, Schema, Tensors, values_digest
from fedpatch.shared.tensors.packing import pack, unpack
from fedpatch.shared.wire.messages import Manifest

HELD_ENCODING = "fp32+zstd"
"""Every value unchanged; a tenth less to write to a card than without zstd."""

log = logging.getLogger("fedpatch.training")


def read_global_model(command: TrainCommand, public: Schema, store: ModelCache | None) -> dict[str, Array]:
    """Read the public tensors of the model that a command names.

    Args:
        command: The training command, with the files of the download.
        public: Schema of the public tensors.
        store: Holds the model for the next round, if the command asks for it.

    Returns:
        The tensors by name.

    Raises:
        SchemaMismatch: The model has another shape.
        WireError: The model is damaged or not that of the request, or the deltas do not lead to it: the whole model must be
            downloaded.
        StateError: The disk refused.
    """
    if command.model.schema != public.digest:
        raise SchemaMismatch(
            f"the global model has schema {command.model.schema[:12]}, expected {public.digest[:12]} under policy "
            f"{command.private!r}; coordinator and device need the same version of fedpatch and of the task"
        )
    if command.blob is not None:
        tensors = _unpacked(command.blob, command.model, public)
    else:
        try:
            tensors = _by_steps(command, public, store)
        except FedpatchError as error:
            raise WireError(f"no way from the global model that is held to that of the round: {error}") from error
    checked = _check_content(command, tensors, public)
    if store is not None and command.hold and command.held != command.base and checked:
        _hold(store, command.base, tensors, public)
    return tensors


def _check_content(command: TrainCommand, tensors: Tensors, public: Schema) -> bool:
    """Return whether the tensors are known to be those of `command.base`.

    Without `content` in the request, only a whole model is: its blob has the digest that names the version.

    Raises:
        WireError: The tensors are not those of the request, or a masked round came without their digest.
    """
    if not command.content:
        if command.secure is not None:
            raise WireError("the request of a masked round does not name the values of its model; nothing was trained")
        return not command.held
    found = values_digest(tensors, public)
    if found != command.content:
        raise WireError(
            f"the global model has values with digest {found[:12]}, the request names {command.content[:12]}; "
            "nothing was trained"
        )
    return True


def _by_steps(command: TrainCommand, public: Schema, store: ModelCache | None) -> dict[str, Array]:
    if store is None:
        raise StateError("this device holds no global model from one round to the next")
    held, blob = store.read()
    if (held.version, held.schema) != (command.held, public.digest):
        raise StateError(f"{store.path}: holds version {held.version[:12]}, not {command.held[:12]}")
    if not command.steps and held.version != command.base:
        raise WireError(f"no step leads from version {held.version[:12]} to {command.base[:12]}")
    _, tensors = unpack(blob, encoding=held.encoding, raw_bytes=held.raw_bytes, schema=public)
    for step in command.steps:
        tensors = _unpacked(step.blob, step.delta.manifest, public, tensors)
        found = values_digest(tensors, public)
        if found != step.delta.content:
            raise WireError(f"a step leads to tensors with digest {found[:12]}, expected {step.delta.content[:12]}")
    return tensors


def _unpacked(blob: Downloaded, manifest: Manifest, public: Schema, base: Tensors | None = None) -> dict[str, Array]:
    """Return the tensors of a downloaded blob."""
    return read_blob(blob, manifest, public, base)[1]


def read_blob(
    blob: Downloaded, manifest: Manifest, public: Schema, base: Tensors | None = None
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Read metadata and tensors of a blob.

    Args:
        public: Schema of its tensors.
        base: Tensors that a delta encoding needs; None for a whole model.

    Raises:
        WireError: It is another or a damaged blob.
        StateError: The disk refused.
    """
    data = bytes_of(blob)
    found = hashlib.sha256(data).hexdigest()
    if found != manifest.digest:
        raise WireError(
            f"{blob.path or 'the blob'}: has SHA-256 {found[:12]}, expected {manifest.digest[:12]}; it has to be fetched again"
        )
    return unpack(data, encoding=manifest.encoding, raw_bytes=manifest.raw_bytes, schema=public, base=base)


def _hold(store: ModelCache, version: str, tensors: Tensors, public: Schema) -> None:
    """Hold the model. A failure costs bytes in the next round and does not fail this one."""
    packed = pack(tensors, public, {}, HELD_ENCODING)
    try:
        store.write(Held(version, public.digest, packed.encoding, packed.raw_bytes), packed.blob)
    except StateError as error:
        log.warning("%s; the next round downloads the whole global model", error)
