"""The minibatches of the clients that train next, drawn for some of them at once.

What a client trains on sweeps the processor's caches, and so the code that draws would come from memory again for every
client; for several in a row it costs a fifth.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from device_agent.batches import batch_indices, steps_for, stream_seed
from shared.messages import TrainPlan
from simulator.study import client_id

AT_ONCE = 16

Turn = tuple[int, int]
"""A client's turn to train: its number, and how many batches it took before."""


class Draws:
    """Draws as device_agent.batches does, for clients of `num_examples` examples each."""

    def __init__(self, plan: TrainPlan, num_examples: Sequence[int], batches_per_step: int) -> None:
        self._plan, self._num_examples, self._batches_per_step = plan, num_examples, batches_per_step
        self._expected: list[Turn] = []
        self._drawn: dict[Turn, Tensor] = {}

    def expect(self, turns: Sequence[Turn]) -> None:
        """These will train next, most likely in this order; whatever was expected before no longer is."""
        self._expected = list(reversed(turns))
        self._drawn.clear()

    def of_turn(self, turn: Turn) -> Tensor:
        """Examples of all batches of a round, int64 of shape (batches, examples of each)."""
        if turn not in self._drawn:
            self._drawn = {one: self._round_of(one) for one in dict.fromkeys([turn, *self._next()])}
        return self._drawn.pop(turn)

    def batches(self, client: int, first_batch: int, count: int) -> Tensor:
        """The same of any number of batches."""
        seed = stream_seed(self._plan.seed, client_id(client))
        drawn = list(batch_indices(self._num_examples[client], self._plan.batch_size, first_batch, count, seed))
        return torch.from_numpy(np.concatenate(drawn)).view(count, -1)

    def _next(self) -> list[Turn]:
        some = self._expected[-AT_ONCE:]
        del self._expected[-AT_ONCE:]
        return some[::-1]

    def _round_of(self, turn: Turn) -> Tensor:
        client, first_batch = turn
        steps = steps_for(self._plan, self._num_examples[client])
        return self.batches(client, first_batch, steps * self._batches_per_step)
