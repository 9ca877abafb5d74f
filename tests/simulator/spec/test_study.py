"""Default terms of a study, and terms that are refused."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.coordinator.find_strategy import STRATEGIES
from fedpatch.coordinator.strategies.server_optimizer import ServerOptimizer
from fedpatch.shared.errors import ConfigError, UsageError
from fedpatch.shared.tasks.bundled.cifar10 import TASK as CIFAR10
from fedpatch.shared.tasks.bundled.digits import TASK as DIGITS
from fedpatch.shared.tasks.bundled.mnist import TASK as MNIST
from fedpatch.shared.tasks.task import Task
from fedpatch.simulator.experiment.options import make_study
from fedpatch.simulator.spec.study import BASELINES, Outcome, Point, Study
from studies.paper.experiments import cells_of, study_of

TASKS = {"mnist": MNIST, "cifar10": CIFAR10}


def _study(task: Task = MNIST, **terms: Any) -> Study:
    return make_study(**{"task": task, "task_ref": task.name, "clients": 200, "strategy": "fedavg", **terms})


def test_omitted_terms_come_from_the_task():
    assert _study(private=" affine ") == Study(
        task="mnist",
        clients=200,
        strategy="fedavg",
        private="affine",
        data="shard:{index}/{count},seed={seed}",
        participation=1.0,
        rounds=500,
        target_ua=None,
        seed=0,
        learning_rate=0.3,
        batch_size=20,
    )


def test_given_terms_override_the_task():
    study = _study(strategy="pfedme", learning_rate=0.2, proximity=5.0, batch_size=7, steps=4, data="mine:{index}")
    assert (study.learning_rate, study.proximity, study.batch_size, study.steps) == (0.2, 5.0, 7, 4)
    assert study.data == "mine:{index}"


def test_a_task_named_by_module_keeps_that_name_in_the_study():
    assert _study(task_ref="my_tasks.moons:TASK").task == "my_tasks.moons:TASK"


@pytest.mark.parametrize("where", ["table2", "table3", "fig5"])
def test_a_study_with_the_terms_of_a_cell_of_the_paper_is_that_cells_study(where):
    for cell in cells_of(where):
        own = make_study(
            task=TASKS[cell.task],
            task_ref=cell.task,
            clients=cell.clients,
            strategy=cell.strategy,
            private=cell.private,
            participation=cell.participation,
            rounds=cell.max_rounds,
            target_ua=cell.target_ua,
            seed=3,
            noisy_fraction=0.2 if where == "table3" else 0.0,
        )
        assert own == study_of(cell, 3)


@pytest.mark.parametrize(
    ("clients", "participation", "numbers"),
    [(200, 0.5, (0.1, 1.0)), (20, 0.4, (0.1, 1.0)), (250, 0.9, (0.03, 3.0)), (2000, 0.1, (0.03, 3.0))],
)
def test_beside_the_published_settings_the_nearest_one_counts(clients, participation, numbers):
    study = _study(strategy="pfedme", clients=clients, participation=participation)
    assert (study.learning_rate, study.proximity) == numbers


@pytest.mark.parametrize("strategy", ["per-fedavg", "pfedme"])
def test_a_task_may_name_the_learning_rate_of_a_baseline(strategy):
    task = replace(MNIST, learning_rates={strategy: 0.07})
    assert _study(task, strategy=strategy).learning_rate == 0.07


def test_independent_learning_takes_the_rate_of_fedavg():
    assert _study(DIGITS, strategy="independent").learning_rate == DIGITS.learning_rates["fedavg"]


def test_the_server_of_fedadam_steps_by_its_own_rate_where_a_task_names_none():
    assert _study(replace(MNIST, server_learning_rates={}), strategy="fedadam").server_learning_rate == 0.01


@pytest.mark.parametrize(
    ("strategy", "needed"),
    [("per-fedavg", "--learning-rate and --adaptation-rate"), ("pfedme", "--learning-rate and --proximity")],
)
def test_a_baseline_on_a_task_without_published_numbers_needs_them(strategy, needed):
    with pytest.raises(UsageError, match=f"{strategy} on task 'digits' needs {needed}"):
        _study(DIGITS, strategy=strategy)


@pytest.mark.parametrize(
    ("terms", "begins"),
    [
        ({"clients": 0}, "--clients: 0"),
        ({"participation": 0.0}, "--participation: 0.0"),
        ({"participation": float("nan")}, "--participation: nan"),
        ({"participation": 1.5}, "--participation: 1.5"),
        ({"participation": 0.004}, "--participation: 0.004 of 200 clients selects none; 0.005 is one"),
        ({"rounds": 0}, "--rounds: 0"),
        ({"target_ua": 97.0}, "--target-ua: 97.0"),
        ({"seed": -1}, "--seed: -1"),
        ({"learning_rate": 0.0}, "--learning-rate: 0.0"),
        ({"learning_rate": float("inf")}, "--learning-rate: inf"),
        ({"strategy": "fedadam", "server_learning_rate": -1.0}, "--server-learning-rate: -1.0"),
        (
            {"server_learning_rate": 0.1},
            "--server-learning-rate: fedavg has no use for it, only a strategy with an optimizer",
        ),
        ({"adaptation_rate": 0.1}, "--adaptation-rate: fedavg has no use for it, only per-fedavg"),
        ({"strategy": "per-fedavg", "proximity": 1.0}, "--proximity: per-fedavg has no use for it, only pfedme"),
        ({"strategy": "independent", "private": "affine"}, "--private: independent keeps no patch private"),
        ({"batch_size": 0}, "--batch-size: 0"),
        ({"epochs": 0}, "--epochs: 0"),
        ({"steps": -1}, "--steps: -1"),
        ({"steps": 10, "epochs": 2}, "--steps: 10 steps take the place of --epochs 2"),
        ({"noisy_fraction": 1.2}, "--noisy-fraction: 1.2"),
        ({"noisy_fraction": 0.2, "data": "shard:{index}/{count}"}, "--noisy-fraction: it adds to the task's own"),
    ],
)
def test_invalid_term_is_reported_with_its_option(terms, begins):
    with pytest.raises(ConfigError) as caught:
        _study(**terms)
    (problem,) = caught.value.problems
    assert problem.startswith(begins)


def test_invalid_terms_are_reported_together():
    with pytest.raises(ConfigError) as caught:
        _study(clients=0, rounds=0, target_ua=2.0, proximity=1.0)
    assert [one.partition(":")[0] for one in caught.value.problems] == [
        "--clients",
        "--target-ua",
        "--rounds",
        "--proximity",
    ]


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ({"strategy": "fedavg_adam"}, "did you mean 'fedavg-adam'"),
        ({"private": "afine"}, "did you mean 'affine'"),
        ({"data": "shard:0/200"}, "lacks {index}, so that every client would have the same data"),
        ({"data": "shard:{index[0]}/{count}"}, "there is no field {index[0]}"),
        ({"data": "shard:{index:{index[0]}}/{count}"}, "cannot be filled in"),
        ({"data": "shard:{client}/{count}"}, "{index}, {count}, {seed}"),
        ({"data": "shard:{}/{count}"}, "{index}, {count}, {seed}"),
        ({"data": "shard:{index/{count}"}, "{index}, {count}, {seed}"),
    ],
)
def test_invalid_name_or_template_is_reported_with_a_remedy(terms, words):
    with pytest.raises(UsageError) as caught:
        _study(**terms)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "terms",
    [
        {"clients": "4"},
        {"rounds": 1.5},
        {"seed": True},
        {"target_ua": "high"},
        {"learning_rate": "0.1"},
        {"private": None},
        {"strategy": 5},
        {"noisy_fraction": "half"},
    ],
)
def test_a_term_of_another_type_is_refused_with_its_name(terms):
    with pytest.raises(UsageError) as caught:
        _study(**terms)
    assert next(iter(terms)).replace("_", "-") in str(caught.value).replace("_", "-")


def test_scalars_of_numpy_are_terms():
    given: dict[str, Any] = {
        "clients": np.int64(4),
        "seed": np.int32(1),
        "participation": np.float64(0.5),
        "target_ua": np.float32(0.5),
    }
    study = _study(**given)
    assert study == _study(clients=4, seed=1, participation=0.5, target_ua=0.5)
    assert json.loads(json.dumps(study.to_dict())) == study.to_dict()


def test_a_task_without_a_data_spec_needs_one():
    bare = replace(MNIST, simulation_data="", demo_data="")
    with pytest.raises(UsageError, match="--data"):
        _study(bare)
    assert _study(replace(bare, demo_data="d:{index}")).data == "d:{index}"


def test_noise_cannot_be_added_to_the_data_specs_of_another_kind():
    with pytest.raises(UsageError, match="not those of the bundled tasks"):
        _study(replace(MNIST, simulation_data="sensor:{index}"), noisy_fraction=0.2)


@given(
    strategy=st.sampled_from([*STRATEGIES.own, *BASELINES]),
    private=st.sampled_from(["none", "stats", "affine", "all", "names:fc1.*"]),
    clients=st.integers(2, 10_000),
    participation=st.floats(0.5, 1.0),
)
def test_every_strategy_gets_the_numbers_it_steps_by_and_no_others(strategy, private, clients, participation):
    private = "none" if strategy in BASELINES else private
    study = _study(strategy=strategy, private=private, clients=clients, participation=participation)
    assert study.learning_rate > 0
    owners = {"per-fedavg": study.adaptation_rate, "pfedme": study.proximity}
    assert {name for name, value in owners.items() if value is not None} == {strategy} & set(owners)
    steps_on_the_server = strategy in STRATEGIES.own and issubclass(STRATEGIES.own[strategy], ServerOptimizer)
    assert (study.server_learning_rate is not None) == steps_on_the_server
    assert (study.private == "none") or strategy in STRATEGIES.own
    assert Study.from_dict(study.to_dict()) == study


@pytest.mark.parametrize("terms", [{"group_size": 9}, {"clip": 1.0}, {"delta": 1e-6}])
def test_a_term_without_effect_comes_back_from_the_files_of_a_study(terms):
    study = _study(**terms)
    assert Study.from_dict(study.to_dict()) == study


def test_file_of_an_earlier_version_with_keep_is_read_where_all_values_travelled():
    study = _study()
    assert Study.from_dict(study.to_dict() | {"keep": 1}) == study
    with pytest.raises(UsageError, match="keep"):
        Study.from_dict(study.to_dict() | {"keep": 8})


POINT = Point(0, 0.5, 0.25, 0.0, 4, None, 0.1)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"versions": "abc"}, "versions"),
        ({"complete": "yes"}, "complete"),
        ({"points": 3}, "outcome"),
        ({"points": [{**asdict(POINT), "user_accuracy": "high"}]}, "user_accuracy"),
        ({"attack": {"bad": 1}}, "bad"),
        ({"study": [1]}, "the simulation"),
    ],
)
def test_a_damaged_outcome_is_refused_with_the_name_of_its_field(changes, named):
    whole = json.loads(json.dumps(Outcome(_study(), (POINT,), True, {"torch": "2.9"}).to_dict()))
    assert Outcome.from_dict(whole).points == (POINT,)
    with pytest.raises(UsageError, match=named):
        Outcome.from_dict(whole | changes)
