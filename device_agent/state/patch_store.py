"""Private patches on disk: P and W of Algorithm 1 (lines 8 and 14), the values and moments that never leave the device.

There is one file per task, model schema and patch policy, and one kept version of it, from an earlier round or another
run. A file holds the patch before and after the round that wrote it: when a round is repeated, because the device
crashed before its update was uploaded or because the coordinator went back to an earlier model, training starts from
the same patch again and is not applied twice.

A file is a line with the format, the SHA-256 of the rest, a msgpack map (task, schema, policy, run, round), and then the two
states. A damaged file is detected and renamed to `.damaged`, and the version before it is used.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack

from fedpatch.shared.app.files import (
    OPEN_TO_OTHERS,
    make_directory,
    previous_of,
    read_header,
    read_state,
    refusals_of,
    remove_unfinished,
    seal,
    sync_directory,
    unreadable,
    unseal,
    write_after,
    write_atomic,
)
from fedpatch.shared.errors import StateError, StateUnreadable, UsageError
from fedpatch.shared.tensors.patch_policy import PatchPolicy, policy_of_names
from fedpatch.shared.tensors.schema import Schema

if TYPE_CHECKING:
    from fedpatch.shared.tensors.arrays import Array

INDEPENDENT = "independent"
"""Directory of the models that were trained alone, below that of the patches (device_agent.training.local_only_training)."""
ALONE = "independent"
"""Policy in the key of a model that was trained alone, which is no policy of a request."""
PERSONAL = "personal"
"""Directory of the personal copies of plans that have one, below that of the patches, in their format."""
CONTROLS = "control"
"""Directory of the device's own control variates, below that of the patches, in their format (SCAFFOLD)."""
MAGIC = b"fedpatch patch 1\n"
PATCH_SUFFIX = ".patch"
RECORD_SUFFIX, RECORD_LINE = ".private", b"fedpatch private 1\n"
"""Suffix and first line of the records of what stayed private (device_agent.policy.private_floor)."""
_HEADER_FIELDS = {"task": str, "schema": str, "policy": str, "run": str, "round": int}

log = logging.getLogger("fedpatch.patches")


@dataclass(frozen=True)
class PatchKey:
    """Identity of a patch: name of the task, digest of the model's schema without moments, policy.

    `policy` is the policy's text and, after a space, the kind of the plan, if it has one.
    """

    task: str
    schema: str
    policy: str

    @classmethod
    def of_plan(cls, task: str, schema: str, policy: str, kind: str) -> PatchKey:
        """Return the key of a round's patch.

        Args:
            schema: Digest of the model's schema without moments.
            policy: Text of the policy.
            kind: Kind of the plan (`TrainPlan.kind`), "" for a plan without terms.
        """
        return cls(task, schema, f"{policy} {kind}".strip())

    @property
    def file_name(self) -> str:
        """Name of the patch's file. A policy's text is no file name, so a hash distinguishes keys."""
        digest = hashlib.sha256("\n".join((self.task, self.schema, self.policy)).encode()).hexdigest()
        return f"{self.task}-{digest[:16]}{PATCH_SUFFIX}"


@dataclass(frozen=True)
class PatchState:
    """Private values and their moments by name, and the number of batches that the device has ever trained.

    Without values, the patch is the initial one.
    """

    values: Mapping[str, Array] = field(default_factory=dict)
    batches_done: int = 0


@dataclass(frozen=True)
class PatchRecord:
    """The patch before and after round `round` of `run`."""

    key: PatchKey
    run: str
    round: int
    before: PatchState
    after: PatchState


@dataclass(frozen=True)
class PatchEntry:
    """One patch file for a list. `modified_s` is its Unix time in seconds; `problem` describes damage."""

    path: Path
    size_bytes: int
    modified_s: float
    task: str = ""
    schema: str = ""
    policy: str = ""
    run: str = ""
    round: int = 0
    problem: str = ""


class PatchStore:
    """The patches of one device in `directory` (0700; made if it is missing); this object is their only writer.

    Permissions that let others read are tightened, with a warning. An error would cost the device its patch and protect
    nothing, since the files were readable before.

    Raises:
        StateError: The directory cannot be used.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        with refusals_of(directory):
            make_directory(directory)
            _tighten(directory, 0o700)
            remove_unfinished(directory)

    def load(self, key: PatchKey, run: str, round: int, *, same_run: bool = False) -> PatchState:
        """Return the patch to train a round from; the empty state if there is none yet.

        If the coordinator has gone back to an earlier round, the exact patch from before the requested round is returned, if
        that round is the round of either version or lies between them; else the oldest known patch of the run. Such a patch
        has been trained a little further, which does no harm: it is merged with the coordinator's model, and its values fit
        this device's own data.

        Args:
            same_run: Whether a patch of another run counts as none.

        Raises:
            StateError: There is a patch, but no version of it can be read.
        """
        try:
            newest = self._newest(key)
            if newest is None:
                return PatchState()
            if newest.run != run:
                return PatchState() if same_run else newest.after
            if newest.round < round:
                return newest.after
            previous = self._earlier(key, newest) if newest.round > round else None
        except OSError as error:
            raise unreadable(error.filename or self.directory, error) from error
        if previous is None:
            return newest.before
        return previous.after if previous.round < round else previous.before

    def forget(self, key: PatchKey) -> None:
        """Delete all versions of a patch; StateError if the disk refuses."""
        path = self.directory / key.file_name
        with refusals_of(path):
            path.unlink(missing_ok=True)
            previous_of(path).unlink(missing_ok=True)
            sync_directory(self.directory)

    def save(self, record: PatchRecord) -> None:
        """Write a record durably and keep the version before it; an equal record is not written again.

        A version of the same run that is not older than the record belongs to a repeated round: it is replaced, and the
        kept version stays.

        Raises:
            StateError: The disk refused; all versions are unchanged.
        """
        path = self.directory / record.key.file_name
        data = _encode(record)
        with refusals_of(path):
            written = read_state(path) if path.exists() else None
            if written == data:
                return
            write = write_atomic if written is None or _is_repeated(path, written, record) else write_after
            write(path, data)

    def _newest(self, key: PatchKey) -> PatchRecord | None:
        path = self.directory / key.file_name
        problems = []
        for candidate in (path, previous_of(path)):
            try:
                record = _read(candidate, key)
            except StateUnreadable:
                raise
            except StateError as error:
                problems.append(str(error))
                continue
            if record is None:
                continue
            if problems:
                self._set_aside(path)
                what = f"using the version before it, of run {record.run}, round {record.round}"
                log.warning("%s; %s", problems[0], what)
            return record
        if problems:
            raise StateError(f"{problems[0]}; delete it to begin again with the initial patch")
        return None

    def _earlier(self, key: PatchKey, newest: PatchRecord) -> PatchRecord | None:
        """Return the kept version, if it leads up to the newest."""
        try:
            kept = _read(previous_of(self.directory / key.file_name), key)
        except StateUnreadable:
            raise
        except StateError as error:
            log.warning("%s; using what the version after it began with", error)
            return None
        return kept if kept is not None and kept.run == newest.run and kept.round <= newest.round else None

    def _set_aside(self, path: Path) -> None:
        """Rename a damaged file, so that it does not become the previous version of the next one."""
        with refusals_of(path):
            os.replace(path, path.with_name(path.name + ".damaged"))
            sync_directory(self.directory)


def patch_problem(path: Path, *, alone: bool = False) -> str:
    """Return why no version of the patch at `path` can be used; "" if one can. Needs no numpy.

    With `alone` only the file itself is read.

    Raises:
        StateUnreadable: A version cannot be read now; it may be whole.
    """
    problems = []
    for candidate in (path,) if alone else (path, previous_of(path)):
        try:
            _header(candidate, read_state(candidate))
        except FileNotFoundError:
            continue
        except StateUnreadable:
            raise
        except (OSError, StateError) as error:
            problems.append(str(error))
        else:
            return ""
    return ", and ".join(problems)


def patch_remedy(path: Path) -> str:
    """Return the remedy for a patch of which no version can be read."""
    lost = "what this device has learned of its own for that task is lost with them, unless a backup has them"
    return f"move {path} and {previous_of(path).name} away to begin again with the initial patch: {lost}"


def list_patches(directory: Path) -> list[PatchEntry]:
    """Return every patch in `directory`, by task. It only reads, so an agent may be running. Needs no numpy."""
    entries = []
    for path in sorted(directory.glob(f"[!.]*{PATCH_SUFFIX}")):
        with refusals_of(path):
            try:
                status, data = path.stat(), path.read_bytes()
            except FileNotFoundError:
                continue
        try:
            header, _ = _header(path, data)
        except StateError as error:
            entries.append(PatchEntry(path, status.st_size, status.st_mtime, problem=str(error)))
        else:
            entries.append(PatchEntry(path, status.st_size, status.st_mtime, **header))
    return entries


def kept_in_patches(directory: Path, task: str) -> list[tuple[str, frozenset[str]]]:
    """Return the policy's text and the private names of every patch of a task, for any schema. Needs no numpy.

    Raises:
        StateError: Neither version of a patch is whole, so its policy is unknown.
        StateUnreadable: A patch cannot be read now.
    """
    found = []
    pattern = re.compile(re.escape(task) + r"-[0-9a-f]{16}" + re.escape(PATCH_SUFFIX))
    paths = {directory / one.name.removesuffix(".previous") for one in directory.glob(f"*{PATCH_SUFFIX}*")}
    for path in sorted(one for one in paths if pattern.fullmatch(one.name)):
        versions = [one for one in (path, previous_of(path)) if one.exists()]
        problems = []
        for version in versions:
            try:
                found.append(_policy_and_names(version))
                break
            except StateUnreadable:
                raise
            except StateError as error:
                problems.append(error)
        else:
            raise StateError(f"{problems[0]}; {patch_remedy(path)}") from problems[0]
    return found


def _policy_and_names(path: Path) -> tuple[str, frozenset[str]]:
    data = read_state(path)
    header, rest = _header(path, data)
    unpacker = msgpack.Unpacker(max_buffer_size=len(data))
    unpacker.feed(rest)
    try:
        states = [unpacker.unpack(), unpacker.unpack()]
        names = frozenset(tensor[0].partition(":")[0] for _, tensors in states for tensor in tensors)
    except (ValueError, TypeError, AttributeError, IndexError, msgpack.exceptions.UnpackException) as error:
        raise StateError(f"{path}: does not hold a patch ({error})") from error
    return header["policy"], names


def _read(path: Path, key: PatchKey) -> PatchRecord | None:
    """Read a patch; None if there is no file. StateError if it is damaged, or not the patch of `key`. Raises OSError."""
    try:
        _tighten(path, 0o600)
        record = _decode(path, read_state(path))
    except FileNotFoundError:
        return None
    if record.key != key:
        raise StateError(f"{path}: is the patch of {record.key}, not of {key}")
    return record


def _is_repeated(path: Path, written: bytes, record: PatchRecord) -> bool:
    """Return whether the file at `path` is of the record's run and of no earlier round, or is damaged."""
    try:
        header, _ = _header(path, written)
    except StateError:
        return True
    return bool(header["run"] == record.run and header["round"] >= record.round)


def _encode(record: PatchRecord) -> bytes:
    header = {**asdict(record.key), "run": record.run, "round": record.round}
    content = b"".join(msgpack.packb(part) for part in (header, _to_list(record.before), _to_list(record.after)))
    return seal(MAGIC, content)


def _to_list(state: PatchState) -> list[Any]:
    from fedpatch.shared.tensors.arrays import little_endian

    return [
        state.batches_done,
        [
            [name, array.dtype.name, list(array.shape), little_endian(array)]
            for name, array in sorted(state.values.items())
        ],
    ]


def _decode(path: Path, data: bytes) -> PatchRecord:
    header, rest = _header(path, data)
    unpacker = msgpack.Unpacker(max_buffer_size=len(data))
    unpacker.feed(rest)
    try:
        before, after = _from_list(unpacker.unpack()), _from_list(unpacker.unpack())
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise StateError(f"{path}: does not hold a patch ({error})") from error
    return PatchRecord(
        PatchKey(header["task"], header["schema"], header["policy"]), header["run"], header["round"], before, after
    )


def _from_list(state: Any) -> PatchState:
    import numpy as np  # only here, since to list patches needs none

    batches_done, tensors = state
    values = {
        name: np.frombuffer(data, np.dtype(dtype).newbyteorder("<")).reshape(shape).astype(dtype)
        for name, dtype, shape, data in tensors
    }
    return PatchState(values, batches_done)


def _header(path: Path, data: bytes) -> tuple[dict[str, Any], memoryview]:
    """Description of a file's patch, and the rest of its content, once its SHA-256 has been checked."""
    content = unseal(path, MAGIC, data, "a patch")
    header, length = read_header(path, content, _HEADER_FIELDS)
    return header, content[length:]


def _tighten(path: Path, mode: int) -> None:
    found = stat.S_IMODE(path.stat().st_mode)
    if found & OPEN_TO_OTHERS:
        log.warning("%s: had permissions %04o, which let others at private values; now %04o", path, found, mode)
        path.chmod(mode)


def key_of_round(task: str, schema: Schema, policy: PatchPolicy, kind: str, directory: Path) -> PatchKey:
    """Return the key of a round's patch: one for each set of private tensors and kind of plan.

    Policies are compared by the names that they keep. With a patch for each wording, a coordinator could have the same batches
    trained from the same patch twice, and the difference of two sums would be the update of one device.

    Args:
        schema: The model's schema without moments.
        kind: Kind of the plan.
        directory: Directory of the patches; it may be absent.
    """
    worded = PatchKey.of_plan(task, schema.digest, str(policy), kind)
    try:
        named = PatchKey.of_plan(task, schema.digest, str(policy_of_names(policy.keeps(schema), schema)), kind)
    except UsageError:  # the names are too long for a text
        return worded
    # Earlier versions had one for each wording.
    return worded if _has(directory, worded) and not _has(directory, named) else named


def _has(directory: Path, key: PatchKey) -> bool:
    """Return whether there is a version of a patch, damaged or not."""
    path = directory / key.file_name
    return path.exists() or previous_of(path).exists()
