"""One simulation of the byte count: how user accuracy rises with rounds and with bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedpatch.coordinator.aggregation.strategies import find_strategy
from fedpatch.shared import __version__
from fedpatch.shared.tasks.task import find_task
from fedpatch.shared.tasks.torch_model import initial_tensors, schema_of
from fedpatch.shared.tensors.patches import parse_policy
from fedpatch.simulator.clients.transport import SimulatedTransport
from fedpatch.simulator.experiment.options import make_study
from fedpatch.simulator.experiment.simulation import simulate
from fedpatch.simulator.paper.experiments import Cell, cells_of, study_of
from fedpatch.simulator.paper.results import Results
from fedpatch.simulator.spec.study import EXACT, Study

TABLE_2 = Path(__file__).resolve().parents[2] / "results"
_CURVE_DIGITS = 5


@dataclass(frozen=True)
class Setting:
    """On what runs are played: the paper's MNIST cells of W=200, C=1.0, or a few clients of task digits.

    `command` is recorded with the results.
    """

    workers: int
    command: str
    toy: bool

    @property
    def target_ua(self) -> float:
        """The paper's, or one that a few rounds reach."""
        return 0.9 if self.toy else 0.97


@dataclass(frozen=True)
class Run:
    """What came of it.

    Bytes are those of all `clients`: `bytes_down[t]` to come to the model after t rounds, `bytes_up[t]` of
    the updates of round t + 1. `curve_from` is the stored result of the same study where nothing had to be played again.
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
    curve_from: str = ""

    @property
    def name(self) -> str:
        """Its setting, in words."""
        return f"{self.strategy}, private {self.private}, {self.encoding}"


def play(setting: Setting, strategy: str, private: str, encoding: str, seed: int) -> Run:
    """Simulate up to the target; or, where results/ has the exact study, take its curve and pack one model and one update."""
    study = replace(_exact_study(setting, strategy, private, seed), encoding=encoding)
    if encoding == EXACT and not setting.toy and (known := _known(setting, study)):
        return known
    outcome = simulate(study, workers=setting.workers)
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
    )


def _exact_study(setting: Setting, strategy: str, private: str, seed: int) -> Study:
    if not setting.toy:
        return study_of(_cell(strategy, private), seed)
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


def _cell(strategy: str, private: str) -> Cell:
    name = f"mnist/{strategy}/{private}/W200/C1.0"
    return next(cell for cell in cells_of("table2") if cell.short_name == name)


def _known(setting: Setting, study: Study) -> Run | None:
    results, cell = Results(TABLE_2), _cell(study.strategy, study.private)
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
        str(results.path(cell, study.seed).relative_to(TABLE_2.parent)),
    )


def _exact_bytes(study: Study) -> tuple[int, int]:
    """Of one update, and of one download: as long as any other."""
    task, strategy = find_task(study.task), find_strategy(study.strategy, study.server_learning_rate)
    public = parse_policy(study.private).public(schema_of(task.build_model()))
    initial = initial_tensors(task, study.seed)
    wire = SimulatedTransport(study, strategy.travelling(public))
    wire.read(strategy.init({name: initial[name] for name in public.names}, public))
    return wire.bytes_up([0]), wire.bytes_down([0])
