"""The global model on disk: a checkpoint per round, the updates that are not aggregated yet, and the exported model.

    <run directory>/
        checkpoint-000012.fp        the state after 12 rounds; the last two are kept, more in a run with buffered rounds
        updates/000013/pi-07.fp     the packed update of a device

Each file has a line with the format, the SHA-256 of the content, and the content. So damage is found, and no damaged file is
used for training. The content is on disk when a function returns, and its name too, except after `store_update`.
"""

from __future__ import annotations

import hashlib
import io
import logging
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from fedpatch.coordinator.aggregation.masked_scale import MaskedScale
from fedpatch.coordinator.aggregation.strategies import ServerState
from fedpatch.coordinator.rounds.run_records import RoundRecord
from fedpatch.shared.app.checksummed_file import file_head, unseal
from fedpatch.shared.app.files import (
    make_directory,
    open_atomic,
    remedy_for,
    remove_unfinished,
    sync_directory,
    write_atomic,
)
from fedpatch.shared.config.fields import NAME
from fedpatch.shared.errors import SchemaMismatch, StateError, UsageError, WireError
from fedpatch.shared.tensors.arrays import Schema, Tensors, TensorSpec, base_name
from fedpatch.shared.tensors.packing import pack, unpack

ENCODING = "fp32"
"""Lossless for every dtype. Compressed values would take a tenth less space and seven times the time."""

_ENCODING_BEFORE = "fp32+zstd"  # of checkpoints that do not name theirs
KEPT = 2

_CHECKPOINT = b"fedpatch checkpoint 1\n"
_UPDATE = b"fedpatch update 1\n"
_FILE_NAME = re.compile(r"checkpoint-(\d{6,})\.fp")
_NEW_RUN = "start a new run"

log = logging.getLogger("fedpatch.checkpoint")


def save_checkpoint(
    directory: Path, state: ServerState, schema: Schema, meta: Mapping[str, Any], *, kept: int = KEPT
) -> Path:
    """Save the state of the server bit for bit, and keep older checkpoints.

    Args:
        directory: Directory of the run.
        state: The state, with the moments of the server optimizer.
        schema: Schema of the public model.
        meta: Plain data that `load_checkpoint` returns.
        kept: Checkpoints that are kept, this one among them.

    Returns:
        The path of the checkpoint.

    Raises:
        StateError: The disk refused the write; earlier checkpoints are unchanged.
    """
    content = {"round": state.round, "schema": schema.to_lists(), "meta": dict(meta)}
    content["references"] = {part: list(values) for part, values in state.references.items()}
    if state.counted:
        content["counted"] = dict(state.counted)
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
    path = directory / f"checkpoint-{state.round:06d}.fp"
    with _disk_errors(directory):
        remove_unfinished(directory)
        if path.is_dir():  # a repaired file system may hold anything; a rename cannot replace a directory by a file
            path.rename(path.with_name(f"{path.name}.damaged"))
    _write(path, _CHECKPOINT, msgpack.packb(content))
    with _disk_errors(directory):
        older = [found for found in _checkpoints(directory) if found != path and not found.is_dir()]
        for stale in older[kept - 1 :]:
            stale.unlink(missing_ok=True)
    return path


def load_checkpoint(directory: Path) -> tuple[ServerState, Schema, dict[str, Any]]:
    """Return the newest undamaged state, its public schema and its meta; log the damaged ones.

    The run may continue meanwhile.

    Raises:
        StateError: There is no undamaged checkpoint.
    """
    problems = []
    for path in _checkpoints(directory):
        try:
            loaded = _load(path)
        except StateError as error:
            if path not in _checkpoints(directory):  # the run has newer ones by now
                return load_checkpoint(directory)
            problems.append(str(error))
            continue
        for problem in problems:
            log.warning("%s; carrying on from round %d (%s)", problem, loaded[0].round, path.name)
        return loaded
    if problems:
        raise StateError("\n".join([*problems, f"no checkpoint in {directory} is whole; {_NEW_RUN}"]))
    raise StateError(f"{directory}: holds no checkpoint, so there is nothing to resume from; {_NEW_RUN}")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint's file that was read to its end.

    Attributes:
        path: Path of the file.
        round: Number of completed rounds.
        record: Record of the last round; None for the initial model.
        model_sha256: SHA-256 of the .npz file of its model.
        problem: Description of the damage; None without damage.
    """

    path: Path
    round: int
    record: RoundRecord | None = None
    model_sha256: str = ""
    problem: str | None = None


def checkpoints(directory: Path) -> list[Checkpoint]:
    """Read all checkpoints, the newest first; one that the run replaces meanwhile is left out."""
    found = []
    for path in _checkpoints(directory):
        number = int(path.stem.partition("-")[2])
        try:
            state, public, meta = _load(path)
            record = RoundRecord.from_dict(meta["record"]) if "record" in meta else None
            problem = None if state.round == number else f"{path}: holds the state after round {state.round}"
            model = model_bytes({name: state.tensors[name] for name in public.names})
            found.append(Checkpoint(path, number, record, hashlib.sha256(model).hexdigest(), problem))
        except (StateError, KeyError, TypeError, AttributeError, ValueError) as error:
            if path in _checkpoints(directory):
                found.append(Checkpoint(path, number, problem=str(error)))
    return found


def newest_round(directory: Path) -> int:
    """Return the round of the newest checkpoint, damaged or not; raise StateError if there is none."""
    found = _checkpoints(directory)
    if not found:
        raise StateError(f"{directory}: holds no checkpoint")
    return int(found[0].stem.partition("-")[2])


def load_checkpoint_after(directory: Path, round: int) -> ServerState:
    """Return the state after `round` rounds.

    Raises:
        UsageError: There is no checkpoint of that round; the error names the rounds that exist.
        StateError: The checkpoint is damaged.
    """
    for path in _checkpoints(directory):
        if int(path.stem.partition("-")[2]) == round:
            return _load(path)[0]
    kept = ", ".join(str(int(path.stem.partition("-")[2])) for path in _checkpoints(directory)) or "none"
    raise UsageError(f"{directory}: holds no checkpoint after round {round}; there are those after: {kept}")


def has_checkpoint(directory: Path) -> bool:
    """Return whether there is a checkpoint, damaged or not."""
    return bool(_checkpoints(directory))


def export_model(path: Path, tensors: Tensors) -> None:
    """Write the model among `tensors`, without moments, as an .npz file for numpy.load; equal tensors give equal bytes.

    Only the owner may read the file (mode 0600), since a model reveals something about its training data.
    """
    with _disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, model_bytes(tensors))


def model_bytes(tensors: Tensors) -> bytes:
    """Return the bytes of such a file."""
    buffer = io.BytesIO()
    # Not numpy.savez: it takes names as keywords, of which it has some of its own, and stamps the time into the file.
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(tensors):
            if base_name(name) == name:
                info = zipfile.ZipInfo(f"{name}.npy")
                info.external_attr = 0o644 << 16  # for those who unpack it with unzip
                with archive.open(info, "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asarray(tensors[name]), allow_pickle=False)
    return buffer.getvalue()


def store_update(directory: Path, round: int, device: str, blob: bytes, digest: str = "") -> Path:
    """Save the packed update of a device; an existing one is replaced. Its bytes are on disk then, its name may not be.

    Args:
        directory: Directory of the run.
        round: Number of the round.
        device: The device.
        blob: The packed update.
        digest: Its SHA-256 in hex, if it is known; this saves a second computation.

    Returns:
        The path of the file.

    Raises:
        StateError: The disk refused the write.
    """
    path = _update_path(directory, round, device)
    _write(path, _UPDATE, blob, bytes.fromhex(digest), durable_name=False)
    return path


def sync_updates(directory: Path, round: int) -> None:
    """Flush the names of the updates of a round, of many with one wait for the disk; raise StateError if it refuses."""
    spool = _update_path(directory, round, "any").parent
    with _disk_errors(spool):
        sync_directory(spool)


def load_update(directory: Path, round: int, device: str) -> bytes:
    """Return the packed update of a device.

    Args:
        directory: Directory of the run.
        round: Number of the round.
        device: The device.

    Raises:
        StateError: The update is missing or damaged.
    """
    return bytes(_read(_update_path(directory, round, device), _UPDATE, "an update"))


def drop_round(directory: Path, round: int) -> None:
    """Delete the updates of a round."""
    spool = _update_path(directory, round, "any").parent
    with _disk_errors(spool):
        if spool.is_dir():
            for path in spool.iterdir():
                path.unlink(missing_ok=True)
            spool.rmdir()


def drop_updates(directory: Path, updates: Iterable[tuple[int, str]]) -> None:
    """Delete updates, each given by its round and its device, where a round's folder may still get others."""
    for round, device in updates:
        path = _update_path(directory, round, device)
        with _disk_errors(path):
            path.unlink(missing_ok=True)


def kept_rounds(directory: Path) -> list[int]:
    """Return the numbers of the rounds that have updates on disk."""
    with _disk_errors(directory):
        spools = (directory / "updates").glob("[0-9]*")
        return sorted(int(path.name) for path in spools if path.name.isdecimal())


def kept_devices(directory: Path, round: int) -> list[str]:
    """Return the devices that have an update of a round on disk."""
    with _disk_errors(directory):
        return sorted(path.stem for path in _update_path(directory, round, "any").parent.glob("*.fp"))


def _update_path(directory: Path, round: int, device: str) -> Path:
    if not re.fullmatch(NAME.regex, device):
        raise ValueError(f"{device!r} is no device's name")  # and could be a path to anywhere
    return directory / "updates" / f"{round:06d}" / f"{device}.fp"


def _schema_of(tensors: Tensors, public: Schema) -> Schema:
    """Return the schema of these tensors: a strategy may keep more tensors than the public model, with other dtypes."""
    specs = []
    for name, array in tensors.items():
        role = public.spec(name).role if name in public else "moment" if ":" in name else "buffer"
        specs.append(TensorSpec(name, array.shape, array.dtype.name, role))
    return Schema(tuple(specs))


def _checkpoints(directory: Path) -> list[Path]:
    """Return the paths of all checkpoints, the newest first."""
    with _disk_errors(directory):
        found = [path for path in directory.glob("checkpoint-*.fp") if _FILE_NAME.fullmatch(path.name)]
    return sorted(found, key=lambda path: int(path.stem.partition("-")[2]), reverse=True)


def _load(path: Path) -> tuple[ServerState, Schema, dict[str, Any]]:
    try:
        content = msgpack.unpackb(_read(path, _CHECKPOINT, "a checkpoint"))
        parts = []
        for part in (content["tensors"], content["server"]):
            own = Schema.from_lists(part["schema"])
            encoding = part.get("encoding", _ENCODING_BEFORE)
            parts.append(unpack(part["blob"], encoding=encoding, raw_bytes=part["raw_bytes"], schema=own)[1])
        past = {part: tuple(map(float, values)) for part, values in content.get("references", {}).items()}
        counted = {str(device): int(number) for device, number in content.get("counted", {}).items()}
        state = ServerState(content["round"], parts[0], parts[1], past, _scale_of(content.get("scale")), counted)
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
        raise StateError(f"{path}: cannot be read back ({error})") from error


def _scale_of(content: Mapping[str, Any] | None) -> MaskedScale | None:
    if content is None:
        return None
    return MaskedScale(tuple(map(float, content["ranges"])), float(content["clip"]))


def _write(path: Path, line: bytes, content: bytes, digest: bytes = b"", *, durable_name: bool = True) -> None:
    with _disk_errors(path):
        make_directory(path.parent)
        with open_atomic(path, durable_name=durable_name) as file:
            file.write(file_head(line, content, digest))
            file.write(content)


def _read(path: Path, line: bytes, kind: str) -> memoryview:
    with _disk_errors(path, "make sure that it may be read"):
        data = path.read_bytes()
    return unseal(path, line, data, kind)


@contextmanager
def _disk_errors(path: Path, remedy: str = "make sure there is space and that it may be written") -> Iterator[None]:
    """Raise StateError for errors of the disk, with the path, the system's message and a remedy."""
    try:
        yield
    except FileNotFoundError as error:
        raise StateError(f"{error.filename or path}: is not there") from error
    except OSError as error:
        raise StateError(f"{error.filename or path}: {error.strerror or error}; {remedy_for(error, remedy)}") from error
