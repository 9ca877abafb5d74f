"""Folding vectors of which clients hold only some rows is a plain weighted sum."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedpatch.simulator.kernels.flat_model import Layout
from fedpatch.simulator.kernels.model_layers import layers_of
from fedpatch.simulator.kernels.sparse_features import FOLD_EVERY, SparseSum
from tests.simulator.studies import FEATURES, build_model

MODEL = build_model()


def layout() -> Layout:
    """That of the small model, all of it public."""
    layers = layers_of(MODEL)
    assert layers is not None
    return Layout(MODEL, layers, frozenset())


LAYOUT = layout()
assert LAYOUT.rows is not None
ROWS = LAYOUT.rows


@dataclass(frozen=True)
class Client:
    """What one client adds; `features` None: all rows."""

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
    """What unused rows have become after so many steps: something that depends on them."""
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
    """What the client has of such a vector."""
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
def test_the_sum_is_that_of_the_whole_vectors(count, clients):
    """Rows that a client left out count with what they are after its own number of steps."""
    sums = SparseSum(LAYOUT, count, lambda steps: idle(steps, count))
    torch.testing.assert_close(fold(sums, clients, count), plain(clients, count))


@given(clients=CLIENTS, random=st.randoms())
def test_the_order_of_clients_matters_only_in_the_last_digits(clients, random):
    shuffled = random.sample(clients, len(clients))
    one, other = (fold(SparseSum(LAYOUT, 1, lambda steps: idle(steps, 1)), order, 1) for order in (clients, shuffled))
    torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6)


@given(first=CLIENTS, second=CLIENTS)
def test_sums_begin_anew_after_a_result(first, second):
    """Nothing of the clients before is in the next result, and the result before stays what it was."""
    sums = SparseSum(LAYOUT, 1, lambda steps: idle(steps, 1))
    before = fold(sums, first, 1)
    kept = before.clone()
    assert torch.equal(fold(sums, second, 1), fold(SparseSum(LAYOUT, 1, lambda steps: idle(steps, 1)), second, 1))
    assert torch.equal(before, kept)


@given(clients=CLIENTS)
def test_clients_with_all_features_need_no_idle_rows(clients):
    """Where nobody leaves anything out, nobody is asked what would have become of it."""
    whole = [Client(one.weight, one.steps, None, one.seed) for one in clients]
    sums = SparseSum(LAYOUT, 1, lambda steps: pytest.fail("asked for idle rows"))
    torch.testing.assert_close(fold(sums, whole, 1), plain(whole, 1))
