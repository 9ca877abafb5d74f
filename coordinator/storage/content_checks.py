"""Checks of the stored data for the doctor: registry, journals, checkpoints, deltas, updates, exported models.

Data that are stored twice are compared, and data with a checksum are checked against it. Nothing is changed.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from fedpatch.coordinator.blobs.blob_store import BlobStore, run_blobs
from fedpatch.coordinator.rounds.round_record import RoundRecord, aggregated_rounds
from fedpatch.coordinator.rounds.run_summary import RunInfo
from fedpatch.coordinator.rounds.stored_update import StoredUpdate
from fedpatch.coordinator.storage.checkpoint import MODEL_NPZ, Checkpoint, checkpoints
from fedpatch.coordinator.storage.database.opening import exists, url_of
from fedpatch.coordinator.storage.database.registry_damage import rebuild_hint
from fedpatch.coordinator.storage.database.registry_files import copy_of
from fedpatch.coordinator.storage.database.sqlite_file import problem_of
from fedpatch.coordinator.storage.delta_files import step_problems
from fedpatch.coordinator.storage.run_journal import FILE, RUNS, Known, RunHistory, journals, read_journal
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.coordinator.storage.update_files import load_update
from fedpatch.shared.diagnostics.checks import Checkup, error_text
from fedpatch.shared.errors import FedpatchError, StateError, StateUnreadable, problem_and_remedy
from fedpatch.shared.tasks.model_metadata import MODEL_FILE, from_json

_SHOWN = 5


def check_stored(state_dir: Path, checkup: Checkup) -> None:
    """Run the checks `registry` and `runs`, unless nothing is stored yet."""
    path = state_dir / REGISTRY_FILE
    if not exists(path):
        return
    checkup.say(f"reading back what is stored in {state_dir}")
    runs = _check_registry(path, checkup)
    if runs is not None:
        _check_runs(state_dir, runs, checkup)


_Runs = list[tuple[Known, list[StoredUpdate]]]


def _check_registry(path: Path, checkup: Checkup) -> _Runs | None:
    """Return the runs of the registry; None if it cannot be read."""
    try:
        with Registry(path, readonly=True) as registry:
            runs = [(registry.known(run.id), registry.rounds.open_updates(run.id)) for run in registry.runs()]
            strangers = registry.holds.of_nobody()
    except FedpatchError as error:
        checkup.fail("registry", *problem_and_remedy(error_text(error)))
        return None
    copy = copy_of(path)
    kept = copy.is_file()
    problem = problem_of(copy) if kept else None
    if problem is not None:
        checkup.warn("registry", f"{copy}: {problem}", "it is made again when a round or a run ends; or delete it")
    elif strangers:
        text = f"{path}: holds back devices that it has never seen: {', '.join(strangers[:_SHOWN])}"
        checkup.warn("registry", text, "release them, and hold back whom you mean (fedpatch devices)")
    elif url := url_of(path):
        checkup.good("registry", f"{url} can be read: {len(runs)} runs")
    else:
        of_copy = "and so can its copy" if kept else f"its copy {copy.name} is not there yet"
        checkup.good("registry", f"{path.name} can be read: {len(runs)} runs; {of_copy}")
    return runs


def _check_runs(state_dir: Path, runs: _Runs, checkup: Checkup) -> None:
    problems = 0
    for fails, text, remedy in _problems(state_dir, runs):
        problems += 1
        (checkup.fail if fails else checkup.warn)("runs", text, remedy)
    if not problems:
        checkup.good(
            "runs", f"journals, checkpoints, steps, updates and models of {len(runs)} runs are what was written"
        )


_Problem = tuple[bool, str, str]
"""True for a failure; the fault; the remedy."""


def _problems(state_dir: Path, runs: _Runs) -> Iterator[_Problem]:
    ids = {known.run.id for known, _ in runs}
    path = state_dir / REGISTRY_FILE
    for stray in journals(state_dir):
        if stray.parent.name not in ids:
            yield True, f"{stray.parent} is not in the registry", rebuild_hint(path)
    for known, updates in runs:
        run, records = known.run, known.records
        directory = state_dir / RUNS / run.id
        if not directory.is_dir():
            continue  # the directory was deleted, or the run has not begun
        yield from _journal_problems(known, directory / FILE, rebuild_hint(path))
        try:
            blobs = run_blobs(run.settings, directory, run.epoch)
            kept = checkpoints(blobs)
            yield from _checkpoint_problems(run, records, blobs, kept, rebuild_hint(path))
            yield from _blob_problems(run, blobs, kept)
            yield from _update_problems(blobs, updates)
        except FedpatchError as error:
            yield True, *problem_and_remedy(error_text(error))
        onnx = directory / MODEL_FILE
        if onnx.is_file() and (problem := _onnx_problem(onnx)):
            yield False, f"{onnx}: is damaged ({problem})", f"delete it; `fedpatch export {run.id}` writes it again"


def _journal_problems(known: Known, path: Path, remedy: str) -> Iterator[_Problem]:
    run, records = known.run, known.records
    go_on = f"`fedpatch resume {run.id}` writes it again when the run goes on; `fedpatch report {run.id}` keeps what there is"
    try:
        history = read_journal(path)
    except (OSError, StateError) as error:
        why = str(error) if isinstance(error, StateError) else f"{path}: {error.strerror}"
        yield (
            False,
            f"{why}, so this run could not be rebuilt",
            "any command that writes makes it again",
        )
        return
    if history.damaged_lines:
        lines = ", ".join(map(str, history.damaged_lines[:_SHOWN]))
        yield False, f"{path}: line {lines} is damaged", go_on
    if history.changes < known.changes:
        if not history.damaged_lines:
            yield False, f"{path}: lags behind the registry, which has what could not be written there", go_on
        return
    differing = differing_rounds(records, history)
    if differing:
        rounds = ", ".join(map(str, differing[:_SHOWN]))
        text = f"run {run.id}: the registry's record of round {rounds} is not what was written, which {path.name} has"
        yield True, text, remedy
    lacking = [one.round for one in records if one.round not in history.records]
    if lacking and not history.damaged_lines:
        yield False, f"{path}: lacks round {', '.join(map(str, lacking[:_SHOWN]))}", go_on
    if history.run is not None and (names := _differing_fields(run, history.run)):
        text = f"run {run.id}: {', '.join(names)} in the registry differs from what was written, which {path.name} has"
        yield False, text, f"nothing, if it was changed on purpose; else {remedy}"


def differing_rounds(records: Sequence[RoundRecord], history: RunHistory) -> list[int]:
    """Return the rounds before the registry's last whose record in the journal differs or is missing in the registry."""
    known = {one.round: one for one in records}
    last = max(known, default=0)
    return [number for number, one in sorted(history.records.items()) if number <= last and known.get(number) != one]


def _differing_fields(run: RunInfo, written: RunInfo) -> list[str]:
    ours, theirs = asdict(run), asdict(written)
    return [name for name in ours if ours[name] != theirs[name]]


def _checkpoint_problems(
    run: RunInfo, records: Sequence[RoundRecord], blobs: BlobStore, kept: Sequence[Checkpoint], rebuild: str
) -> Iterator[_Problem]:
    aggregated = aggregated_rounds(records)
    whole = [one for one in kept if one.problem is None]
    for one in kept:
        if one.problem is not None:
            before = next((other.round for other in whole if other.round < one.round), None)
            to = "nothing: there is no other" if before is None else f"the model after round {before}"
            remedy = f"restore it from a backup; without it `fedpatch resume` and `fedpatch export` go back to {to}"
            yield one.round == kept[0].round or not whole, one.problem, remedy
    if kept and kept[0].round < aggregated:
        text = f"{blobs.where()}: the newest checkpoint has {kept[0].round} of the run's {aggregated} aggregated rounds"
        yield True, text, "restore it from a backup; `fedpatch resume` plays the rounds since then again"
    if not kept and records:
        yield (
            True,
            f"{blobs.where()}: holds no checkpoint",
            "restore one from a backup; without it the run cannot be resumed",
        )
    by_round = {one.round: one for one in records}
    for one in whole:
        if one.record is not None and by_round.get(one.record.round, one.record) != one.record:
            text = (
                f"run {run.id}: the registry's record of round {one.record.round} differs from the record in {one.name}"
            )
            yield True, text, rebuild


def _blob_problems(run: RunInfo, blobs: BlobStore, kept: Sequence[Checkpoint]) -> Iterator[_Problem]:
    for problem in step_problems(blobs):
        yield False, problem, "delete it: devices download the whole model instead"
    if (npz := blobs.get(MODEL_NPZ)) is not None and (bad := _npz_problem(npz, run, kept)):
        text = f"{blobs.where(MODEL_NPZ)}: is damaged ({bad})"
        yield False, text, "delete it; it is written again when the run goes on and ends"


def _npz_problem(data: bytes, run: RunInfo, kept: Sequence[Checkpoint]) -> str | None:
    """Return the problem of an exported model. An active run may have written it after a round without a checkpoint."""
    try:
        if hashlib.sha256(data).hexdigest() in {one.model_sha256 for one in kept}:
            return None
        if run.status == "finished" and all(one.problem is None for one in kept):
            return "it is not the model of a checkpoint"
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            bad = archive.testzip()
        return None if bad is None else f"the checksum of {bad} does not fit"
    except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        return str(error)


def _onnx_problem(path: Path) -> str | None:
    metadata = path.with_name(f"{path.name}.json")
    try:
        written = from_json(metadata.read_bytes(), str(metadata)).sha256
        return (
            None
            if hashlib.sha256(path.read_bytes()).hexdigest() == written
            else "its SHA-256 is not that of its metadata"
        )
    except (OSError, StateError) as error:
        return error_text(error)


def _update_problems(blobs: BlobStore, updates: Sequence[StoredUpdate]) -> Iterator[_Problem]:
    for one in updates:
        try:
            blob = load_update(blobs, one.round, one.device)
            fine = hashlib.sha256(blob).hexdigest() == one.digest
            problem = (
                "" if fine else f"the update of {one.device} in round {one.round} is not the one that was committed"
            )
        except StateUnreadable:
            raise
        except StateError as error:
            problem = error_text(error)
        if problem:
            yield False, problem, "nothing: `fedpatch resume` drops it and asks its device again"
