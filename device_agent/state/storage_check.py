"""Checks that the device can store a round before it accepts the round, and finds damaged files.

A device that accepts and then fails because of its disk costs the others a round, each time. So it declines, with the reason.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from fedpatch.device_agent.job.download_plan import DownloadPlan, expected_bytes
from fedpatch.device_agent.job.job_events import AdmissionDecision
from fedpatch.device_agent.models.store import MODELS_DIRECTORY, ModelStore
from fedpatch.device_agent.state.history import HISTORY_NAME, read_with_damage
from fedpatch.device_agent.state.leader_epoch import leader_problem
from fedpatch.device_agent.state.masking_file import MaskingFile
from fedpatch.device_agent.state.model_cache import HELD_DIRECTORY, ModelCache
from fedpatch.device_agent.state.offered_bases import OfferedBases
from fedpatch.device_agent.state.patch_store import (
    CONTROLS,
    INDEPENDENT,
    PATCH_SUFFIX,
    PERSONAL,
    RECORD_LINE,
    RECORD_SUFFIX,
    PatchKey,
    key_of_round,
    patch_problem,
    patch_remedy,
)
from fedpatch.device_agent.state.privacy_account import DevicePrivacyAccount
from fedpatch.device_agent.state.revocation_file import RevocationFile
from fedpatch.device_agent.state.update_spool import UpdateSpool
from fedpatch.shared.app.files import previous_of, read_state, remedy_at, remedy_for, stamp_of, unseal, write_atomic
from fedpatch.shared.errors import FedpatchError, StateError, StateUnreadable, problem_and_remedy
from fedpatch.shared.tensors.patch_policy import parse_policy
from fedpatch.shared.tensors.schema import Schema
from fedpatch.shared.wire.messages import WorkRequest
from fedpatch.shared.wire.reason_codes import Condition, DeclineReason

RETRY_S = 300.0
"""A person has to move files or make room, which takes minutes."""

_SPARE_BYTES = 64 * 1024
_PROBE_BYTES = 4096
PATCHES, SPOOL, DOWNLOADS = "patches", "spool", "downloads"


@dataclass(frozen=True)
class StorageProblem:
    """A problem of the device's storage with its remedy; `verdict` is the answer to the coordinator, without paths."""

    text: str
    verdict: AdmissionDecision


class Storage:
    """The files of the agent whose state is in `directory`. A patch is read again only after it has changed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._identity = _identity(directory)
        self._schema: Schema | None = None
        # Only for the last key, since keys come from the network.
        self._known: tuple[object, str] | None = None

    def take(self, schema: Schema) -> None:
        """Take the schema of the model, from which the names that a policy keeps private follow."""
        self._schema = schema

    def problem(self, task: str, request: WorkRequest, plan: DownloadPlan) -> StorageProblem | None:
        """Return the reason for which the device cannot store the work; None if it can.

        Args:
            plan: The download that leads to the request's model.
        """
        name = self._patch_key(task, request).file_name
        patch = self._directory / PATCHES / name
        needed = [patch, patch.parent / PERSONAL / name] if request.plan.personal else [patch]
        return (
            self._directory_problem()
            or self._patch_problem(needed)
            or self._space_problem(patch, request, plan)
            or self._write_problem()
        )

    def _patch_key(self, task: str, request: WorkRequest) -> PatchKey:
        """Return the key of the patch that the training process reads; by the policy's text where the model is another one."""
        schema, kind = self._schema, request.plan.kind
        if schema is not None and schema.digest == request.schema:
            # Of a policy that is declined for this reason, or of files that cannot be looked at, which the check below names.
            with suppress(FedpatchError, OSError):
                return key_of_round(task, schema, parse_policy(request.private), kind, self._directory / PATCHES)
        return PatchKey.of_plan(task, request.schema, request.private, kind)

    def _directory_problem(self) -> StorageProblem | None:
        """Return the problem of a state directory that was deleted or replaced since the agent's start.

        A new directory would have no patch, no record of what stayed private and no privacy account.
        """
        if self._identity is None or _identity(self._directory) == self._identity:
            return None
        return _storage_problem(
            f"{self._directory}: is not the directory that this agent began with; restore it, then restart the agent",
            "its state directory was deleted or replaced",
        )

    def _write_problem(self) -> StorageProblem | None:
        """Return the problem of a disk that takes no file, such as a worn card."""
        if self._identity is None:
            return None
        probe = self._directory / ".probe"
        try:
            write_atomic(probe, bytes(_PROBE_BYTES))
            probe.unlink()
        except OSError as error:
            remedy = remedy_for(error, "make sure that the agent's user may write there")
            text = f"{self._directory}: cannot be written: {error.strerror}; {remedy}"
            return _storage_problem(text, "its disk cannot be written")
        return None

    def _patch_problem(self, paths: Sequence[Path]) -> StorageProblem | None:
        stamp = tuple((path, stamp_of(path), stamp_of(previous_of(path))) for path in paths)
        known = self._known
        if known is None or known[0] != stamp:
            found = ((patch_problem(path), path) for path in paths)
            try:
                text = next((f"{problem}; {patch_remedy(path)}" for problem, path in found if problem), "")
            except StateUnreadable as error:
                # Not remembered: the cause may pass without a change of the file.
                return _storage_problem(str(error), "its private patch for this task cannot be read now")
            known = self._known = stamp, text
        if not known[1]:
            return None
        return _storage_problem(known[1], "its private patch for this task, and the one before it, are damaged")

    def _space_problem(self, patch: Path, request: WorkRequest, plan: DownloadPlan) -> StorageProblem | None:
        try:
            disk = os.statvfs(self._directory)
        except OSError:
            return None
        needed = expected_bytes(request, plan) + _SPARE_BYTES
        needed += sum(
            _size(one / patch.name) for one in (patch.parent, patch.parent / PERSONAL, patch.parent / CONTROLS)
        )
        # Parts of the same model are used, others are deleted to make room.
        needed -= sum(_held_bytes(path) for path in (self._directory / DOWNLOADS).glob("*"))
        free = disk.f_bavail * disk.f_frsize
        readonly = bool(disk.f_flag & os.ST_RDONLY)
        if free >= needed and not readonly:
            return None
        why = "its disk is read-only" if readonly else "its disk has too little room for the round"
        text = f"{self._directory}: " + ("the disk is read-only" if readonly else f"{free} bytes free, {needed} needed")
        remedy = remedy_at(self._directory, "free some space on this disk")
        return StorageProblem(f"{text}; {remedy}", AdmissionDecision(False, why, Condition.LOW_DISK, RETRY_S))


def _storage_problem(text: str, why: str) -> StorageProblem:
    return StorageProblem(text, AdmissionDecision(False, why, retry_after_s=RETRY_S, reason=DeclineReason.STORAGE))


def _identity(directory: Path) -> tuple[int, int] | None:
    """Return a value that another directory of the same name does not have; None if there is none."""
    try:
        found = directory.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _alone_remedy(path: Path) -> str:
    return f"delete {path} and {previous_of(path).name}: learning alone is measured from its beginning again"


def stored_problems(directory: Path, private: str = "") -> Iterator[tuple[bool, str, str]]:
    """Return every damaged file of the agent's state: whether rounds are declined because of it, the problem, the remedy.

    All files are read to their end, and nothing is changed.

    Args:
        directory: State directory of the agent.
        private: The owner's setting `private`, with which no round is declined for a damaged record of what stayed private.

    Raises:
        OSError: A directory, or a file without which rounds are declined, cannot be read.
        StateError: As OSError.
    """
    _names(directory)  # raises OSError once, not for each file
    yield from _record_problems(directory, private)
    yield from _patch_problems(directory / PATCHES)
    yield from _patch_problems(directory / PATCHES / INDEPENDENT)
    yield from _patch_problems(directory / PATCHES / PERSONAL)
    yield from _patch_problems(directory / PATCHES / CONTROLS)
    held = ModelCache(directory / HELD_DIRECTORY)
    if held.path.exists():
        try:
            held.read()
        except StateError as error:
            yield False, str(error), "nothing: the next round downloads the whole global model"
    if problem := UpdateSpool.problem(directory / SPOOL):
        yield False, problem, "nothing: it is dropped when the agent starts, and the round's work with it"
    models = ModelStore(directory / MODELS_DIRECTORY)
    for problem, current in models.problems():
        remedy = "`fedpatch-agent rollback` goes back to another; the next round makes a new one"
        yield False, problem, remedy if current else "delete it: it is not in use"


def _record_problems(directory: Path, private: str) -> Iterator[tuple[bool, str, str]]:
    try:
        DevicePrivacyAccount(directory)
    except StateError as error:
        yield True, *problem_and_remedy(str(error))
    yield from _masking_problems(directory)
    yield from _light_problems(directory)
    for name in _names(directory / PATCHES):
        if name.endswith(RECORD_SUFFIX):
            path = directory / PATCHES / name
            try:
                unseal(path, RECORD_LINE, read_state(path), "a record of what stayed private")
            except StateUnreadable as error:
                yield True, *problem_and_remedy(str(error))
            except StateError as error:
                remedy = "set `private` to what is to stay at least, or delete it: it is made anew from the patches"
                yield not private, str(error), remedy


def _masking_problems(directory: Path) -> Iterator[tuple[bool, str, str]]:
    """Return the faulty files of masked rounds: the secrets of the last one, the spent bases, the revoked certificates."""
    try:
        if problem := MaskingFile(directory).problem():
            yield (
                False,
                problem,
                "nothing: the agent deletes it when it starts, and the device is lost to its last group",
            )
    except StateError as error:  # the agent does not start
        yield True, *problem_and_remedy(str(error))
    for check in (OfferedBases(directory).check, RevocationFile(directory).load):
        try:
            check()
        except StateError as error:
            yield True, *problem_and_remedy(str(error))


def _light_problems(directory: Path) -> Iterator[tuple[bool, str, str]]:
    """Return the damaged files of light weight: the epoch of the leader, and the history."""
    try:
        if problem := leader_problem(directory):
            yield False, problem, "nothing: it is written again; until then a former leader could be obeyed"
    except StateError as error:  # the agent does not start
        yield True, *problem_and_remedy(str(error))
    try:
        if damaged := read_with_damage(directory)[1]:
            yield False, f"{directory / HISTORY_NAME}: damaged lines: {damaged}", "nothing: they are left out"
    except StateError as error:
        yield False, *problem_and_remedy(str(error))


def _names(directory: Path) -> list[str]:
    """Names in a directory, none where it is absent. OSError where it cannot be read, unlike Path.glob.

    Names with a dot are unfinished files, or files that macOS leaves beside copies (`._`).
    """
    try:
        return sorted(name for name in os.listdir(directory) if not name.startswith("."))
    except FileNotFoundError:
        return []


def _patch_problems(directory: Path) -> Iterator[tuple[bool, str, str]]:
    names = {name.removesuffix(".previous") for name in _names(directory) if PATCH_SUFFIX in name}
    for path in sorted(directory / name for name in names if name.endswith(PATCH_SUFFIX)):
        try:
            problem = patch_problem(path)
        except StateUnreadable as error:
            yield True, *problem_and_remedy(str(error))
            continue
        if problem:
            harmless = {
                INDEPENDENT: _alone_remedy(path),
                CONTROLS: "nothing: the next round begins with a new one, of zero",
            }
            remedy = harmless.get(directory.name)
            yield remedy is None, problem, remedy or patch_remedy(path)
            continue
        for version in (path, previous_of(path)):
            if version.exists() and (problem := patch_problem(version, alone=True)):
                other = "the one before it" if version == path else "none, should the newest be damaged too"
                yield False, problem, f"nothing is lost but a version to go back to: the next round uses {other}"


def _held_bytes(path: Path) -> int:
    """Return the bytes that the disk has allocated for the file; a download has its final size from the beginning."""
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
