"""Clients get the batches of the deployed system's stream, regardless of the batches drawn ahead."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.coordinator.strategies.fedavg import FedAvg
from fedpatch.device_agent.training.batches import batch_indices, stream_seed
from fedpatch.simulator.clients import minibatches
from fedpatch.simulator.clients.minibatches import MinibatchStream, Turn
from fedpatch.simulator.spec.study import client_id

SIZES = (23, 40, 3, 8)
BATCH, SEED, EPOCHS = 5, 7, 2
STEPS = {0: 10, 1: 16, 2: 2, 3: 4}
"""Steps of each client's round: round(examples / batch), at least 1, times the epochs."""
PLAN = FedAvg().plan(0.1, BATCH, EPOCHS, 0, SEED)

TURNS = st.lists(st.tuples(st.integers(0, len(SIZES) - 1), st.integers(0, 50)), max_size=6)


def of_stream(turn: Turn, count: int) -> np.ndarray:
    """`count` batches of the client's stream, one after the other."""
    client, first_batch = turn
    seed = stream_seed(SEED, client_id(client))
    return np.array(list(batch_indices(SIZES[client], BATCH, first_batch, count, seed)))


@given(TURNS, TURNS, st.integers(0, 100), st.integers(1, 2))
def test_batches_are_independent_of_the_prefetched_clients(expected, asked, ahead, per_step):
    """The batches are those of the stream, in the expected order or another, and if turns are repeated or left out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(minibatches, "DRAWN_AHEAD", ahead)
        ours = MinibatchStream(PLAN, SIZES, per_step)
        ours.expect(expected)
        for turn in (*expected, *asked):
            found = ours.of_turn(turn)
            assert found.dtype == torch.int64
            assert np.array_equal(found.numpy(), of_stream(turn, STEPS[turn[0]] * per_step))


@given(st.integers(0, len(SIZES) - 1), st.integers(0, 50), st.integers(1, 9))
def test_any_number_of_batches_can_be_drawn(client, first_batch, count):
    found = MinibatchStream(PLAN, SIZES, 1).batches(client, first_batch, count)
    assert np.array_equal(found.numpy(), of_stream((client, first_batch), count))


@dataclass
class CountedSizes:
    """Numbers of examples; `asked` lists the clients whose number was read."""

    asked: list[int]

    def __getitem__(self, client: int) -> int:
        self.asked.append(client)
        return SIZES[client]


def test_no_more_is_held_than_a_few_kilobytes(monkeypatch):
    monkeypatch.setattr(minibatches, "DRAWN_AHEAD", 2 * STEPS[0] * BATCH)
    sizes = CountedSizes([])
    ours = MinibatchStream(PLAN, sizes, 1)  # type: ignore[arg-type]
    ours.expect([(0, 0), (1, 0), (2, 0), (3, 0)])
    ours.of_turn((0, 0))
    assert set(sizes.asked) == {0, 1, 2}
    sizes.asked.clear()
    ours.of_turn((1, 0)), ours.of_turn((2, 0))
    assert sizes.asked == []
    ours.of_turn((1, 0))  # drawn again; it is longer, so only one more fits
    assert set(sizes.asked) == {1, 2}
