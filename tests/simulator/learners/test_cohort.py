"""The fast computation of many clients gives the results of the deployed system's LocalUpdate, device by device."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from fedpatch.coordinator.aggregation.strategy import Strategy
from fedpatch.shared.errors import DataError, UpdateRefused
from fedpatch.simulator.learners.cohort_training import CHUNKS, chunks_of, make_learner
from fedpatch.simulator.learners.fused_learner import FusedLearner
from fedpatch.simulator.learners.protocols import CohortMember
from fedpatch.simulator.learners.reference_learner import OneByOneLearner
from tests.simulator.studies import (
    IMAGES,
    OWN_LOSS,
    POLICIES,
    STRATEGIES,
    UNEVEN,
    Deployed,
    algorithm_1,
    assert_close,
    assert_like_deployed,
    build_model,
    patch_of,
    simulation_of,
    study_of,
)
from tests.support import oracle


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("task", "private", "rounds"),
    [
        *((UNEVEN, private, 4) for private in POLICIES),
        pytest.param(IMAGES, "affine", 3, id="convolutions"),
        pytest.param(OWN_LOSS, "affine", 3, id="a loss that only autograd knows"),
    ],
)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_cohort_trains_as_its_devices_would(strategy, task, private, rounds):
    simulation = assert_like_deployed(study_of(strategy, private), task, rounds=rounds)
    assert isinstance(simulation._cohort.learner, FusedLearner)  # type: ignore[attr-defined]


@pytest.mark.parametrize("changes", [{"epochs": 3}, {"steps": 4}, {"batch_size": 100}, {"participation": 1.0}])
def test_length_of_a_round_follows_the_plan(changes):
    assert_like_deployed(study_of("fedavg-adam", "stats", **changes), rounds=3)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_model_without_a_fast_way_is_trained_one_by_one(strategy):
    class Model(torch.nn.Sequential):
        """Not a plain sequence."""

    task = replace(UNEVEN, build_model=lambda: Model(*build_model().children()))
    simulation = assert_like_deployed(study_of(strategy, "affine"), task, tolerance=1e-12)
    assert isinstance(simulation._cohort.learner, OneByOneLearner)  # type: ignore[attr-defined]


@dataclass(frozen=True)
class LocalAdam(Strategy):
    """Clients run Adam from moments of zero in each round."""

    name = "local-adam"
    description = "clients Adam without shared moments, server mean"
    client_optimizer = "adam"


@dataclass(frozen=True)
class SharedScale(LocalAdam):
    """Clients share only the second moments."""

    name = "shared-scale"
    moments = ("exp_avg_sq",)


@pytest.mark.parametrize("private", ["none", "affine"])
@pytest.mark.parametrize("strategy", [LocalAdam, SharedScale])
def test_adam_of_an_own_strategy_that_shares_no_or_some_moments_trains_as_on_devices(strategy, private):
    study = replace(study_of("fedavg-adam", private), strategy=f"{__name__}:{strategy.__name__}")
    assert_like_deployed(study, rounds=2)


def test_leaving_out_unused_features_changes_nothing():
    for strategy in STRATEGIES:
        study = study_of(strategy, "affine")
        with_all = simulation_of(
            study, learner=lambda task, context: make_learner(task, replace(context, features=None))
        )
        without = simulation_of(study, learner=_with_features)
        for _ in range(4):
            with_all.step(), without.step()
        assert_close(without.server.tensors, with_all.server.tensors, 1e-11)
        for client in range(study.clients):
            assert_close(patch_of(without, client), patch_of(with_all, client), 1e-11)


def _with_features(task, context):
    assert context.features is not None
    return make_learner(task, context)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_rounds_are_those_of_algorithm_1(strategy):
    study = study_of(strategy, "affine")
    deployed, simulation = Deployed(study), simulation_of(study)
    rounds = []
    points = [simulation.step()]
    for _ in range(4):
        rounds.append([f"client-{one}" for one in deployed.selected()])
        deployed.state = replace(deployed.state, round=deployed.state.round + 1)
        points.append(simulation.step())
    history = algorithm_1(study, rounds)
    for point, expected in zip(points[:-1], history, strict=True):
        assert point.user_accuracy == pytest.approx(np.mean(list(expected.user_accuracy.values())))
        assert point.lowest == pytest.approx(min(expected.user_accuracy.values()))
    last = history[-1]
    assert_close(simulation.server.tensors, last.omega | oracle.flat(last.moments), 1e-6)
    for client in range(study.clients):
        expected_patch = last.patches[f"client-{client}"] | oracle.flat(last.patch_moments[f"client-{client}"])
        assert_close(patch_of(simulation, client), expected_patch, 1e-6)


def test_chunks_of_a_cohort_hold_each_member_once_in_order():
    for count in (1, 2, 15, 16, 17, 200, 333):
        members = [CohortMember(client, 0, 1 / count) for client in range(count)]
        chunks = chunks_of(members)
        assert [one for chunk in chunks for one in chunk] == members
        assert len(chunks) <= CHUNKS
        lengths = [len(chunk) for chunk in chunks]
        assert max(lengths) - min(lengths) <= 1
        assert abs(sum(lengths[: len(chunks) // 2]) - sum(lengths[len(chunks) // 2 :])) <= 1


both_learners = pytest.mark.parametrize(
    "task", [UNEVEN, replace(UNEVEN, build_model=lambda: _Odd())], ids=["fused", "one by one"]
)


@both_learners
@pytest.mark.parametrize(
    ("terms", "refusal", "problem"),
    [
        ({"learning_rate": 1e300}, UpdateRefused, r"client \d.*smaller"),
        ({"data": "{seed}/{index};lonely-2"}, DataError, r"batch of one example.*at least 2"),
    ],
    ids=["diverges", "one example and batch norm"],
)
def test_client_that_cannot_be_trained_ends_the_round(task, terms, refusal, problem):
    simulation = simulation_of(study_of(participation=1.0, **terms), task)
    simulation.step()
    with pytest.raises(refusal, match=problem):
        simulation.step()


@both_learners
def test_metric_that_is_no_fraction_is_refused(task):
    simulation = simulation_of(study_of(), replace(task, metric=lambda outputs, targets: 97.0))
    with pytest.raises(DataError, match="fraction from 0 to 1"):
        simulation.step()


class _Odd(torch.nn.Module):
    """The usual model as a module of an unknown class."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = build_model()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(x)
        return out
