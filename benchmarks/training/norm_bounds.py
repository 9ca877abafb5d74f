"""Cost of a norm bound in an honest fleet, and its benefit if one device of six is bad: in the simulator.

    FEDPATCH_DATA=... python -m benchmarks.training.norm_bounds --out results/benchmarks/norm-bounds.json

The coordinator's own code aggregates the updates (coordinator.aggregation.aggregate). An attacker's trained update is replaced
after all checks that an update must pass before it counts.
"""

from __future__ import annotations

import logging
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np
import typer

from benchmarks.support.documents import Document, Out, Show, Toy, deliver, read_document, table
from benchmarks.support.report import begun
from fedpatch.shared.app.command import AsJson, command, run_app
from fedpatch.shared.tasks.task import data_root, find_task
from fedpatch.shared.tensors.arrays import Array, Tensors
from fedpatch.simulator.clients.population import load_population
from fedpatch.simulator.experiment.options import make_study
from fedpatch.simulator.experiment.simulation import Simulation, one_thread
from fedpatch.simulator.learners.cohort_training import InProcess, make_learner
from fedpatch.simulator.learners.norm_bounded_learner import SpooledRound
from fedpatch.simulator.spec.study import UNBOUNDED, Study

BENCHMARK = "norm_bounds"
EXAMPLE = (
    "FEDPATCH_DATA=... python -m benchmarks.training.norm_bounds --jobs 2 --out results/benchmarks/norm-bounds.json"
)
BOUNDS = (UNBOUNDED, "auto:2")
SEEDS, ATTACKED_SEEDS = range(5), range(3)
FOE = 0
"""The client that attacks; it does not count in user accuracy."""

log = logging.getLogger("fedpatch.benchmark")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

Attack = Callable[[dict[str, Array], Tensors, np.random.Generator], dict[str, Array]]


@dataclass(frozen=True)
class Fleet:
    """A task with its terms. Most runs without a bound reach `target_ua` in about two thirds of their rounds."""

    name: str
    task: str
    strategy: str
    clients: int
    participation: float
    rounds: int
    target_ua: float


FLEETS = (
    Fleet("digits, 6 devices", "digits", "fedavg-adam", 6, 1.0, 12, 0.95),
    Fleet("digits, 6 uneven devices", "benchmarks.training.uneven_tasks:DIGITS", "fedavg-adam", 6, 1.0, 15, 0.80),
    Fleet("mnist, 6 of 100 devices", "mnist", "fedavg-adam", 100, 0.06, 12, 0.65),
    Fleet(
        "mnist, 6 of 100 uneven devices", "benchmarks.training.uneven_tasks:MNIST", "fedavg-adam", 100, 0.06, 12, 0.55
    ),
)
TOY = (Fleet("digits, 6 devices", "digits", "fedavg-adam", 6, 1.0, 3, 0.5),)


def _far(name: str, value: float) -> Attack:
    def attack(update: dict[str, Array], _base: Tensors, _rng: np.random.Generator) -> dict[str, Array]:
        changed = {one: np.full_like(array, value) for one, array in update.items() if one.endswith(name)}
        return update | changed

    return attack


def _noise(update: dict[str, Array], base: Tensors, rng: np.random.Generator) -> dict[str, Array]:
    trained = [name for name in update if f"{name}:exp_avg" in update]
    return update | {
        name: (base[name] + 1e6 * rng.standard_normal(base[name].shape)).astype(base[name].dtype) for name in trained
    }


def _reversed(update: dict[str, Array], base: Tensors, _rng: np.random.Generator) -> dict[str, Array]:
    trained = [name for name in update if f"{name}:exp_avg" in update]
    return update | {
        name: (base[name] - 100 * (update[name] - base[name])).astype(base[name].dtype) for name in trained
    }


ATTACKS: dict[str, Attack] = {
    "weights of 3e38": _far(".weight", 3e38),
    "noise x 1e6": _noise,
    "what it learned, reversed x 100": _reversed,
    "running_var of 1e30": _far("running_var", 1e30),
    "exp_avg_sq of 1e15": _far(":exp_avg_sq", 1e15),
    "step counts of 1e9": _far(":step", 1e9),
    "changes nothing": lambda _update, base, _rng: dict(base),
}


def play(fleet: Fleet, bound: str, seed: int, attack: str = "") -> Document:
    """Simulate once; return the last user accuracy (mean of three rounds) and the round that reached the target."""
    began = time.process_time()
    study = _study(fleet, bound, seed)
    task = find_task(study.task)
    population = load_population(task, study.data, study.clients, study.seed, data_root())
    if attack:
        counts = [client != FOE for client in range(study.clients)]
        population = replace(population, counts_in_ua=counts)

    def attacked(updates: SpooledRound) -> None:
        if FOE in updates.clients and attack in ATTACKS:
            rng = np.random.default_rng(simulation.server.round)
            updates.write(FOE, ATTACKS[attack](updates.read(FOE), updates.base, rng))

    with one_thread():
        simulation = Simulation(study, task, population, lambda *terms: InProcess(make_learner(*terms)), attacked)
        try:
            broken = ""
            try:
                while not simulation.over:
                    simulation.step()
            except Exception as error:  # a damaged model can raise any exception, which is the result of the run
                broken = f"{type(error).__name__}: {error}"
        finally:
            simulation.close()
    curve = [point.user_accuracy for point in simulation.points]
    reached = next((at for at, value in enumerate(curve) if value >= fleet.target_ua), None)
    trained = max(1, len(curve) - 1) * study.participants
    return {
        "fleet": fleet.name,
        "bound": bound,
        "attack": attack,
        "seed": seed,
        "user_accuracy": statistics.fmean(curve[-3:]),
        "rounds_to_target": reached,
        "bounded_share": simulation.clipped / trained,
        "broken": broken[:200],
        "curve": [round(value, 4) for value in curve],
        "cpu_s": round(time.process_time() - began, 2),
    }


def _study(fleet: Fleet, bound: str, seed: int) -> Study:
    return make_study(
        task=find_task(fleet.task),
        task_ref=fleet.task,
        clients=fleet.clients,
        strategy=fleet.strategy,
        private="affine",
        participation=fleet.participation,
        rounds=fleet.rounds,
        seed=seed,
        norm_bound=bound,
        max_num_examples="auto:10",
    )


def plays(*, toy: bool) -> list[tuple[Fleet, str, int, str]]:
    """Return arguments of `play`: first the cost, then the attacks on the first fleet, seed by seed."""
    fleets, seeds = TOY if toy else FLEETS, range(1) if toy else SEEDS
    costs = [(fleet, bound, seed, "") for seed in seeds for fleet in fleets for bound in BOUNDS]
    attacks = ("none", *ATTACKS)
    some = seeds if toy else ATTACKED_SEEDS
    return costs + [(fleets[0], bound, seed, one) for seed in some for one in attacks for bound in BOUNDS]


def played(*, toy: bool, jobs: int) -> Iterator[Document]:
    """Yield all runs, computed by `jobs` processes."""
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap_unordered(_play, plays(toy=toy))


def _play(terms: tuple[Fleet, str, int, str]) -> Document:
    return play(*terms)


def tables(document: Document) -> Iterable[str]:
    """Yield the tables of cost and attacks."""
    runs = document["runs"]
    yield "User accuracy (mean of the last three rounds), and median of the rounds to target:"
    yield ""
    costs = [run for run in runs if not run["attack"]]
    bounds = list(dict.fromkeys(run["bound"] for run in costs))
    yield from table(["fleet", *bounds], [_row(costs, "fleet", name, bounds) for name in _names(costs, "fleet")])
    yield ""
    yield "One device of six attacks in every round; user accuracy of the other five:"
    yield ""
    attacks = [run for run in runs if run["attack"]]
    bounds = list(dict.fromkeys(run["bound"] for run in attacks))
    yield from table(["attack", *bounds], [_row(attacks, "attack", one, bounds) for one in _names(attacks, "attack")])


def _names(runs: list[Document], key: str) -> list[str]:
    return list(dict.fromkeys(run[key] for run in runs))


def _row(runs: list[Document], key: str, name: str, bounds: list[str]) -> list[str]:
    cells = []
    for bound in bounds:
        found = [run for run in runs if run[key] == name and run["bound"] == bound]
        mean = statistics.fmean(run["user_accuracy"] for run in found)
        reached = [run["rounds_to_target"] for run in found]
        rounds = "-" if None in reached else f"{statistics.median(reached):g}"
        broken = sum(bool(run["broken"]) for run in found)
        cells.append(f"{mean:.3f}, {rounds}" + (f", {broken} of {len(found)} runs ended" if broken else ""))
    return [name, *cells]


@command(app, BENCHMARK, example=EXAMPLE)
def norm_bounds(
    out: Out = None,
    toy: Toy = False,
    show: Show = None,
    jobs: Annotated[int, typer.Option(metavar="N", help="Processes to compute with.")] = 1,
    as_json: AsJson = False,
) -> None:
    """Measure the cost of the default norm bound in an honest fleet, and its benefit where one device of six attacks."""
    if show is not None:
        deliver(read_document(show, BENCHMARK), tables, None, as_json)
        return
    document: Document = begun(BENCHMARK, 1)
    runs = []
    for run in played(toy=toy, jobs=jobs):
        runs.append(run)
        log.info("%s", {key: value for key, value in run.items() if key != "curve"})
    order = [(fleet.name, bound, attack, seed) for fleet, bound, seed, attack in plays(toy=toy)]
    runs.sort(key=lambda run: order.index((run["fleet"], run["bound"], run["attack"], run["seed"])))
    deliver(document | {"runs": runs}, tables, out, as_json)


if __name__ == "__main__":
    run_app(app, "python -m benchmarks.training.norm_bounds")
