"""Features that clients never use are found and left out, and no others."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedpatch.shared.tasks.task import DeviceData, Task
from fedpatch.simulator.kernels.flat_model import Layout
from fedpatch.simulator.kernels.model_layers import layers_of
from fedpatch.simulator.kernels.sparse_features import FOLD_EVERY, SparseSum, UsedFeatures, used_features
from tests.simulator.studies import (
    FEATURES,
    IMAGES,
    SIZES,
    UNEVEN,
    assert_like_deployed,
    build_model,
    population_of,
    simulation_of,
    study_of,
)


def sharing(share: float) -> Task:
    """A task whose clients each use about `share` of the features, in random combinations."""

    def load_data(spec: str, _root: Path) -> DeviceData:
        data = UNEVEN.load_data(spec, _root)
        rng = np.random.default_rng([7, int(spec.partition("/")[2])])
        train, test = (rng.normal(size=(len(part), FEATURES)) for part in (data.train_x, data.test_x))
        unused = rng.permutation(FEATURES)[round(share * FEATURES) :]
        train[:, unused] = test[:, unused] = 0
        return replace(data, train_x=train, test_x=test)

    return replace(UNEVEN, load_data=load_data)


def test_used_features_hold_all_inputs_that_are_not_zero():
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


def test_feature_that_only_test_examples_use_is_kept():
    data = UNEVEN.load_data("0/0", Path())
    data.train_x[:, :] = 0
    data.test_x[:, :] = 0
    data.test_x[0, 5] = 1
    population = population_of(study_of(clients=1), replace(UNEVEN, load_data=lambda spec, root: data))
    used, train, test = UsedFeatures(population).of(0)
    assert (used.tolist(), train.shape, test.shape) == ([5], (SIZES[0], 1), (20, 1))


@pytest.mark.parametrize("share", [0.25, 0.5, 0.8])
def test_training_on_used_features_equals_training_on_all(share):
    task = sharing(share)
    assert used_features(population_of(study_of(), task)) is not None
    for strategy in ("fedavg", "fedavg-adam"):
        assert_like_deployed(study_of(strategy, "affine"), task, tolerance=1e-8)


def test_client_that_uses_no_feature_trains_its_biases():
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


def test_features_are_all_kept_where_leaving_out_saves_nothing():
    """Inputs that are not vectors, and inputs with almost all features in use, stay unchanged."""
    assert used_features(population_of(study_of(), IMAGES)) is None
    assert used_features(population_of(study_of(), sharing(1.0))) is None
    simulation = simulation_of(study_of(), sharing(1.0))
    simulation.step(), simulation.step()


# ---- sums of vectors of which clients hold only some rows

MODEL = build_model()
LAYERS = layers_of(MODEL)
assert LAYERS is not None
LAYOUT = Layout(MODEL, LAYERS, frozenset())
assert LAYOUT.rows is not None
ROWS = LAYOUT.rows


@dataclass(frozen=True)
class Client:
    """The contribution of one client; `features` None: all rows."""

    weight: float
    steps: int
    features: tuple[int, ...] | None
    seed: int


CLIENTS = st.lists(
    st.builds(
        Client,
        weight=st.floats(0.01, 1.0),
        steps=st.integers(1, 3),
        features=st.sets(st.integers(0, FEATURES - 1)).map(lambda one: tuple(sorted(one))),
        seed=st.integers(0, 2**31),
    ),
    min_size=1,
    max_size=2 * FOLD_EVERY + 3,
)


def idle(steps: int, count: int) -> list[Tensor]:
    """The values of unused rows after `steps` steps; they depend on the number of steps."""
    return [torch.full(ROWS.shape, steps + 10.0 * which, dtype=torch.float64) for which in range(count)]


def whole_vectors(client: Client, count: int) -> list[Tensor]:
    """A client's vectors with all rows: trained where it has the feature, idle elsewhere."""
    torch.manual_seed(client.seed)
    vectors = [torch.randn(LAYOUT.public_size, dtype=torch.float64) for _ in range(count)]
    if client.features is not None:
        unused = torch.ones(FEATURES, dtype=torch.bool)
        unused[list(client.features)] = False
        for vector, rows in zip(vectors, idle(client.steps, count), strict=True):
            ROWS.stored(vector)[unused] = rows[unused]
    return vectors


def held(vector: Tensor, features: tuple[int, ...] | None) -> Tensor:
    """The part of a whole vector that the client has."""
    if features is None:
        return vector
    return torch.cat([vector[: ROWS.start], ROWS.stored(vector)[list(features)].reshape(-1)])


def fold(sums: SparseSum, clients: list[Client], count: int) -> Tensor:
    """The sums of `clients`, one after the other."""
    for client in clients:
        features = None if client.features is None else torch.tensor(client.features, dtype=torch.int64)
        parts = [held(vector, client.features) for vector in whole_vectors(client, count)]
        sums.add(parts, client.weight, client.steps, features)
    return sums.result()


def plain(clients: list[Client], count: int) -> Tensor:
    each = [torch.stack(whole_vectors(one, count)) * one.weight for one in clients]
    return torch.stack(each).sum(0)


@pytest.mark.parametrize("count", [1, 3], ids=["values", "values and moments"])
@given(clients=CLIENTS)
def test_sparse_sum_is_that_of_the_whole_vectors(count, clients):
    sums = SparseSum(LAYOUT, count, lambda steps: idle(steps, count))
    torch.testing.assert_close(fold(sums, clients, count), plain(clients, count))


@given(clients=CLIENTS, random=st.randoms())
def test_sparse_sum_depends_on_the_order_by_rounding_alone(clients, random):
    shuffled = random.sample(clients, len(clients))
    one, other = (fold(SparseSum(LAYOUT, 1, lambda steps: idle(steps, 1)), order, 1) for order in (clients, shuffled))
    torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


@given(first=CLIENTS, second=CLIENTS)
def test_sparse_sum_begins_anew_after_a_result(first, second):
    sums = SparseSum(LAYOUT, 1, lambda steps: idle(steps, 1))
    before = fold(sums, first, 1)
    kept = before.clone()
    assert torch.equal(fold(sums, second, 1), fold(SparseSum(LAYOUT, 1, lambda steps: idle(steps, 1)), second, 1))
    assert torch.equal(before, kept)


@given(clients=CLIENTS)
def test_sparse_sum_of_clients_with_all_features_asks_for_no_idle_rows(clients):
    whole = [Client(one.weight, one.steps, None, one.seed) for one in clients]
    sums = SparseSum(LAYOUT, 1, lambda steps: pytest.fail("asked for idle rows"))
    torch.testing.assert_close(fold(sums, whole, 1), plain(whole, 1))
