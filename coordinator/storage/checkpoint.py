"""Checkpoints, one for each round, and the exported model.

    checkpoint-000012.fp        the state after 12 rounds; the last two are kept, more in a run with buffered rounds
    model.npz                   the global model for other programs

Each .fp has a line with the format, the SHA-256 of the content, and the content. So damage is found, and no damaged checkpoint
is used for training. A checkpoint is durable when a function returns. Names with further parts are no checkpoints, so a later
version may add such names.
"""

from __future__ import annotations

import hashlib
import io
import logging
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np

from fedpatch.coordinator.aggregation.masked_scale import MaskedScale
from fedpatch.coordinator.aggregation.server_state import ServerState
from fedpatch.coordinator.blobs.blob_store import BlobStore, Place, blobs_at, require_sealed, write_sealed
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.storage.boot_clock import BootTime
from fedpatch.coordinator.storage.kept_checkpoints import LEAST_KEPT
from fedpatch.shared.errors import SchemaMismatch, StateError, StateUnreadable, UsageError, WireError
from fedpatch.shared.tensors.arrays import Schema, Tensors, TensorSpec, base_name
from fedpatch.shared.tensors.packing import pack, unpack

ENCODING = "fp32"
"""Lossless for every dtype. Compressed values would need a tenth less space and seven times the time."""

_FORMER_RESIDUAL = ":residual"  # end of the names of rounding errors, which only encodings of earlier versions had

MODEL_NPZ = "model.npz"

_CHECKPOINT = b"fedpatch checkpoint 1\n"
_FILE_NAME = re.compile(r"checkpoint-(\d{6,})\.fp/?")  # a repaired file system may hold a directory there
_NEW_RUN = "restore one from a backup, or start a new run"

log = logging.getLogger("fedpatch.checkpoint")


def save_checkpoint(
    place: Place, state: ServerState, schema: Schema, meta: Mapping[str, Any], *, kept: int = LEAST_KEPT
) -> str:
    """Save the state of the server bit for bit, and keep older checkpoints.

    Args:
        place: Blob store of the run, or its directory.
        state: The state, with the moments of the server optimizer.
        schema: Schema of the public model.
        meta: Plain data that `load_checkpoint` returns.
        kept: Number of checkpoints that are kept, including the new one.

    Returns:
        The key of the checkpoint.

    Raises:
        StateError: The store refused the write; earlier checkpoints are unchanged.
    """
    content = {"round": state.round, "schema": schema.to_lists(), "meta": dict(meta)}
    content["references"] = {part: list(values) for part, values in state.references.items()}
    if state.counted:
        content |= {"counted": dict(state.counted), "population": state.population}
    if state.scale is not None:
        content["scale"] = {"ranges": list(state.scale.ranges), "clip": state.scale.clip}
    for part, tensors in (("tensors", state.tensors), ("server", state.server)):
        own = _schema_of(tensors, schema)
        packed = pack(tensors, own, {}, ENCODING)
        content[part] = {
            "schema": own.to_lists(),
            "encoding": packed.encoding,
            "raw_bytes": packed.raw_bytes,
            "blob": packed.blob,
        }
    blobs = blobs_at(place)
    name = f"checkpoint-{state.round:06d}.fp"
    write_sealed(blobs, name, _CHECKPOINT, msgpack.packb(content))
    older = [found for found in _checkpoints(blobs) if found != name and not found.endswith("/")]
    blobs.delete(*older[kept - 1 :])
    return name


def pause_of(rest_s: float, now: BootTime) -> dict[str, Any]:
    """Return the meta of a checkpoint after which the next round may begin in `rest_s` seconds."""
    return {"pause": [rest_s, now.boot, now.uptime_s, now.unix_s]}


def load_checkpoint(place: Place) -> tuple[ServerState, Schema, dict[str, Any]]:
    """Return the newest undamaged state, its public schema and its meta; log the damaged ones.

    The run may continue meanwhile.

    Raises:
        StateError: There is no undamaged checkpoint.
        StateUnreadable, StoreUnavailable: One cannot be read now; no older one is used in its place.
    """
    blobs = blobs_at(place)
    problems = []
    for name in _checkpoints(blobs):
        try:
            loaded = _load(blobs, name)
        except StateUnreadable:
            raise  # an older checkpoint would throw away rounds that are on the disk
        except StateError as error:
            if name not in _checkpoints(blobs):  # the run has newer ones by now
                return load_checkpoint(blobs)
            problems.append(str(error))
            continue
        for problem in problems:
            log.warning("%s; carrying on from round %d (%s)", problem, loaded[0].round, name)
        return loaded
    if problems:
        raise StateError("\n".join([*problems, f"no checkpoint in {blobs.where()} is whole; {_NEW_RUN}"]))
    raise StateError(f"{blobs.where()}: holds no checkpoint, so there is nothing to resume from; {_NEW_RUN}")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read to its end.

    Attributes:
        name: Its key.
        round: Number of completed rounds.
        record: Record of the last round; None for the initial model.
        model_sha256: SHA-256 of the .npz file of its model.
        problem: Description of the damage; None without damage.
    """

    name: str
    round: int
    record: RoundRecord | None = None
    model_sha256: str = ""
    problem: str | None = None


def checkpoints(place: Place) -> list[Checkpoint]:
    """Read all checkpoints, the newest first; one that the run replaces meanwhile is left out. Raises StateUnreadable."""
    blobs = blobs_at(place)
    found = []
    for name in _checkpoints(blobs):
        number = _round_of(name)
        try:
            state, public, meta = _load(blobs, name)
            record = RoundRecord.from_dict(meta["record"]) if "record" in meta else None
            problem = (
                None if state.round == number else f"{blobs.where(name)}: holds the state after round {state.round}"
            )
            model = model_bytes({name: state.tensors[name] for name in public.names})
            found.append(Checkpoint(name, number, record, hashlib.sha256(model).hexdigest(), problem))
        except StateUnreadable:
            raise
        except (StateError, KeyError, TypeError, AttributeError, ValueError) as error:
            if name in _checkpoints(blobs):
                found.append(Checkpoint(name, number, problem=str(error)))
    return found


def newest_round(place: Place) -> int:
    """Return the round of the newest checkpoint, damaged or not; raise StateError if there is none."""
    blobs = blobs_at(place)
    if found := _checkpoints(blobs):
        return _round_of(found[0])
    raise StateError(f"{blobs.where()}: holds no checkpoint; {_NEW_RUN}")


def load_checkpoint_after(place: Place, round: int) -> ServerState:
    """Return the state after `round` rounds.

    Raises:
        UsageError: There is no checkpoint of that round; the error names the rounds that exist.
        StateError: The checkpoint is damaged.
    """
    blobs = blobs_at(place)
    found = {_round_of(name): name for name in _checkpoints(blobs)}
    if round in found:
        return _load(blobs, found[round])[0]
    kept = ", ".join(map(str, found)) or "none"
    raise UsageError(f"{blobs.where()}: holds no checkpoint after round {round}; there are those after: {kept}")


def has_checkpoint(place: Place) -> bool:
    """Return whether there is a checkpoint, damaged or not."""
    return bool(_checkpoints(blobs_at(place)))


def export_model(place: Place, tensors: Tensors) -> str:
    """Write the model among `tensors`, without moments, as an .npz file for numpy.load; equal tensors give equal bytes.

    Only the owner may read a file (mode 0600), since a model reveals facts about its training data.

    Returns:
        Its path or URL.
    """
    blobs = blobs_at(place)
    blobs.put(MODEL_NPZ, model_bytes(tensors))
    return blobs.where(MODEL_NPZ)


def model_bytes(tensors: Tensors) -> bytes:
    """Return the bytes of the .npz file that `export_model` writes."""
    buffer = io.BytesIO()
    # Not numpy.savez: it takes names as keywords, which may clash with its own, and writes the time into the file.
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(tensors):
            if base_name(name) == name:
                info = zipfile.ZipInfo(f"{name}.npy")
                info.external_attr = 0o644 << 16  # the mode after unzip
                with archive.open(info, "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asarray(tensors[name]), allow_pickle=False)
    return buffer.getvalue()


def _schema_of(tensors: Tensors, public: Schema) -> Schema:
    """Return the schema of these tensors: a strategy may keep more tensors than the public model, with other dtypes."""
    specs = []
    for name, array in tensors.items():
        role = public.spec(name).role if name in public else "moment" if ":" in name else "buffer"
        specs.append(TensorSpec(name, array.shape, array.dtype.name, role))
    return Schema(tuple(specs))


def _checkpoints(blobs: BlobStore) -> list[str]:
    """Return the names of all checkpoints, the newest first."""
    return sorted(filter(_FILE_NAME.fullmatch, blobs.list()), key=_round_of, reverse=True)


def _round_of(name: str) -> int:
    return int(name.partition("-")[2].partition(".")[0])


def _load(blobs: BlobStore, name: str) -> tuple[ServerState, Schema, dict[str, Any]]:
    try:
        content = msgpack.unpackb(require_sealed(blobs, name, _CHECKPOINT, "a checkpoint"))
        parts = []
        for part in (content["tensors"], content["server"]):
            own = Schema.from_lists(part["schema"])
            parts.append(unpack(part["blob"], encoding=part["encoding"], raw_bytes=part["raw_bytes"], schema=own)[1])
        server = {tensor: values for tensor, values in parts[1].items() if not tensor.endswith(_FORMER_RESIDUAL)}
        past = {part: tuple(map(float, values)) for part, values in content["references"].items()}
        counted = {str(device): int(number) for device, number in content.get("counted", {}).items()}
        scale, population = _scale_of(content.get("scale")), int(content.get("population", 0))
        state = ServerState(content["round"], parts[0], server, past, scale, counted, population)
        return state, Schema.from_lists(content["schema"]), content["meta"]
    except (
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        msgpack.UnpackException,
        WireError,
        SchemaMismatch,
    ) as error:
        raise StateError(
            f"{blobs.where(name)}: cannot be read back ({error}); use the fedpatch that wrote it"
        ) from error


def _scale_of(content: Mapping[str, Any] | None) -> MaskedScale | None:
    if content is None:
        return None
    return MaskedScale(tuple(map(float, content["ranges"])), float(content["clip"]))
