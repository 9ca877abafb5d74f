"""Cells of a comparison: one method, one seed and one learning rate on one task, simulated and kept on disk."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from fedpatch.coordinator.find_strategy import find_strategy
from fedpatch.shared.app.provenance import processor_name, source_commit
from fedpatch.shared.errors import UpdateRefused, UsageError
from fedpatch.shared.tasks.frozen_values import new_model
from fedpatch.shared.tasks.task import Task
from fedpatch.shared.tasks.torch_model import schema_of
from fedpatch.shared.tensors.patches import parse_policy
from fedpatch.shared.wire.plan_terms import make_terms, require_fitting
from fedpatch.simulator.comparison.methods import Method
from fedpatch.simulator.comparison.recommend import Arm
from fedpatch.simulator.experiment.cell_file import CellFile
from fedpatch.simulator.experiment.options import make_study
from fedpatch.simulator.spec.study import EVERYTHING, Outcome, Study

TUNING_SEED = 1000
"""The seed on which a learning rate is chosen. No figure of a comparison uses it."""
_OWN_TERMS = (
    "strategy",
    "server_learning_rate",
    "private",
    "prox",
    "phases",
    "personal",
    "finish",
    "seed",
    "learning_rate",
    "target_ua",
)

Key = tuple[str, str, float, int]


@dataclass(frozen=True)
class ComparisonCell:
    """One simulation.

    Attributes:
        options: The method as options; methods with equal options share their cells.
        strategy: The strategy.
        learning_rate: The clients' learning rate.
        seed: The seed.
        accuracies: User accuracy of each client after the last round, by its number as text; empty if training diverged.
        curve: Mean user accuracy of the clients selected next, after each round.
        bytes_up: Bytes of all updates.
        bytes_down: Bytes of all downloads.
        seconds: Computing time.
        broken: The reason why training ended early; "" if it did not.
        commit: Commit of fedpatch.
        processor: The processor.
        versions: Versions of the programs.
    """

    options: str
    strategy: str
    learning_rate: float
    seed: int
    accuracies: dict[str, float]
    curve: list[float]
    bytes_up: int = 0
    bytes_down: int = 0
    seconds: float = 0.0
    broken: str = ""
    commit: str | None = None
    processor: str | None = None
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """The terms of the simulation, which identify the cell."""
        return self.options, self.strategy, self.learning_rate, self.seed

    @property
    def mean(self) -> float:
        """Mean user accuracy."""
        return sum(self.accuracies.values()) / len(self.accuracies)


@dataclass(frozen=True)
class TaskComparison:
    """The terms of a comparison on one task.

    Attributes:
        ref: The task as the user names it.
        task: The task.
        terms: Terms for `make_study` that all methods share.
        strategy: The strategy of methods that work with any strategy.
        seeds: Number of seeds, from 0 on.
        rates: Learning rates to choose from; empty: the task's.
    """

    ref: str
    task: Task
    terms: Mapping[str, Any]
    strategy: str
    seeds: int
    rates: Sequence[float] = ()

    def study(self, method: Method | None, rate: float | None = None, seed: int = 0) -> Study:
        """Return the study of a method; None: of the terms alone. Raises UsageError if method and terms do not fit together."""
        own = {"strategy": self.strategy} if method is None else method.study_terms(self.strategy)
        return make_study(task=self.task, task_ref=self.ref, **self.terms, **own, learning_rate=rate, seed=seed)

    def file(self, folder: Path | None, command: str) -> CellFile[ComparisonCell]:
        """Return the cells on disk, in the file of this task. Raises UsageError if it has other terms."""
        study = self.study(None, self.rates[0] if self.rates else None)
        shared = {name: value for name, value in study.to_dict().items() if name not in _OWN_TERMS}
        path = None if folder is None else folder / f"{self.task.name}.json"
        return CellFile(path, shared, ComparisonCell, "fedpatch simulate compare", {"command": command})

    def misfit(self, method: Method) -> str:
        """Return why the method does not fit the model or the other terms, "" if it fits with one of the rates."""
        reasons = [_misfit(self, method, rate) for rate in self.rates or (None,)]
        return "" if "" in reasons else reasons[0]


def _misfit(terms: TaskComparison, method: Method, rate: float | None) -> str:
    try:
        study = terms.study(method, rate)
        with torch.random.fork_rng(devices=[]):
            schema = schema_of(new_model(terms.task))
        if method.private == EVERYTHING:
            return ""
        private = parse_policy(study.private).private_names(schema)
        plan = find_strategy(study.strategy).plan(study.learning_rate, study.batch_size, study.epochs, 0, study.seed)
        plan = replace(plan, **make_terms(study.prox, study.phases, study.personal, study.finish))
        require_fitting(plan, [one.name for one in schema.specs if one.trainable], private)
    except UsageError as error:
        return str(error)
    return ""


class ComparisonInterrupted(Exception):
    """The user interrupted a simulation."""


class CellPlayer:
    """Simulates the cells of a task that are not in its file yet.

    Args:
        terms: The comparison.
        table: Its cells.
        simulate: simulator.experiment.simulation.simulate.
        unfinished: Folder for the state of an interrupted cell; None: the state is lost.
        say: Called with a line for each cell that is simulated.
        hooks: Further arguments of `simulate`: workers, root, stopped.
    """

    def __init__(
        self,
        terms: TaskComparison,
        table: CellFile[ComparisonCell],
        simulate: Callable[..., Outcome],
        unfinished: Path | None,
        say: Callable[[str], object],
        hooks: Mapping[str, Any],
    ) -> None:
        self._terms, self._table, self._simulate = terms, table, simulate
        self._unfinished, self._say, self._hooks = unfinished, say, hooks
        self._commit, self._processor = source_commit(), processor_name()

    def rates(self, method: Method) -> list[float | None]:
        """Return the learning rates that fit a method; None means the task's."""
        return [rate for rate in self._terms.rates or (None,) if not _misfit(self._terms, method, rate)]

    def tune(self, method: Method) -> float | None:
        """Return the rate with the best mean user accuracy on TUNING_SEED; a single rate is returned without a simulation."""
        rates = self.rates(method)
        if len(rates) == 1:
            return rates[0]
        found: list[tuple[float, float | None]] = []
        sign = -1.0 if self._terms.task.metric_goal == "min" else 1.0
        for rate in rates:
            cell = self.play(method, rate, TUNING_SEED)
            if not cell.broken:
                found.append((sign * cell.mean, rate))
        return max(found, key=lambda pair: pair[0])[1] if found else rates[0]

    def play(self, method: Method, rate: float | None, seed: int) -> ComparisonCell:
        """Return a cell from the file, or simulate it. Raises ComparisonInterrupted."""
        study = self._terms.study(method, rate, seed)
        key = (method.options(), study.strategy, study.learning_rate, seed)
        if key in self._table.cells:
            return self._table.cells[key]
        self._say(
            f"{self._terms.task.name}, {method}: {study.rounds} rounds of {study.clients} clients, "
            f"learning rate {study.learning_rate:g}, "
            + ("to choose the rate" if seed == TUNING_SEED else f"seed {seed}")
        )
        cell = self._simulated(study, key)
        self._table.add(cell)
        return cell

    def _simulated(self, study: Study, key: Key) -> ComparisonCell:
        measured: dict[int, float] = {}
        state = None if self._unfinished is None else self._unfinished / "-".join(map(str, key)).replace("/", "_")
        if state is not None:
            state.mkdir(parents=True, exist_ok=True)
        try:
            outcome = self._simulate(study, on_end=measured.update, saved=state, **self._hooks)
        except UpdateRefused as error:
            cell = ComparisonCell(*key, {}, [], broken=str(error))
        else:
            if not outcome.complete:
                raise ComparisonInterrupted
            points = outcome.points
            cell = ComparisonCell(
                *key,
                {str(client): value for client, value in sorted(measured.items())},
                [point.user_accuracy for point in points],
                0 if study.private == EVERYTHING else sum(point.bytes_up or 0 for point in points),
                0 if study.private == EVERYTHING else sum(point.bytes_down or 0 for point in points),
                round(outcome.seconds, 1),
                versions=dict(outcome.versions),
            )
        if self._unfinished is not None and state is not None:
            shutil.rmtree(state, ignore_errors=True)
            with suppress(OSError):  # another cell or task is unfinished
                self._unfinished.rmdir()
                self._unfinished.parent.rmdir()
        return replace(cell, commit=self._commit, processor=self._processor)


def arm_of(method: Method, cells: Sequence[ComparisonCell]) -> Arm:
    """Return the arm of a method over its seeds; no seed may be broken."""
    accuracies = {(cell.seed, int(client)): value for cell in cells for client, value in cell.accuracies.items()}
    up, down = sum(cell.bytes_up for cell in cells), sum(cell.bytes_down for cell in cells)
    return Arm(
        str(method),
        accuracies,
        len(cells[0].curve) - 1,
        up + down,
        bytes_up=up,
        curves={cell.seed: tuple(cell.curve) for cell in cells},
        learning_rate=cells[0].learning_rate,
        options=method.options(cells[0].strategy) + f" --learning-rate {cells[0].learning_rate:g}",
    )
