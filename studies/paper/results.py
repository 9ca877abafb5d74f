"""Results on disk: one file per table of the paper, with a line per cell and seed.

results/table2.jsonl      finished
results/.unfinished/table2/mnist/fedavg/affine/W200/C1.0-seed0/   state to resume from
results/.unfinished/table2/mnist/fedavg/affine/W200/C1.0-seed0.json   completed rounds, commit and processor
results/.unfinished/table2/mnist/fedavg/affine/W200/C1.0-seed0.lock   held by the process that computes it
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from benchmarks.support.json_lines import UNFINISHED, JsonLines, Record
from fedpatch.shared import __version__
from fedpatch.shared.app.files import write_atomic
from fedpatch.shared.app.locks import FileLock
from fedpatch.shared.errors import UsageError
from fedpatch.shared.tasks.task import data_root
from fedpatch.simulator.spec.plain_values import from_plain
from fedpatch.simulator.spec.study import Outcome, Study
from studies.paper.experiments import Cell, study_of

FORMAT = 1
DATASETS = {"mnist": "MNIST", "cifar10": "CIFAR-10"}  # names of the tasks' data

_CURVE_DIGITS = 5
_OTHER_DIGITS = 4
_READABLE = 0o644  # results are shared


@dataclass(frozen=True)
class Result:
    """The result of a cell with one seed, and its origin.

    `curve[t]` is the user accuracy after t completed rounds, `p10[t]` its 10th percentile over the clients. `train_loss[t]` is
    the mean over the steps of round t + 1, None if it was not finite. These three are rounded; `rounds_to_target` is not
    affected. `dataset` names the data, `started_at` is in UTC, `seconds` is computing time. `commit` and `processor` are None
    in results of earlier versions; `commit` also if the code is not in a checkout. They name two, as `A, then B`, if the
    simulation was resumed with another one. `diverged` is the error of a training with
    non-finite or too large values, which ended the simulation.
    """

    cell: str
    dataset: str
    study: Study
    rounds_to_target: int | None
    user_accuracy: float
    seconds: float
    curve: tuple[float, ...]
    p10: tuple[float, ...]
    train_loss: tuple[float | None, ...]
    started_at: str
    command: str
    workers: int
    device: str
    fedpatch: str
    versions: Mapping[str, str]
    commit: str | None = None
    processor: str | None = None
    diverged: str | None = None

    @property
    def rounds(self) -> int:
        """Number of completed rounds."""
        return len(self.curve) - 1


@dataclass(frozen=True)
class ResultOrigin:
    """Number of processes, device (as torch names it), command, commit and processor of results."""

    workers: int = 1
    device: str = "cpu"
    command: str = ""
    commit: str | None = None
    processor: str | None = None


def result_of(
    cell: Cell, outcome: Outcome, origin: ResultOrigin, started_at: str, *, diverged: str | None = None
) -> Result:
    """Return the result of a simulation of `cell` that is complete, or that ended with the error `diverged`."""
    points = outcome.points
    return Result(
        cell=cell.name,
        dataset=dataset_name(cell.task, data_root()),
        study=outcome.study,
        rounds_to_target=outcome.rounds_to_target,
        user_accuracy=points[-1].user_accuracy,
        seconds=round(outcome.seconds, 1),
        curve=tuple(round(one.user_accuracy, _CURVE_DIGITS) for one in points),
        p10=tuple(round(one.p10, _OTHER_DIGITS) for one in points),
        train_loss=tuple(_rounded_loss(one.train_loss) for one in points[1:]),
        started_at=started_at,
        command=origin.command,
        workers=origin.workers,
        device=origin.device,
        fedpatch=__version__,
        versions=outcome.versions,
        commit=origin.commit,
        processor=origin.processor,
        diverged=diverged,
    )


def dataset_name(task: str, root: Path) -> str:
    """Return the name of the data below `root`: a copy with other pixels has another name."""
    if task != "cifar10":
        return DATASETS.get(task, task)
    from fedpatch.shared.tasks.bundled.cifar10 import ARCHIVE, JPEG75

    copied = JPEG75.path(root).exists() and not ARCHIVE.path(root).exists()
    return f"{DATASETS[task]} (JPEG q75)" if copied else DATASETS[task]


class Results:
    """The results below a folder, which is made for the first result."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._tables: dict[str, JsonLines[tuple[str, int]]] = {}

    def table(self, cell: Cell) -> JsonLines[tuple[str, int]]:
        """Return the finished results of the cell's table."""
        return self._tables.setdefault(cell.where, JsonLines(self.folder / f"{cell.where}.jsonl", _key_of))

    def saved(self, cell: Cell, seed: int) -> Path:
        """Return the folder for the state of an unfinished simulation."""
        return self.folder / UNFINISHED / f"{cell.name}-seed{seed}"

    def seeds(self, cell: Cell) -> list[int]:
        """Return the finished seeds, in order."""
        return sorted(seed for name, seed in self.table(cell).keys if name == cell.name)

    def unfinished_seeds(self, cell: Cell) -> list[int]:
        """Return the seeds that have begun but are not finished, in order."""
        prefix = self.saved(cell, 0).name.removesuffix("0")
        notes = self.saved(cell, 0).parent.glob(f"{prefix}*.json")
        begun = {int(number) for one in notes if (number := one.stem.removeprefix(prefix)).isdecimal()}
        return sorted(begun.difference(self.seeds(cell)))

    def read(self, cell: Cell, seed: int) -> Result | None:
        """Return the finished result; None if there is none.

        Raises UsageError with the remedy if the line is damaged or has other terms: such a result must not count.
        """
        values = self.table(cell).get((cell.name, seed))
        if values is None:
            return None
        try:
            result = _parse(values)
        except (KeyError, TypeError, ValueError, UsageError) as error:
            place = self.table(cell).place((cell.name, seed))
            raise UsageError(f"{place} is damaged ({error}); delete the line to compute it again") from error
        self._check_terms(result, cell, seed)
        return result

    def _check_terms(self, result: Result, cell: Cell, seed: int) -> None:
        wanted = study_of(cell, seed)
        if result.study == wanted:
            return
        name = next(one.name for one in fields(Study) if getattr(result.study, one.name) != getattr(wanted, one.name))
        raise UsageError(
            f"{self.table(cell).place((cell.name, seed))} was computed with {name} {getattr(result.study, name)!r}, which "
            f"now is {getattr(wanted, name)!r}; delete the line to compute it again"
        )

    def rounds_done(self, cell: Cell, seed: int) -> int:
        """Return the rounds that an unfinished simulation had completed at its last note; 0 if none has begun."""
        values = _read_json(self._progress(cell, seed)) or {}
        done = values.get("rounds")
        return done if isinstance(done, int) else 0

    def note_progress(self, cell: Cell, seed: int, rounds: int, origin: ResultOrigin) -> None:
        """Write the completed rounds, which may be old, and the origin: for `rounds_done` and `resumed_origin`."""
        noted = {"rounds": rounds, "commit": origin.commit, "processor": origin.processor}
        _write_json(self._progress(cell, seed), noted)

    def resumed_origin(self, cell: Cell, seed: int, origin: ResultOrigin) -> ResultOrigin:
        """Return `origin` with the commit and the processor of the rounds that a resumed simulation has completed before.

        A simulation without a saved state begins anew.
        """
        if not any(self.saved(cell, seed).glob("*")):
            return origin
        noted = _read_json(self._progress(cell, seed)) or {}
        commit, processor = (_followed(noted.get(name), getattr(origin, name)) for name in ("commit", "processor"))
        return replace(origin, commit=commit, processor=processor)

    def write(self, cell: Cell, seed: int, result: Result) -> None:
        """Write a finished result, and delete its state and progress."""
        self.table(cell).put(_plain(result))
        self._delete_unfinished(cell, seed)

    def discard(self, cell: Cell, seed: int) -> None:
        """Delete the finished result."""
        self.table(cell).delete((cell.name, seed))

    def discard_unfinished(self, cell: Cell, seed: int, commit: str | None) -> None:
        """Delete state and progress that another commit began, unless another process computes the cell."""
        noted = _read_json(self._progress(cell, seed))
        if noted is None or noted.get("commit") == commit:
            return
        with self.claimed(cell, seed) as ours:
            if ours:
                self._delete_unfinished(cell, seed)

    def _delete_unfinished(self, cell: Cell, seed: int) -> None:
        self._progress(cell, seed).unlink(missing_ok=True)
        shutil.rmtree(self.saved(cell, seed), ignore_errors=True)

    @contextmanager
    def claimed(self, cell: Cell, seed: int) -> Iterator[bool]:
        """Yield whether this process may compute the cell: False if it is finished, or another process computes it.

        The claim ends with the block.
        """
        path = self.saved(cell, seed).with_name(f"{self.saved(cell, seed).name}.lock")
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lock = FileLock(path, f"{path} is held")
        except UsageError:
            yield False
            return
        with lock:
            # The previous holder may have finished the cell. The file is deleted only if the cell is finished.
            yield self.table(cell).get((cell.name, seed)) is None
            if self.table(cell).get((cell.name, seed)) is not None:
                path.unlink(missing_ok=True)

    def _progress(self, cell: Cell, seed: int) -> Path:
        return self.saved(cell, seed).with_name(f"{self.saved(cell, seed).name}.json")


def _key_of(record: Record) -> tuple[str, int]:
    return record["cell"], record["study"]["seed"]


def _followed(before: object, now: str | None) -> str | None:
    """Return `A, then B` if rounds were computed with A before and are computed with B now."""
    if not isinstance(before, str) or now is None:
        return now
    return before if before == now or before.endswith(f", then {now}") else f"{before}, then {now}"


def _plain(result: Result) -> dict[str, Any]:
    return {"format": FORMAT, **asdict(result)}


def _parse(values: Mapping[str, Any]) -> Result:
    if values.get("format") != FORMAT:
        raise ValueError(f"its format is {values.get('format')!r}, not {FORMAT}")
    given = {one.name: values[one.name] for one in fields(Result) if one.name in values}
    result = from_plain(Result, given | {"study": Study.from_dict(given["study"])}, "the result")
    if not result.curve or not all(0.0 <= ua <= 1.0 for ua in result.curve):
        raise ValueError("its curve does not hold user accuracies from 0 to 1")
    if (len(result.p10), len(result.train_loss)) != (len(result.curve), result.rounds):
        raise ValueError("its series do not have one value per round")
    _check_end(result)
    return result


def _check_end(result: Result) -> None:
    """Check that target and curve agree, with a tolerance since the curve is rounded."""
    reached, study = result.rounds_to_target, result.study
    slack = 10.0**-_CURVE_DIGITS
    if result.diverged is not None:
        at_target = study.target_ua is not None and max(result.curve) >= study.target_ua + slack
        if reached is not None or at_target or result.rounds >= study.rounds:
            raise ValueError("its training diverged, but it is complete")
    elif study.target_ua is not None and reached is not None:
        below = all(ua < study.target_ua + slack for ua in result.curve[:reached])
        if not below or reached != result.rounds or result.curve[reached] < study.target_ua - slack:
            raise ValueError(f"its curve does not reach {study.target_ua} at round {reached}, where it says so")
    elif result.rounds != study.rounds or (
        study.target_ua is not None and max(result.curve) >= study.target_ua + slack
    ):
        raise ValueError(f"it holds {result.rounds} of {study.rounds} rounds")


def measurements(folder: Path, which: str) -> JsonLines[int]:
    """Return the measurements of a figure that is measured within rounds, by seed."""
    return JsonLines(folder / f"{which}.jsonl", lambda record: record["seed"])


def _read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in a file; None if there is none. Raises UsageError if the file is damaged."""
    try:
        values = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is damaged ({error}); delete it to compute the cell anew") from error
    if not isinstance(values, dict):
        raise UsageError(f"{path} is damaged (it holds no JSON object); delete it to compute the cell anew")
    return values


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps(values).encode(), mode=_READABLE)


def _rounded_loss(loss: float | None) -> float | None:
    return round(loss, _OTHER_DIGITS) if loss is not None and math.isfinite(loss) else None
