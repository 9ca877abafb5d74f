"""Per-FedAvg, pFedMe and independent learning follow their papers with every engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedpatch.coordinator.strategies.fedavg import FedAvg
from fedpatch.shared.errors import UsageError
from fedpatch.shared.tasks.bundled.classification import cross_entropy
from fedpatch.shared.tasks.task import Task
from fedpatch.shared.tasks.torch_model import schema_of
from fedpatch.simulator.clients.patches import Patches
from fedpatch.simulator.clients.population import Population, load_population
from fedpatch.simulator.experiment.simulation import Simulation, simulate
from fedpatch.simulator.kernels.flat_model import WorkingModel
from fedpatch.simulator.kernels.losses import loss_of
from fedpatch.simulator.kernels.model_layers import layers_of
from fedpatch.simulator.kernels.sparse_features import used_features
from fedpatch.simulator.learners.baselines import MU, PerFedAvgSteps, PFedMeSteps, kept_between_rounds
from fedpatch.simulator.learners.learner_context import LearnerContext
from fedpatch.simulator.learners.optimizer_steps import ClientSteps, SgdSteps
from fedpatch.simulator.learners.protocols import Cohort
from fedpatch.simulator.learners.worker_pool import Workers
from fedpatch.simulator.spec.study import BASELINES, Study
from tests.simulator.baseline_oracle import Naive
from tests.simulator.small_task import BRANCHED, CLASSES, DENSE, FEATURES, REFERENCE, SPARSE, TASK, build_model
from tests.simulator.studies import one_process
from tests.support.examples import examples

ROUNDS = 3
NOWHERE = Path("/nonexistent")


def _study(strategy: str, participation: float = 1.0, data: str = SPARSE) -> Study:
    study = Study(REFERENCE, 8, strategy, "none", data, participation, ROUNDS, None, 5, 0.2, TASK.batch_size)
    return replace(
        study,
        adaptation_rate=0.1 if strategy == "per-fedavg" else None,
        proximity=2.0 if strategy == "pfedme" else None,
    )


def _simulation(
    study: Study, make_cohort: Callable[[Task, LearnerContext], Cohort] | None = None, task: Task = TASK
) -> Simulation:
    population = load_population(task, study.data, study.clients, study.seed, NOWHERE)
    return Simulation(study, task, population, make_cohort or one_process)


@pytest.mark.matrix
@pytest.mark.parametrize("data", [SPARSE, DENSE], ids=["sparse", "dense"])
@pytest.mark.parametrize("participation", [0.5, 1.0])
@pytest.mark.parametrize("strategy", BASELINES)
def test_a_baseline_is_what_one_would_write_down_from_its_paper(strategy, participation, data):
    study = _study(strategy, participation, data)
    simulation, naive = _simulation(study), Naive(study, TASK)
    for completed in range(ROUNDS + 1):
        if completed:
            naive.train()
        point, accuracies = simulation.step(), naive.user_accuracies()
        assert point.user_accuracy == pytest.approx(np.mean(accuracies), abs=1e-12)
        assert point.p10 == pytest.approx(np.quantile(accuracies, 0.1), abs=1e-12)
        state = naive.model.state_dict()
        for name, array in simulation.server.tensors.items():
            np.testing.assert_allclose(array, state[name].numpy(), rtol=1e-9, atol=1e-11, err_msg=name)
    if strategy == "independent":
        assert not simulation.server.tensors
        for number, client in enumerate(naive.clients):
            for name, value in (client.own or naive.model).state_dict().items():
                np.testing.assert_allclose(simulation.patches.values[name][number], value, rtol=1e-9, atol=1e-11)


def test_the_small_task_leaves_features_out_where_it_is_sparse():
    """The test above therefore covers both cases: rows left out (SPARSE), and no rows left out (DENSE)."""
    populations = [load_population(TASK, data, 8, 5, NOWHERE) for data in (SPARSE, DENSE)]
    assert [used_features(one) is not None for one in populations] == [True, False]


@pytest.mark.parametrize("strategy", BASELINES)
def test_measuring_a_client_leaves_no_trace(strategy):
    """For any measured clients and frequency, training continues unchanged, and the measure is the same each time."""
    looked_at, left_alone = _simulation(_study(strategy)), _simulation(_study(strategy))
    for _ in range(ROUNDS):
        points = looked_at.step(), left_alone.step()
        assert points[0].user_accuracy == points[1].user_accuracy
        first = looked_at._cohort.measure(range(8))
        assert looked_at._cohort.measure(range(8)) == first
    for ours, theirs in zip(_state(looked_at), _state(left_alone), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def _state(simulation: Simulation) -> list[np.ndarray]:
    saved = simulation.state()
    return [*saved.server.tensors.values(), *saved.patches.values(), np.array(saved.batches)]


@pytest.mark.parametrize("strategy", BASELINES)
def test_an_interrupted_baseline_goes_on_as_if_it_had_not_been(strategy, tmp_path):
    study = _study(strategy, 0.5)
    whole = simulate(study)
    asked = iter([False, False, True])
    part = simulate(study, saved=tmp_path / "state", stopped=lambda: next(asked))
    rest = simulate(study, saved=tmp_path / "state")
    assert not part.complete and len(part.points) == 2
    assert [one.user_accuracy for one in rest.points] == [one.user_accuracy for one in whole.points]
    assert [one.train_loss for one in rest.points] == [one.train_loss for one in whole.points]


@pytest.mark.medium
@pytest.mark.parametrize(
    "strategy", [pytest.param(one, marks=() if one == "pfedme" else pytest.mark.slow) for one in BASELINES]
)
def test_two_processes_give_the_same_bits_as_one(strategy):
    study = _study(strategy, 0.5)
    alone = _simulation(study)
    together = _simulation(study, lambda _, context: Workers(study.task, context, 2))
    try:
        for _ in range(ROUNDS + 1):
            assert replace(alone.step(), seconds=0.0) == replace(together.step(), seconds=0.0)
        for ours, theirs in zip(_state(alone), _state(together), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    finally:
        together.close()


# ---- laws of single steps

Batch = tuple[Tensor, Tensor]
_rates = st.floats(0.01, 0.5)
_seeds = st.integers(0, 2**32 - 1)


def _batches(seed: int, count: int) -> list[Batch]:
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(6, FEATURES, generator=generator, dtype=torch.float64),
            torch.randint(CLASSES, (6,), generator=generator),
        )
        for _ in range(count)
    ]


@cache
def _one_client() -> Population:
    return load_population(TASK, SPARSE, 1, 0, NOWHERE)


def _working_model(seed: int) -> WorkingModel:
    layers = layers_of(model := build_model())
    assert layers is not None
    working = WorkingModel(model, layers, (), grads=True)
    working.public.uniform_(0.5, 1.5, generator=torch.Generator().manual_seed(seed))
    return working


def _after_a_round(kind: type[ClientSteps], study: Study, seed: int, batches: list[Batch]) -> dict[str, Tensor]:
    """The tensors that a single client sends, by name, after training on `batches` from weights of `seed`."""
    working, schema = _working_model(seed), schema_of(build_model())
    patches = Patches(kept_between_rounds(study.strategy, schema), {}, 1)
    plan = FedAvg().plan(study.learning_rate, TASK.batch_size, 1, 0, 0)
    steps = kind(LearnerContext(study, _one_client(), None, patches, plan, schema), working)
    with torch.no_grad():
        steps.run(iter(batches), loss_of(cross_entropy))
        steps.finish(0, len(batches) // kind.batches_per_step)
    return working.layout.unflatten(working.public)


@pytest.mark.medium
@examples(25)
@given(_seeds, st.integers(1, 4), _rates)
def test_per_fedavg_that_does_not_adapt_is_sgd_on_every_second_batch(seed, count, beta):
    """With alpha = 0, the first batch of a step changes only statistics."""
    batches = _batches(seed, 2 * count)
    study = replace(_study("per-fedavg"), adaptation_rate=0.0, learning_rate=beta)
    ours = _after_a_round(PerFedAvgSteps, study, seed, batches)
    sgd = _after_a_round(SgdSteps, replace(study, strategy="fedavg"), seed, batches[1::2])
    for name, _ in build_model().named_parameters():
        torch.testing.assert_close(ours[name], sgd[name], rtol=1e-9, atol=1e-11)


@pytest.mark.medium
@examples(25)
@given(_seeds, st.integers(1, 4), _rates)
def test_pfedme_whose_w_follows_at_once_is_sgd_with_weight_decay(seed, count, eta):
    """With eta * lambda = 1, w equals theta after every step, so only mu restrains theta."""
    batches = _batches(seed, count)
    ours = _after_a_round(PFedMeSteps, replace(_study("pfedme"), learning_rate=eta, proximity=1 / eta), seed, batches)
    working, model = _working_model(seed), build_model()
    model.load_state_dict(working.layout.unflatten(working.public), strict=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=eta, weight_decay=MU)
    for x, y in batches:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    for name, value in ours.items():
        torch.testing.assert_close(value, model.state_dict()[name], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("strategy", ["per-fedavg", "pfedme"])
def test_a_baseline_names_the_models_that_it_can_train(strategy):
    with pytest.raises(UsageError, match=rf"{strategy} needs a model that is a plain torch.nn.Sequential of .*Conv2d"):
        _simulation(_study(strategy), task=BRANCHED)


def test_independent_learning_takes_any_model():
    simulation = _simulation(_study("independent"), task=BRANCHED)
    first, second = simulation.step(), simulation.step()
    assert (first.round, second.round) == (0, 1)
    assert second.user_accuracy > first.user_accuracy


@pytest.mark.parametrize("strategy", ["per-fedavg", "pfedme"])
def test_a_baseline_has_no_patches(strategy):
    with pytest.raises(UsageError, match=f"{strategy} keeps no patch private"):
        _simulation(replace(_study(strategy), private="affine"))


@pytest.mark.parametrize(("strategy", "term"), [("per-fedavg", "adaptation rate"), ("pfedme", "proximity")])
def test_a_baseline_asks_for_its_own_number(strategy, term):
    with pytest.raises(UsageError, match=f"{strategy} needs its {term}"):
        _simulation(replace(_study(strategy), adaptation_rate=None, proximity=None))
