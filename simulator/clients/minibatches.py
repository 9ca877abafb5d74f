"""Minibatches of the clients that train next, drawn for several clients at once.

Training evicts the drawing code from the processor's caches. To load it again for each client costs several times as much
as to draw for many clients in a row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from fedpatch.device_agent.training.batches import batch_indices, stream_seed
from fedpatch.shared.wire.messages import TrainPlan
from fedpatch.simulator.spec.study import client_id

DRAWN_AHEAD = 5_000
"""Number of examples, in the batches of the next clients, that are drawn ahead: a few kilobytes."""

Turn = tuple[int, int]
"""A client's turn to train: its number, and how many batches it took before."""


class MinibatchStream:
    """The batches of device_agent.training.batches, for clients of `num_examples` examples; size and number as in `plan`."""

    def __init__(self, plan: TrainPlan, num_examples: Sequence[int], batches_per_step: int) -> None:
        self._plan, self._num_examples, self._batches_per_step = plan, num_examples, batches_per_step
        self._expected: list[Turn] = []
        self._places: dict[Turn, int] = {}
        self._drawn: dict[Turn, Tensor] = {}

    def expect(self, turns: Sequence[Turn]) -> None:
        """Expect these turns next, in this order; earlier expectations are dropped. Another turn may still come."""
        self._expected = list(turns)
        self._places = {turn: place for place, turn in enumerate(turns)}
        self._drawn.clear()

    def of_turn(self, turn: Turn) -> Tensor:
        """Examples of all batches of a client's round, int64 of shape (batches, examples of each)."""
        drawn = self._drawn.pop(turn, None)
        if drawn is None:
            drawn = self._round_of(turn)
            after = self._places.get(turn, len(self._expected)) + 1
            ahead = self._expected[after : after + DRAWN_AHEAD // drawn.numel()]
            self._drawn = {one: self._round_of(one) for one in ahead}
        return drawn

    def batches(self, client: int, first_batch: int, count: int) -> Tensor:
        """Examples of `count` batches of a client, from batch `first_batch` on."""
        examples, seed = self._num_examples[client], stream_seed(self._plan.seed, client_id(client))
        drawn = list(batch_indices(examples, self._plan.batch_size, first_batch, count, seed))
        return torch.from_numpy(np.concatenate(drawn)).view(count, -1)

    def _round_of(self, turn: Turn) -> Tensor:
        client, first_batch = turn
        steps = self._plan.steps_for(self._num_examples[client])
        return self.batches(client, first_batch, steps * self._batches_per_step)
