"""Personal models on disk, for the applications of this device: the present one, and some earlier ones.

    <state directory>/models/TASK/
        current -> 000012-RUN-ROUND      a link that is replaced in one rename: it always leads to a whole model
        000012-RUN-ROUND/model.onnx      beside it metadata.json (shared.tasks.model_metadata)
        000012-RUN-ROUND/inputs.json     statistics of the training inputs, 0600: not for the group
        .staged/                         trained, and not yet known to be committed
        kept.json                        why the last round's model did not become the present one
        held                             its owner went back to a model, which stays the present one until it is released

The training process stages a model; the agent's process publishes it by a rename, when the coordinator has committed the
update. A model contains the private patch: directories are 0750 and files 0640, so that only the agent's group may read them.
Nothing here needs torch, NumPy or onnxruntime.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from fedpatch.device_agent.models.export_attempts import ExportAttempts
from fedpatch.shared.app.files import make_directory, refusals_of, remove_unfinished, sync_directory, write_atomic
from fedpatch.shared.app.locks import FileLock
from fedpatch.shared.config.fields import NAME
from fedpatch.shared.errors import StateError, UsageError
from fedpatch.shared.tasks.model_metadata import (
    INPUTS_FILE,
    METADATA_FILE,
    MODEL_FILE,
    ModelMetadata,
    from_json,
    to_json,
)
from fedpatch.shared.typed_values import learn_types

MODELS_DIRECTORY = "models"
CURRENT = "current"
SUMS_FILE = "SHA256SUMS"
"""`sha256sum -c SHA256SUMS` checks a model and its metadata."""

_STAGED, _UNFINISHED, _REMOVED = ".staged", ".unfinished", ".removed"
_LINK, _LOCK, _KEPT, _HELD = ".link", ".lock", "kept.json", "held"
HELD_WORDS = "its owner went back to another model, which stays until `fedpatch-agent rollback --release`"
_VERSION = re.compile(r"(\d{6,})-.+")
_DIRECTORY_MODE, _FILE_MODE, _PRIVATE_MODE = 0o750, 0o640, 0o600


@dataclass(frozen=True)
class ModelVersion:
    """A published model; `problem` describes the damage if `metadata` cannot be read."""

    path: Path
    current: bool
    metadata: ModelMetadata | None
    problem: str = ""

    @property
    def serial(self) -> int:
        """A number that grows with every published model."""
        return _serial(self.path.name)


@dataclass(frozen=True)
class StoredModel:
    """Note that the current model stayed after round `round` of `run`, with the reason."""

    run: str
    round: int
    why: str


learn_types(StoredModel)


class ModelStore:
    """The personal models of a device.

    The current model is complete at every moment, also if a process is killed. Errors of the disk raise StateError.

    Args:
        directory: Directory of the models; each task has a folder below it.
        keep: Number of models of each task to keep, with the current one.
        every_s: Least time between two models, for the agent; 0 to have one of each round.
    """

    def __init__(self, directory: Path, keep: int = 1, *, every_s: float = 0.0) -> None:
        self.every_s = every_s
        self._directory = directory
        self.attempts = ExportAttempts(directory)
        self._keep = max(1, keep)

    # ---- in the training process

    def prepare(self, task: str) -> None:
        """Make the directories of a task, so that the group may read them."""
        with refusals_of(self._directory):
            _make_directory(self._directory)
            _make_directory(self._root(task))

    def stage(self, model: bytes, metadata: ModelMetadata) -> None:
        """Write a model durably to the place where `publish` finds it, and replace a model that is staged.

        Args:
            model: The model.
            metadata: Its metadata.
        """
        root = self._root(metadata.task)
        self.prepare(metadata.task)
        with refusals_of(root):
            self.discard_staged(metadata.task)
            unfinished = root / _UNFINISHED
            shutil.rmtree(unfinished, ignore_errors=True)
            _make_directory(unfinished)
            try:
                write_atomic(unfinished / MODEL_FILE, model, mode=_FILE_MODE)
                described = to_json(replace(metadata, inputs=None))
                if metadata.inputs is not None:
                    write_atomic(unfinished / INPUTS_FILE, msgspec.json.encode(metadata.inputs), mode=_PRIVATE_MODE)
                write_atomic(unfinished / METADATA_FILE, described, mode=_FILE_MODE)
                sums = _sums(metadata, hashlib.sha256(described).hexdigest())
                write_atomic(unfinished / SUMS_FILE, sums, mode=_FILE_MODE)
            except OSError:
                shutil.rmtree(unfinished, ignore_errors=True)  # frees the space of a full disk
                raise
            os.rename(unfinished, root / _STAGED)
            sync_directory(root)

    def discard_staged(self, task: str) -> None:
        """Delete the staged model: it will not be published."""
        root = self._root(task)
        with refusals_of(root):
            if (root / _STAGED).exists():
                _remove(root, root / _STAGED)

    def note_kept(self, task: str, kept: StoredModel) -> None:
        """Note the reason for which the current model stays. An error of the disk is ignored."""
        root = self._root(task)
        try:
            if root.is_dir():
                write_atomic(root / _KEPT, msgspec.json.encode(kept), mode=_FILE_MODE)
        except OSError:
            return

    # ---- in the agent's process

    def knows(self, task: str, run: str, round: int) -> bool:
        """Return whether a model of a round is staged or published, or was refused in favour of the current one."""
        root = self._root(task)
        try:
            newest = next(iter(self.versions(task)), None)
            models = (_read(root / _STAGED), newest.metadata if newest else None)
        except StateError:
            return False
        found = [(one.run, one.round) for one in (*models, self.kept(task)) if one is not None]
        return (run, round) in found

    def publish(self, task: str, run: str, round: int) -> ModelVersion | None:
        """Make the staged model of a round the current one; a repeated call changes nothing.

        Returns:
            The published model; None if the round has no model.

        Raises:
            UsageError: A rollback is in progress.
        """
        root = self._root(task)
        if not root.is_dir():
            return None
        with self._changing(root):
            _tidy(root)
            staged = _read(root / _STAGED)
            if staged is not None and (staged.run, staged.round) == (run, round):
                last = max((_serial(path.name) for path in _versions(root)), default=0)
                target = root / _version_name(last + 1, staged)
                if (root / _HELD).exists():
                    os.rename(root / _STAGED, target)  # without a sync: nobody uses this model yet
                    self._tidy_versions(task, root)
                    self.note_kept(task, StoredModel(run, round, HELD_WORDS))
                    return None
                _prepare_link(root, target)
                sync_directory(root)
                os.rename(root / _STAGED, target)
                sync_directory(root)
            else:
                newest = next(iter(self.versions(task)), None)  # a process may have been killed right after the rename
                if newest is None or newest.metadata is None or not _is_prepared(root, newest.path):
                    return None  # it was published, and may have been rolled back since
                if (newest.metadata.run, newest.metadata.round) != (run, round):
                    return None
                target = newest.path
            _replace_link(root)
            (root / _KEPT).unlink(missing_ok=True)
            self._tidy_versions(task, root)
        return ModelVersion(target, True, _read(target))

    def _tidy_versions(self, task: str, root: Path) -> None:
        for stale in self.versions(task)[self._keep :]:
            if not stale.current:
                _remove(root, stale.path)

    def roll_back(self, task: str, to_round: int | None = None) -> ModelVersion:
        """Make the model before the current one, or the newest of round `to_round`, the current one until `release`.

        If the link to the current model is lost, the newest one becomes it, or the newest before the one that the owner left.

        Raises:
            UsageError: There is no such model; the text names the rounds that there are.
        """
        root = self._root(task)
        if not root.is_dir():
            raise UsageError(f"{root}: holds no model of task {task!r}")
        with self._changing(root):
            whole = [one for one in self.versions(task) if one.metadata is not None]
            present = next((one.serial for one in whole if one.current), None)
            is_lost = self.current(task) is None
            for one in whole:
                assert one.metadata is not None
                earlier = present is None or one.serial < present
                if earlier if to_round is None else one.metadata.round == to_round:
                    if not is_lost or to_round is not None:
                        write_atomic(root / _HELD, b"", mode=_FILE_MODE)
                    _point(root, one.path)
                    return ModelVersion(one.path, True, one.metadata)
        rounds = ", ".join(str(one.metadata.round) for one in whole if one.metadata) or "none"
        what = "of an earlier round" if to_round is None else f"of round {to_round}"
        remedy = "; the next round makes a new one" if to_round is None else ""
        raise UsageError(f"no model {what} of task {task!r} is kept; there are those of rounds: {rounds}{remedy}")

    def release(self, task: str) -> bool:
        """Let the next round's model replace the one that `roll_back` chose; return whether it was held."""
        root = self._root(task)
        if not root.is_dir():
            raise UsageError(f"{root}: holds no model of task {task!r}")
        with self._changing(root):
            held = (root / _HELD).exists()
            (root / _HELD).unlink(missing_ok=True)
            return held

    # ---- reading

    def held(self, task: str) -> bool:
        """Return whether the owner's choice of a model holds."""
        return (self._root(task) / _HELD).exists()

    def tasks(self, *, noted: bool = False) -> list[str]:
        """Return the tasks with models, also if none is current; with `noted` also tasks with a note about a missing model."""
        signs = (CURRENT, _KEPT) if noted else (CURRENT,)
        with refusals_of(self._directory):
            found = [path for path in self._directory.iterdir() if path.is_dir()] if self._directory.is_dir() else []
            return sorted(
                path.name for path in found if any(os.path.lexists(path / sign) for sign in signs) or _versions(path)
            )

    def current(self, task: str) -> Path | None:
        """Return the directory of the current model, by its own name; None if there is none."""
        link = self._root(task) / CURRENT
        try:
            return link.with_name(os.readlink(link))
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno == errno.EINVAL:
                raise StateError(f"{link}: is no link to a model; move it away, and the next round makes it") from error
            raise StateError(f"{link}: {error.strerror}; ask as a user who may read the agent's state") from error

    def versions(self, task: str) -> list[ModelVersion]:
        """Return all published models, the newest first, with damaged ones."""
        root, current = self._root(task), self.current(task)
        versions = []
        for path in _versions(root):
            try:
                metadata = _read(path)
            except StateError as error:
                versions.append(ModelVersion(path, path == current, None, str(error)))
                continue
            if metadata is not None:
                versions.append(ModelVersion(path, path == current, metadata))
        return versions

    def problems(self) -> Iterator[tuple[str, bool]]:
        """Read all files; return the models with damaged files, and whether each is the current one."""
        yield from ((problem, False) for problem in self._staged_problems())
        for task in self.tasks():
            for version in self.versions(task):
                if problem := version.problem or _content_problem(version):
                    yield problem, version.current
            link = self._root(task) / CURRENT
            if not link.exists():
                yield f"{link}: leads to no model", True

    def _staged_problems(self) -> Iterator[str]:
        with refusals_of(self._directory):
            found = sorted(self._directory.glob(f"*/{_STAGED}"))
        for path in found:
            try:
                metadata = _read(path)
            except StateError as error:
                yield str(error)
                continue
            if metadata is not None and (problem := _content_problem(ModelVersion(path, False, metadata))):
                yield problem

    def kept(self, task: str) -> StoredModel | None:
        """Return the reason for which the last round's model is not the current one; None if it is."""
        try:
            return msgspec.json.decode((self._root(task) / _KEPT).read_bytes(), type=StoredModel)
        except (OSError, msgspec.DecodeError):
            return None

    # ---- within

    def _root(self, task: str) -> Path:
        if not re.fullmatch(NAME.regex, task):
            raise UsageError(f"{task!r} is no task's name; it must be {NAME.words}")  # it could be a path to any file
        return self._directory / task

    @contextmanager
    def _changing(self, root: Path) -> Iterator[None]:
        held = f"{root}: another process is changing which model is the present one; try again"
        with refusals_of(root), FileLock(root / _LOCK, held):
            yield


def _serial(name: str) -> int:
    match = _VERSION.fullmatch(name)
    return int(match[1]) if match else 0


def _versions(root: Path) -> list[Path]:
    with refusals_of(root):
        found = root.iterdir() if root.is_dir() else ()
        return sorted((path for path in found if _serial(path.name)), key=lambda path: _serial(path.name), reverse=True)


def _version_name(serial: int, metadata: ModelMetadata) -> str:
    """Return a folder name for people. Programs read the metadata; a run's name comes from the network, so it is made safe."""
    run = re.sub(r"[^A-Za-z0-9_-]", "_", metadata.run)[:64]
    return f"{serial:06d}-{run}-{metadata.round}"


def _read(path: Path) -> ModelMetadata | None:
    """Read a file; None if it does not exist."""
    file = path / METADATA_FILE
    try:
        return from_json(file.read_bytes(), str(file))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StateError(f"{file}: {error.strerror}; ask as a user who may read the agent's state") from error


def _content_problem(version: ModelVersion) -> str:
    """Return the problem that SHA256SUMS shows; models of earlier versions have a sum of the model only."""
    known = version.metadata
    assert known is not None
    try:
        model = hashlib.sha256((version.path / MODEL_FILE).read_bytes()).hexdigest()
        metadata = hashlib.sha256((version.path / METADATA_FILE).read_bytes()).hexdigest()
        sums = version.path / SUMS_FILE
        written = sums.read_bytes() if sums.exists() else None
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    if model != known.sha256:
        return f"{version.path / MODEL_FILE}: is damaged (its SHA-256 is not that of its metadata)"
    if written is not None and not written.strip(b"\0"):  # lost in a power cut; metadata.json has the model's sum
        return ""
    # Models of earlier versions have the sum of an int8 file too, which nothing reads any more.
    if written is not None and not set(_sums(known, metadata).splitlines()) <= set(written.splitlines()):
        return f"{version.path / METADATA_FILE}: is damaged (its SHA-256 is not that of {SUMS_FILE})"
    return ""


def _sums(known: ModelMetadata, metadata: str) -> bytes:
    """Return the content of SUMS_FILE; `metadata` is the SHA-256 of METADATA_FILE."""
    return f"{known.sha256}  {MODEL_FILE}\n{metadata}  {METADATA_FILE}\n".encode()


def _make_directory(path: Path) -> None:
    """Make a directory that the group may read, for any umask."""
    if not path.is_dir():
        make_directory(path)
        path.chmod(_DIRECTORY_MODE)


def _point(root: Path, target: Path) -> None:
    """Replace the link in one rename, durably."""
    _prepare_link(root, target)
    _replace_link(root)


def _prepare_link(root: Path, target: Path) -> None:
    link = root / _LINK
    link.unlink(missing_ok=True)
    link.symlink_to(target.name)


def _is_prepared(root: Path, target: Path) -> bool:
    link = root / _LINK
    return link.is_symlink() and os.readlink(link) == target.name


def _replace_link(root: Path) -> None:
    os.replace(root / _LINK, root / CURRENT)
    sync_directory(root)


def _remove(root: Path, path: Path) -> None:
    """Rename a directory, then delete it, so that an incomplete directory never exists under its own name."""
    shutil.rmtree(root / _REMOVED, ignore_errors=True)
    os.rename(path, root / _REMOVED)
    shutil.rmtree(root / _REMOVED, ignore_errors=True)


def _tidy(root: Path) -> None:
    """Delete files of a killed process."""
    for leftover in (_UNFINISHED, _REMOVED):
        if (root / leftover).exists():
            shutil.rmtree(root / leftover, ignore_errors=True)
    remove_unfinished(root)
