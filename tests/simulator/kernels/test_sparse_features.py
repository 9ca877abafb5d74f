"""What clients never use is found, left out and nothing else is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from fedpatch.shared.tasks.task import DeviceData, Task
from fedpatch.simulator.kernels.sparse_features import UsedFeatures, used_features
from tests.simulator.studies import (
    FEATURES,
    IMAGES,
    SIZES,
    UNEVEN,
    assert_like_deployed,
    population_of,
    simulation_of,
    study_of,
)


def sharing(share: float) -> Task:
    """A task whose clients use about that share of the features, in every combination."""

    def load_data(spec: str, _root: Path) -> DeviceData:
        data = UNEVEN.load_data(spec, _root)
        rng = np.random.default_rng([7, int(spec.partition("/")[2])])
        train, test = (rng.normal(size=(len(part), FEATURES)) for part in (data.train_x, data.test_x))
        unused = rng.permutation(FEATURES)[round(share * FEATURES) :]
        train[:, unused] = test[:, unused] = 0
        return replace(data, train_x=train, test_x=test)

    return replace(UNEVEN, load_data=load_data)


def test_inputs_are_those_of_the_used_features():
    """Put back where they belong, a client's inputs are the ones it has; every other is zero in all its examples."""
    population = population_of(study_of(), UNEVEN)
    features = UsedFeatures(population)
    for client in range(population.clients):
        used, train, test = features.of(client)
        data = population.of(client)
        for part, whole in ((train, data.train_x), (test, data.test_x)):
            again = torch.zeros_like(whole)
            again[:, used] = part
            assert torch.equal(again, whole)
        assert len(used) == FEATURES - FEATURES // 3


def test_a_feature_that_only_test_examples_use_is_used():
    """What never appears in training may still count in measuring."""
    data = UNEVEN.load_data("0/0", Path())
    data.train_x[:, :] = 0
    data.test_x[:, :] = 0
    data.test_x[0, 5] = 1
    population = population_of(study_of(clients=1), replace(UNEVEN, load_data=lambda spec, root: data))
    used, train, test = UsedFeatures(population).of(0)
    assert (used.tolist(), train.shape, test.shape) == ([5], (SIZES[0], 1), (20, 1))


@pytest.mark.parametrize("share", [0.25, 0.5, 0.8])
def test_training_on_used_features_is_training(share):
    """However few a client uses, the model, also its unused rows, is the deployed system's."""
    task = sharing(share)
    assert used_features(population_of(study_of(), task)) is not None
    for strategy in ("fedavg", "fedavg-adam"):
        assert_like_deployed(study_of(strategy, "affine"), task, tolerance=1e-8)


def test_a_client_that_uses_no_feature_at_all_trains_too():
    """Of inputs that are all zero, biases can still be learned, as on a device."""
    task = sharing(0.5)

    def load_data(spec: str, root: Path) -> DeviceData:
        data = task.load_data(spec, root)
        if spec.endswith("/2"):
            data.train_x[:], data.test_x[:] = 0, 0
        return data

    for strategy in ("fedavg", "fedavg-adam"):
        study = study_of(strategy, "none", participation=1.0)
        assert_like_deployed(study, replace(task, load_data=load_data, build_model=_without_batch_norm), tolerance=1e-8)


def _without_batch_norm() -> torch.nn.Module:
    # Batch norm would magnify the rounding errors of examples that are all the same.
    return torch.nn.Sequential(torch.nn.Linear(FEATURES, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)).double()


def test_features_are_left_alone_where_leaving_them_out_saves_nothing():
    """Inputs that are not vectors, and those in which almost everything is used, stay as they are."""
    assert used_features(population_of(study_of(), IMAGES)) is None
    assert used_features(population_of(study_of(), sharing(1.0))) is None
    simulation = simulation_of(study_of(), sharing(1.0))
    simulation.step(), simulation.step()
