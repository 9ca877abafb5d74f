"""Flower's functions of robust aggregation on the updates of our simulator, beside our rules.

    python -m studies.robustness.flower_rules --seeds 5 --out results/robustness/rules-digits-flower.json

needs an environment with fedpatch and Flower. Each function aggregates all tensors of a round, after the attack. Its result
replaces every update, so that the mean is the function's own result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from fedpatch.shared.app.command import command, run_app, say
from fedpatch.shared.tasks.task import data_root, find_task
from fedpatch.shared.tensors.arrays import Array
from fedpatch.simulator.attacks.bad_clients import BadClients, bad_clients_of
from fedpatch.simulator.clients.population import load_population
from fedpatch.simulator.experiment.options import make_study
from fedpatch.simulator.experiment.simulation import Simulation, one_thread
from fedpatch.simulator.learners.cohort_training import InProcess, make_learner
from fedpatch.simulator.learners.norm_bounded_learner import SpooledRound
from fedpatch.simulator.spec.study import Study
from studies.robustness.table import NO_ATTACK, RobustnessCell, RobustnessFile, plan_table

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

Updates = list[tuple[list[Array], int]]
Aggregate = Callable[[Updates], list[Array]]


def flower_rules(bad: float) -> dict[str, Aggregate]:
    """Return Flower's functions by name, with the share of bad devices as a parameter."""
    from flwr.server.strategy.aggregate import aggregate_krum, aggregate_median, aggregate_trimmed_avg

    def multi_krum(updates: Updates) -> Any:
        malicious = round(bad * len(updates))
        return aggregate_krum(updates, malicious, len(updates) - malicious)

    return {
        "FedMedian": aggregate_median,
        "FedTrimmedAvg": partial(aggregate_trimmed_avg, proportiontocut=bad),
        "MultiKrum": multi_krum,
    }


def play(study: Study, name: str, rule: Aggregate) -> RobustnessCell:
    """Simulate a study with a rule of Flower; its attack may be ""."""
    task = find_task(study.task)
    population = load_population(task, study.data, study.clients, study.seed, data_root())
    bad = bad_clients_of(study, population)
    population = population if bad is None else bad.population
    change = partial(_aggregate, bad, rule, population.num_examples)
    with one_thread():
        simulation = Simulation(study, task, population, lambda *terms: InProcess(make_learner(*terms)), change)
        try:
            while not simulation.over:
                simulation.step()
            accuracies = list(simulation.user_accuracies().values())
        finally:
            simulation.close()
    p10 = study.metric_terms.p10(accuracies)
    return RobustnessCell(name, study.attack or NO_ATTACK, study.bad, study.seed, float(np.mean(accuracies)), p10)


def _aggregate(bad: BadClients | None, rule: Aggregate, num_examples: list[int], updates: SpooledRound) -> None:
    if bad is not None:
        bad(updates)
    names = list(updates.base)
    tensors = [updates.read(client) for client in updates.clients]
    counts = [num_examples[client] for client in updates.clients]
    found = rule([([one[name] for name in names], count) for one, count in zip(tensors, counts, strict=True)])
    aggregate = {
        name: np.asarray(value).astype(updates.base[name].dtype) for name, value in zip(names, found, strict=True)
    }
    for client in updates.clients:
        updates.write(client, aggregate)


@command(app, "flower_rules", example="python -m studies.robustness.flower_rules --out flower.json")
def compare_rules(
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="File for all figures; a repeated command goes on with it.")
    ],
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Number of seeds, from 0 on.")] = 5,
    bad: Annotated[float, typer.Option(metavar="SHARE", help="Share of bad clients, known to the rules.")] = 0.2,
    rounds: Annotated[int, typer.Option(metavar="N", help="Rounds of each simulation.")] = 15,
    attacks: Annotated[str, typer.Option(metavar="KIND[:X],...", help="Attacks.")] = "sign:4,alie:1.5,ipm:2",
) -> None:
    """Flower's FedMedian, FedTrimmedAvg and MultiKrum on task digits, as python -m studies.robustness plays our rules."""
    study = make_study(
        task=find_task("digits"), task_ref="digits", clients=30, strategy="fedavg", private="affine", rounds=rounds
    )
    table, rules = RobustnessFile(out, study), flower_rules(bad)
    for _, attack, share, seed in plan_table(["mean"], attacks.split(","), [bad], seeds):
        for name, rule in rules.items():
            if (name, attack, share, seed) not in table.cells:
                say(f"{name}, attack {attack}, seed {seed}")
                kind = "" if attack == NO_ATTACK else attack
                table.add(play(replace(study, attack=kind, bad=share, seed=seed), name, rule))


if __name__ == "__main__":
    run_app(app, "python -m studies.robustness.flower_rules")
