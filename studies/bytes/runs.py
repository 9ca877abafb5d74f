"""One simulation of the byte count: user accuracy over rounds and over bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.support.programs import ROOT
from fedpatch.coordinator.find_strategy import find_strategy
from fedpatch.shared import __version__
from fedpatch.shared.errors import unknown_name
from fedpatch.shared.tasks.task import find_task
from fedpatch.shared.tasks.torch_model import initial_tensors, schema_of
from fedpatch.shared.tensors.patches import parse_policy
from fedpatch.simulator.clients.transport import SimulatedTransport
from fedpatch.simulator.experiment.options import make_study
from fedpatch.simulator.experiment.simulation import simulate
from fedpatch.simulator.spec.study import EXACT, Study
from studies.paper.experiments import Cell, cells_of, study_of
from studies.paper.published import TARGET_UA
from studies.paper.results import Results

TABLE_2 = ROOT / "results"
_CURVE_DIGITS = 5
DEFAULT_CELL = "mnist/W200/C1.0"

RunKey = tuple[str, str, str, str, int]
"""The terms of a run: cell, strategy, policy, encoding, seed."""


@dataclass(frozen=True)
class Setting:
    """The work of the runs.

    Attributes:
        workers: Processes to compute with.
        command: The command line, kept with the results.
        toy: A few clients of task digits instead of a cell of the paper.
        cell: Task, clients and their share in a round, as in Table 2 of the paper.
    """

    workers: int
    command: str
    toy: bool
    cell: str = DEFAULT_CELL

    @property
    def where(self) -> str:
        """The cell; `toy` for the toy size."""
        return "toy" if self.toy else self.cell

    @property
    def target_ua(self) -> float:
        """The paper's target; with `toy` a target that a few rounds reach."""
        return 0.9 if self.toy else TARGET_UA[self.cell.partition("/")[0]]


@dataclass(frozen=True)
class Run:
    """The result of a run.

    Bytes are those of all `clients`: `bytes_down[t]` to download the model after t rounds, `bytes_up[t]` of the updates
    of round t + 1. `cell` is the setting's, or `toy`.
    `curve_from` is the stored result of the same study if no simulation was needed.
    """

    strategy: str
    private: str
    encoding: str
    seed: int
    clients: int
    rounds_to_target: int | None
    bytes_up_per_update: float | None
    bytes_to_target: int | None
    curve: Sequence[float]
    bytes_up: Sequence[int]
    bytes_down: Sequence[int]
    seconds: float
    command: str
    fedpatch: str
    cell: str
    curve_from: str = ""

    @property
    def key(self) -> RunKey:
        """The terms of the run."""
        return self.cell, self.strategy, self.private, self.encoding, self.seed

    @property
    def name(self) -> str:
        """The setting in words."""
        return f"{self.strategy}, private {self.private}, {self.encoding}"


def play(setting: Setting, strategy: str, private: str, encoding: str, seed: int, *, saved: Path | None = None) -> Run:
    """Simulate up to the target; or, if results/ has the exact study, take its curve and pack one model and one update.

    Args:
        setting: The work.
        strategy: Name of the strategy.
        private: Policy of the patch.
        encoding: Name of the encoding.
        seed: Seed of the study.
        saved: Folder of the state of an interrupted simulation, to resume it; None: the state is not kept.
    """
    study = replace(_exact_study(setting, strategy, private, seed), encoding=encoding)
    if encoding == EXACT and not setting.toy and (known := _known(setting, study)):
        return known
    outcome = simulate(study, workers=setting.workers, saved=saved)
    points = outcome.points
    return Run(
        strategy,
        private,
        encoding,
        seed,
        study.participants,
        outcome.rounds_to_target,
        outcome.bytes_up_per_update,
        outcome.bytes_to_target,
        [round(one.user_accuracy, _CURVE_DIGITS) for one in points],
        [one.bytes_up or 0 for one in points[1:]],
        [one.bytes_down or 0 for one in points],
        round(outcome.seconds, 1),
        setting.command,
        __version__,
        setting.where,
    )


def _exact_study(setting: Setting, strategy: str, private: str, seed: int) -> Study:
    if not setting.toy:
        return study_of(_cell(setting, strategy, private), seed)
    return make_study(
        task=find_task("digits"),
        task_ref="digits",
        clients=4,
        strategy=strategy,
        private=private,
        rounds=8,
        target_ua=setting.target_ua,
        seed=seed,
    )


def _cell(setting: Setting, strategy: str, private: str) -> Cell:
    task, _, scenario = setting.cell.partition("/")
    name = f"{task}/{strategy}/{private}/{scenario}"
    names = {cell.short_name: cell for cell in cells_of("table2")}
    if name not in names:
        raise unknown_name("cell", name, sorted(names))
    return names[name]


def _known(setting: Setting, study: Study) -> Run | None:
    results, cell = Results(TABLE_2), _cell(setting, study.strategy, study.private)
    result = results.read(cell, study.seed)
    if result is None:
        return None
    up, down = _exact_bytes(study)
    rounds, reached, clients = result.rounds, result.rounds_to_target, study.participants
    to_target = None if reached is None else clients * (reached * up + (reached + 1) * down)
    return Run(
        study.strategy,
        study.private,
        EXACT,
        study.seed,
        clients,
        reached,
        up,
        to_target,
        result.curve,
        [clients * up] * rounds,
        [clients * down] * (rounds + 1),
        result.seconds,
        setting.command,
        __version__,
        setting.where,
        f"results/table2.jsonl, {cell.name}, seed {study.seed}",
    )


def _exact_bytes(study: Study) -> tuple[int, int]:
    """Return the bytes of one update and of one download; all have the same length."""
    task, strategy = find_task(study.task), find_strategy(study.strategy, study.server_learning_rate)
    public = parse_policy(study.private).public(schema_of(task.build_model()))
    initial = initial_tensors(task, study.seed)
    wire = SimulatedTransport(study, strategy.travelling(public))
    wire.read(strategy.init({name: initial[name] for name in public.names}, public))
    return wire.bytes_up([0]), wire.bytes_down([0])
