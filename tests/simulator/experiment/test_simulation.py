"""A simulation from its first round to its last: its counts, its end, and its errors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedpatch.device_agent.training.batches import stream_seed
from fedpatch.device_agent.training.local_trainer import LocalTrainer
from fedpatch.shared.errors import DataError, UpdateRefused, UsageError
from fedpatch.shared.tasks.torch_model import initial_tensors
from fedpatch.simulator.experiment.options import make_study
from fedpatch.simulator.experiment.simulation import simulate
from fedpatch.simulator.spec.study import Point
from tests.shared import prepared_task
from tests.simulator.studies import (
    BATCH,
    SIZES,
    STRATEGIES,
    UNEVEN,
    Deployed,
    algorithm_1,
    assert_close,
    client_data,
    patch_of,
    simulation_of,
    study_of,
    without_seconds,
)


@pytest.mark.parametrize("cap", ["off", "auto:1.2"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_curve_is_that_of_algorithm_1(strategy, cap):
    """Point t is the mean user accuracy that the oracle measures before round t + 1, on that round's clients."""
    study = study_of(strategy, "affine", max_num_examples=cap)
    points, deployed, rounds = simulate(study).points, Deployed(study), []
    for number in range(study.rounds):
        deployed.state = replace(deployed.state, round=number)
        rounds.append([f"client-{one}" for one in deployed.selected()])
    assert [one.round for one in points] == list(range(study.rounds + 1))
    for point, expected in zip(points[:-1], algorithm_1(study, rounds), strict=True):
        accuracies = list(expected.user_accuracy.values())
        assert point.user_accuracy == pytest.approx(np.mean(accuracies))
        assert (point.lowest, point.p10) == pytest.approx((min(accuracies), np.quantile(accuracies, 0.1)))
        assert point.counted == len(accuracies)


def test_simulation_ends_in_the_round_that_reaches_the_target():
    """`rounds_to_target` is the number of completed rounds when UA first reaches the target; no round follows."""
    curve = [point.user_accuracy for point in simulate(study_of(participation=1.0, rounds=8)).points]
    target = max(curve[2:])
    first = next(number for number, accuracy in enumerate(curve) if accuracy >= target)
    outcome = simulate(study_of(participation=1.0, rounds=8, target_ua=target))
    assert (outcome.rounds_to_target, outcome.complete) == (first, True)
    assert [point.user_accuracy for point in outcome.points] == curve[: first + 1]


@pytest.mark.parametrize(("target", "needed", "points"), [(0.0, 0, 1), (1.0, None, 4)])
def test_target_met_at_once_or_never_gives_no_round_or_all(target, needed, points):
    outcome = simulate(study_of(target_ua=target, rounds=3))
    assert (outcome.rounds_to_target, len(outcome.points), outcome.complete) == (needed, points, True)


def test_noisy_clients_train_but_do_not_count_in_accuracy():
    study = study_of(participation=1.0)
    everybody, without_one = simulation_of(study), simulation_of(replace(study, data="{seed}/{index};noisy-2"))
    for _ in range(3):
        counted, uncounted = everybody.step(), without_one.step()
        assert (counted.counted, uncounted.counted) == (len(SIZES), len(SIZES) - 1)
    assert_close(without_one.server.tensors, everybody.server.tensors, 0)
    accuracies = [everybody._cohort.measure([client])[0] for client in range(len(SIZES)) if client != 2]
    assert uncounted.user_accuracy == pytest.approx(np.mean(accuracies))


def test_population_without_counting_clients_is_refused():
    with pytest.raises(DataError, match="no client counts in user accuracy"):
        simulate(study_of(clients=1, data="{seed}/{index};noisy-0"))


def test_cohort_of_noisy_clients_is_measured_on_those_who_count():
    """A small cohort may have noisy clients only; the study continues, and its point has the number of counted clients."""
    study = study_of(clients=2, participation=0.5, rounds=6, data="{seed}/{index};noisy-0")
    points = simulate(study).points
    assert [point.counted for point in points] == [1] * 7


def test_independent_clients_train_alone():
    study = study_of("independent", participation=1.0)
    simulation = simulation_of(study)
    for _ in range(3):
        simulation.step()
    for client in range(study.clients):
        trainer = LocalTrainer(UNEVEN, client_data(client, study.seed))
        tensors, taken = initial_tensors(UNEVEN, study.seed), 0
        for _ in range(2):
            result = trainer.run(
                tensors,
                simulation.strategy.plan(study.learning_rate, BATCH, 1, 0, study.seed),
                first_batch=taken,
                stream_seed=stream_seed(study.seed, f"client-{client}"),
                on_step=lambda done, total: None,
                cancelled=lambda: False,
            )
            assert result is not None
            tensors, taken = result.tensors, taken + result.steps
        assert_close(patch_of(simulation, client), tensors)


def test_points_are_reported_one_by_one():
    reported: list[Point] = []
    asked: list[int] = []

    def stopped() -> bool:
        asked.append(len(reported))
        return False

    outcome = simulate(study_of(rounds=3), on_point=reported.append, stopped=stopped)
    assert reported == list(outcome.points)
    assert asked == [0, 1, 2, 3]


def test_same_study_gives_same_outcome_whatever_the_random_state():
    torch.manual_seed(1)
    one = simulate(study_of("fedavg-adam", "all"))
    drawn = torch.rand(3)
    torch.manual_seed(1)
    assert torch.equal(torch.rand(3), drawn)
    torch.manual_seed(2)
    assert without_seconds(simulate(study_of("fedavg-adam", "all"))) == without_seconds(one)


def test_divergence_names_the_client_and_the_remedy():
    with pytest.raises(UpdateRefused, match=r"client \d.*smaller learning rate") as refused:
        simulate(study_of(learning_rate=1e300))
    assert refused.value.reason == "not_finite"


def test_values_that_diverge_in_the_last_step_are_refused():
    """Losses may still be finite when the weights no longer are."""
    study = study_of(learning_rate=1e308, steps=1, rounds=1, private="none", participation=1.0)
    with pytest.raises(UpdateRefused, match="smaller learning rate"):
        simulate(replace(study, task="tests.simulator.experiment.test_simulation:STEEP"))


def test_data_error_of_the_task_is_raised_unchanged():
    with pytest.raises(DataError, match="client 2 are absent; fetch them first"):
        simulate(study_of(data="{seed}/{index};absent-2"))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"private": "stats", "task": "tests.simulator.experiment.test_simulation:NO_BATCH_NORM"}, "no batch norm"),
        ({"private": "afine"}, "did you mean 'affine'"),
        ({"task": "tests.simulator.studies:UNEVN"}, "no attribute 'UNEVN'"),
        ({"data": "all the same"}, "lacks {index}"),
        (
            {"private": "names:0.weight", "task": "tests.simulator.experiment.test_simulation:TIED"},
            "one and the same tensor",
        ),
        ({"device": "nonsense"}, "nonsense"),
    ],
)
def test_impossible_terms_are_refused_with_torch_threads_unchanged(changes, problem):
    options = {name: changes[name] for name in changes.keys() & {"device"}}
    study = study_of(**{name: value for name, value in changes.items() if name not in options})
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with pytest.raises(UsageError, match=problem):
            simulate(study, **options)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def _tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 12)).double()
    model[2].weight = model[0].weight
    return model


TIED = replace(UNEVEN, build_model=_tied)
NO_BATCH_NORM = replace(UNEVEN, build_model=lambda: nn.Sequential(nn.Linear(12, 3)).double())
STEEP = replace(NO_BATCH_NORM, loss=lambda outputs, targets: outputs.mean() * 1e10, load_data=UNEVEN.load_data)


def test_labels_beyond_the_models_classes_are_refused_before_the_first_round(monkeypatch):
    plain = prepared_task.PLAIN
    wrong = replace(plain, class_names=(), load_data=lambda spec, root: plain.load_data("labels", root))
    monkeypatch.setattr(prepared_task, "TASK", wrong)
    given: dict[str, Any] = {"task_ref": prepared_task.REFERENCE, "clients": 1, "strategy": "fedavg", "rounds": 1}
    with pytest.raises(
        DataError, match="train_y of client 0 holds label 5 in row 7, and the model of task 'prepared' has 2"
    ):
        simulate(make_study(task=wrong, data="{index}", **given))
