"""Measurements inside a round: figures 3 and 4 of the paper, and the check of its Eq. (10).

Both figures use MNIST, W = 200, C = 1.0 and FedAvg, as the paper does; Eq. (10) is also checked for the CNN's two layers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.support.json_lines import JsonLines, Record
from fedpatch.shared.errors import UsageError
from fedpatch.shared.tasks.task import Task, data_root, find_task
from fedpatch.simulator.clients.population import load_population
from fedpatch.simulator.experiment.options import make_study
from fedpatch.simulator.experiment.simulation import Simulation, one_thread, versions
from fedpatch.simulator.learners.cohort_training import InProcess
from fedpatch.simulator.learners.learner_context import LearnerContext
from fedpatch.simulator.spec.study import Study
from studies.paper.instrumented_learner import Moments, WatchedLearner
from studies.paper.results import measurements

CLIENTS = 200
FIG3_ROUNDS = 20
FIG3_STEPS = 15  # one epoch of 300 examples
FIG3_CNN_ROUNDS = 6
FIG4_ROUNDS = 600
FIG4_STEPS = 10  # section 4.3
SAMPLE = 50
"""Number of training examples of each client for training accuracy: as many as it has test examples."""

Say = Callable[[str], None]
Curves = dict[str, list[float]]


@one_thread()
def run_fig4(
    results_dir: Path, seed: int, rounds: int | None, on_progress: Say, origin: Mapping[str, str | None] | None = None
) -> dict[str, Any]:
    """Measure user accuracy on training and test data at every local step, for FL and each kind of patch (Fig. 4).

    A finished policy is not measured again. One process measures all.

    Args:
        results_dir: Folder of results; the file is fig4.jsonl below it.
        seed: Seed of the split and of the training.
        rounds: Rounds to measure; None for the paper's.
        on_progress: Called with a line at intervals.
        origin: Command, commit and processor, written to the line; of the last command that measured a part.

    Returns:
        The content of the line, which studies.paper.figures draws.
    """
    rounds = rounds or FIG4_ROUNDS
    table = measurements(results_dir, "fig4")
    measured = _read(table, {"steps_per_round": FIG4_STEPS, "rounds": rounds, "seed": seed, "train_sample": SAMPLE})
    policies: dict[str, Curves] = measured.setdefault("policies", {})
    for policy in ("none", "stats", "affine", "all"):
        if policy in policies:
            continue
        study = _study("mnist", policy, seed, rounds, steps=FIG4_STEPS)
        policies[policy], seconds = _curves(study, rounds, on_progress)
        measured["seconds"] = round(measured.get("seconds", 0.0) + seconds, 1)
        _write(table, measured, origin)
    return measured


@one_thread()
def run_fig3(
    results_dir: Path, seed: int, rounds: int | None, on_progress: Say, origin: Mapping[str, str | None] | None = None
) -> dict[str, Any]:
    """Measure user accuracy at every step of the first rounds, and both sides of Eq. (10) (Fig. 3).

    Args:
        results_dir: Folder of results; the file is fig3.jsonl below it.
        seed: Seed of the split and of the training.
        rounds: Rounds to measure; None for 20.
        on_progress: Called with a line at intervals.
        origin: Command, commit and processor, written to the line; of the last command that measured a part.

    Returns:
        The content of the line, which studies.paper.figures draws.
    """
    rounds = rounds or FIG3_ROUNDS
    table = measurements(results_dir, "fig3")
    measured = _read(table, {"steps_per_round": FIG3_STEPS, "rounds": rounds, "seed": seed})
    for key, strategy, policy in (("ind", "independent", "none"), ("fl", "fedavg", "none"), ("mtfl", "fedavg", "all")):
        if key not in measured:
            study = replace(_study("mnist", policy, seed, rounds, steps=FIG3_STEPS), strategy=strategy)
            measured[key] = _curves(study, rounds, on_progress)[0]["test"]
            _write(table, measured, origin)
    if "layers" not in measured:
        layers = _shifts(_study("mnist", "all", seed, rounds), "MNIST ", on_progress)
        layers += _shifts(_study("cifar10", "all", seed, min(rounds, FIG3_CNN_ROUNDS)), "CIFAR10 ", on_progress)
        measured["layers"] = layers
        _write(table, measured, origin)
    return measured


# ---- accuracy at every step


def _curves(study: Study, rounds: int, say: Say) -> tuple[Curves, float]:
    """Return the mean over the clients, per round after aggregation and after each step, and the computing time."""
    steps = study.steps
    seen = np.zeros((2, rounds * (steps + 1)))
    number = 0

    def at_step(client: int, done: int, train: float, test: float) -> None:
        seen[:, number * (steps + 1) + done] += train, test

    started = time.perf_counter()
    simulation, _ = _watched(study, at_step)
    simulation.step()
    for number in range(rounds):
        point = simulation.step()
        if number % 10 == 9:
            say(f"{study.strategy}, private {study.private}: round {number + 1}/{rounds}, UA {point.user_accuracy:.3f}")
    train, test = np.round(seen / study.clients, 5).tolist()
    return {"train": train, "test": test}, time.perf_counter() - started


# ---- Eq. (10)


def _shifts(study: Study, label: str, say: Say) -> list[dict[str, Any]]:
    """Return one entry per batch norm layer and round, of a run whose batch norms are private.

    Left of Eq. (10): how far the mean (variance) of a neuron's output moves when the client's model becomes the global
    model with its own batch norm. Right: how far it would move if the clients' average also replaced the batch norm.
    Measured on the client's test examples, without the equation's assumption that running statistics are exact.
    """
    simulation, learner = _watched(study, None)
    simulation.step()
    entries: list[dict[str, Any]] = []
    for number in range(1, study.rounds + 1):
        simulation.step()
        average = _average(simulation, learner)
        sides = [
            (before, learner.after_aggregation(client), learner.after_aggregation(client, average))
            for client, before in learner.after_training.items()
        ]
        entries += [_entry(label, layer, number, sides) for layer in sides[0][0]]
        say(f"Eq. (10), {study.task}: round {number}/{study.rounds}")
    return entries


def _average(simulation: Simulation, learner: WatchedLearner) -> dict[str, Tensor]:
    """Return the batch norm values that federation would give: the mean over clients, weighted by examples."""
    clients = list(learner.after_training)
    examples = torch.tensor([simulation.population.num_examples[one] for one in clients], dtype=torch.float64)
    weights = examples / examples.sum()
    return {
        name: torch.tensordot(weights, block[clients].double(), dims=1)
        for name, block in simulation.patches.values.items()
        if block.is_floating_point()
    }


def _entry(label: str, layer: str, number: int, sides: Sequence[tuple[Moments, Moments, Moments]]) -> dict[str, Any]:
    entry: dict[str, Any] = {"layer": label + layer, "round": number}
    for index, moment in enumerate(("mean", "var")):
        private = torch.stack([(after[layer][index] - before[layer][index]).abs() for before, after, _ in sides])
        federated = torch.stack([(after[layer][index] - before[layer][index]).abs() for before, _, after in sides])
        entry[f"{moment}_shift_private"] = round(float(private.mean()), 6)
        entry[f"{moment}_shift_federated"] = round(float(federated.mean()), 6)
        entry[f"share_holding_{moment}"] = round(float((private < federated).float().mean()), 4)
    return entry


# ---- common parts


def _study(task: str, private: str, seed: int, rounds: int, steps: int = 0) -> Study:
    return make_study(
        task=find_task(task),
        task_ref=task,
        clients=CLIENTS,
        strategy="fedavg",
        private=private,
        rounds=rounds,
        seed=seed,
        steps=steps,
    )


def _watched(
    study: Study, at_step: Callable[[int, int, float, float], None] | None
) -> tuple[Simulation, WatchedLearner]:
    task = find_task(study.task)
    population = load_population(task, study.data, study.clients, study.seed, data_root())
    learners: list[WatchedLearner] = []

    def cohort(task: Task, context: LearnerContext) -> InProcess:
        learners.append(WatchedLearner(task, context, at_step=at_step, sample=SAMPLE))
        return InProcess(learners[0])

    return Simulation(study, task, population, cohort), learners[0]


def _read(table: JsonLines[int], terms: Mapping[str, Any]) -> Record:
    """Return the earlier measurements of the seed, or only the terms if there are none.

    Raises UsageError with the remedy, and keeps the line, if it is damaged or has other terms: it may have taken hours.
    """
    measured = table.get(terms["seed"])
    if measured is None:
        return dict(terms)
    for name, value in terms.items():
        if (old := measured.get(name)) != value:
            instead = f"give --rounds {old}, or " if name == "rounds" else ""
            raise UsageError(
                f"{table.place(terms['seed'])} was measured with {name} {old!r}, which now is {value!r}; {instead}delete "
                "the line to measure it again"
            )
    return measured


def _write(table: JsonLines[int], measured: Record, origin: Mapping[str, str | None] | None) -> None:
    measured |= {"versions": versions(), **(origin or {})}
    table.put(measured)
