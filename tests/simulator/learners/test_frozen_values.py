"""Frozen values in the simulator: each learner trains as without the declaration, and clients neither send nor keep them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpatch.shared.errors import UsageError
from fedpatch.shared.tasks.task import DeviceData, Task
from fedpatch.simulator.clients.population import load_population
from fedpatch.simulator.experiment.options import make_study
from fedpatch.simulator.experiment.simulation import Simulation, simulate
from fedpatch.simulator.learners.cohort_training import InProcess, make_learner
from fedpatch.simulator.learners.learner_context import LearnerContext
from fedpatch.simulator.learners.protocols import Cohort
from fedpatch.simulator.learners.stacked_learner import StackedCohort
from tests.simulator.studies import assert_like_deployed, study_of, without_seconds
from tests.support.frozen_tasks import BASE, OTHER, REFERENCE, TASK

CLIENTS, ROUNDS = 3, 2
DATA = "n=25,test=9,seed={index}"

MakeCohort = Callable[[Task, LearnerContext], Cohort]
UNDECLARED = replace(TASK, frozen=False)
"""The same task, in which the base travels as a buffer."""


def one_by_one(task: Task, context: LearnerContext) -> Cohort:
    return InProcess(make_learner(task, context))


def stacked(task: Task, context: LearnerContext) -> Cohort:
    return StackedCohort(task, context, "cpu", group=2)


def by_number(spec: str, root: Path) -> DeviceData:
    """Return the data of a client, named `seed/number`."""
    return TASK.load_data(f"n=25,test=9,seed={spec.rpartition('/')[2]}", root)


def played(task: Task, make_cohort: MakeCohort, **terms: Any) -> Simulation:
    given: dict[str, Any] = {"clients": CLIENTS, "rounds": ROUNDS, "strategy": "fedavg", "data": DATA} | terms
    study = make_study(task=task, task_ref=f"{REFERENCE}TASK", **given)
    population = load_population(task, study.data, study.clients, study.seed, Path())
    simulation = Simulation(study, task, population, make_cohort)
    while not simulation.over:
        simulation.step()
    simulation.close()
    return simulation


@pytest.mark.parametrize("make_cohort", [one_by_one, stacked])
@pytest.mark.parametrize(("strategy", "private"), [("fedavg", "affine"), ("fedavg-adam", "names:*lora_B*")])
def test_declared_frozen_the_base_changes_nothing_but_the_traffic(make_cohort, strategy, private):
    found = played(TASK, make_cohort, strategy=strategy, private=private)
    other = played(UNDECLARED, make_cohort, strategy=strategy, private=private)
    assert other.server.tensors.keys() - found.server.tensors.keys() == set(BASE)
    for name, value in found.server.tensors.items():
        np.testing.assert_allclose(value, other.server.tensors[name], rtol=1e-4, atol=1e-5, err_msg=name)
    assert not set(BASE) & found.patches.values.keys()
    assert [one.user_accuracy for one in found.points] == [one.user_accuracy for one in other.points]
    sent, more = (one.points[-1].bytes_up or 0 for one in (found, other))
    assert sent < more - CLIENTS * 300  # the base has 520 bytes before zstd compresses it


@pytest.mark.parametrize(
    "terms",
    [
        {"prox": 0.1},
        {"private": "head", "phases": "private:1,public:1"},
        {"personal": "ditto:0.1"},
        {"personal": "pfedme:2"},
        {"encoding": "delta-int8"},
        {"secure": "groups", "private": "affine", "clients": 8},
        {"dp": "central", "noise_multiplier": 1.0, "dp_clip": 1.0, "private": "all"},
    ],
)
def test_terms_of_a_study_leave_the_base_out_of_what_clients_keep_and_send(terms):
    simulation = played(TASK, one_by_one, **terms)
    kept = {name.rpartition(":")[2] if name.startswith("copy:") else name for name in simulation.patches.values}
    assert not set(BASE) & (kept | simulation.server.tensors.keys())
    assert len(simulation.points) == ROUNDS + 1


@pytest.mark.medium
def test_another_base_is_another_study_and_workers_train_the_same():
    study = make_study(
        task=TASK, task_ref=f"{REFERENCE}TASK", clients=CLIENTS, rounds=ROUNDS, strategy="fedavg", data=DATA
    )
    one, two, other = simulate(study, task=TASK), simulate(study, workers=2), simulate(study, task=OTHER)
    losses = [[point.train_loss for point in outcome.points] for outcome in (one, two, other)]
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.parametrize("private", ["affine", "names:*lora_B*"])
def test_a_simulation_with_frozen_values_is_the_deployed_system_without_the_network(private):
    study = study_of(private=private, encoding="fp32", batch_size=10, clients=4)
    assert_like_deployed(study, replace(TASK, load_data=by_number, validation_share=0.0), tolerance=1e-4)


def test_a_simulation_saved_with_another_base_is_refused(tmp_path):
    study = make_study(
        task=TASK, task_ref=f"{REFERENCE}TASK", clients=CLIENTS, rounds=ROUNDS, strategy="fedavg", data=DATA
    )
    played = simulate(study, task=TASK, saved=tmp_path)
    with pytest.raises(UsageError, match=r"frozen values differ.*delete it to begin anew"):
        simulate(study, task=OTHER, saved=tmp_path)
    assert without_seconds(simulate(study, task=TASK, saved=tmp_path)) == without_seconds(played)


@pytest.mark.parametrize("strategy", ["pfedme", "per-fedavg"])
def test_a_baseline_refuses_a_model_with_frozen_values(strategy):
    own = {"proximity": 15.0} if strategy == "pfedme" else {"adaptation_rate": 0.01}
    with pytest.raises(UsageError, match="needs a model that is a plain"):
        played(TASK, one_by_one, strategy=strategy, private="none", learning_rate=0.01, **own)
