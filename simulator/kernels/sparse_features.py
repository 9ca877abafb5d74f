"""Training without the features that are zero in all examples of a client, and the sum of such updates.

`UsedFeatures` has the inputs of the clients without these features. In MNIST, a client of two digits uses about two thirds
of the pixels. The weights of the other pixels get no gradient from this client, so its first layer can be a third smaller,
with the same result.

`SparseSum` is the weighted sum of updates; a client's update may have only some rows. Sums of a few clients are computed in the
model's own precision, at a third of the cost, and then added to a sum in float64. For the same clients in the same order the
result has the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import accumulate

import torch
from torch import Tensor, nn

from fedpatch.simulator.clients.patches import shared
from fedpatch.simulator.clients.population import Population
from fedpatch.simulator.kernels.flat_model import Layout
from fedpatch.simulator.kernels.layers import Linear
from fedpatch.simulator.kernels.model_layers import layers_of

WORTH_IT = 0.9
"""If more than this share of the features is used, inputs are not copied: copies would cost more than they save."""


class UsedFeatures:
    """For each client: the features that it uses, and its inputs with only these features; in shared memory."""

    def __init__(self, population: Population) -> None:
        used_by: list[Tensor] = []
        inputs: list[tuple[Tensor, Tensor]] = []
        for client in range(population.clients):
            data = population.of(client)
            used = ((data.train_x != 0).any(0) | (data.test_x != 0).any(0)).nonzero().squeeze(1)
            if not len(used):
                used = torch.zeros(1, dtype=torch.int64)  # at least one: an empty tensor cannot be viewed
            used_by.append(used)
            inputs.append((data.train_x[:, used], data.test_x[:, used]))
        # A few large blocks: each tensor that is sent to another process takes a file descriptor.
        self._used = shared(torch.cat(used_by))
        self._used_starts = list(accumulate((len(used) for used in used_by), initial=0))
        self._train_rows = [len(train) for train, _ in inputs]
        self._starts = list(accumulate((train.numel() + test.numel() for train, test in inputs), initial=0))
        self._values = shared(torch.cat([part.reshape(-1) for both in inputs for part in both]))

    def of(self, client: int) -> tuple[Tensor, Tensor, Tensor]:
        """Numbers of the used features; training inputs and test inputs, each of shape (examples, used features)."""
        used = self._used[self._used_starts[client] : self._used_starts[client + 1]]
        start, end = self._starts[client], self._starts[client + 1]
        middle = start + self._train_rows[client] * len(used)
        return (
            used,
            self._values[start:middle].view(-1, len(used)),
            self._values[middle:end].view(-1, len(used)),
        )


def can_leave_out_features(model: nn.Module, private: Collection[str]) -> bool:
    """Return whether unused features can be left out: the first layer is linear, and its weights travel."""
    layers = layers_of(model)
    return layers is not None and isinstance(layers[0], Linear) and f"{layers[0].name}.weight" not in private


def used_features(population: Population) -> UsedFeatures | None:
    """Return the inputs without unused features; None if that saves nothing, or if they are not plain vectors."""
    if population.of(0).train_x.dim() != 2:
        return None
    shares = []
    for client in range(min(population.clients, 50)):
        data = population.of(client)
        shares.append(float(((data.train_x != 0).any(0) | (data.test_x != 0).any(0)).float().mean()))
    return UsedFeatures(population) if sum(shares) / len(shares) < WORTH_IT else None


FOLD_EVERY = 16


class SparseSum:
    """Running sums of `count` vectors of the layout (values, and moments if they travel).

    `idle(steps)` returns, for each vector, the rows of the first layer after so many steps of a client whose data never use
    them; they replace the rows that clients left out.
    """

    def __init__(self, layout: Layout, count: int, idle: Callable[[int], list[Tensor]]) -> None:
        self._layout = layout
        self._idle = idle
        self.totals = torch.zeros((count, layout.public_size), dtype=torch.float64)
        self._recent = torch.zeros((count, layout.public_size), dtype=layout.dtype)
        self._pending = 0
        self._left_out: dict[int, Tensor] = {}  # by steps: for each row, the weight of the clients without it

    def add(self, vectors: list[Tensor], weight: float, steps: int, features: Tensor | None) -> None:
        """Add one client's vectors, which have only the rows named by `features` (None: all)."""
        rows = self._layout.rows
        for recent, vector in zip(self._recent, vectors, strict=True):
            if rows is None or features is None:
                recent.add_(vector, alpha=weight)
                continue
            recent[: rows.start].add_(vector[: rows.start], alpha=weight)
            held = vector[rows.start :].view(-1, rows.shape[1])
            rows.stored(recent).index_add_(0, features, held, alpha=weight)
        if rows is not None and features is not None:
            left_out = self._left_out.setdefault(steps, torch.zeros(rows.shape[0], dtype=torch.float64))
            left_out += weight
            left_out[features] -= weight
        self._pending += 1
        if self._pending == FOLD_EVERY:
            self._fold()

    def result(self) -> Tensor:
        """Return all sums, shape (count, public_size), float64, and reset them."""
        self._fold()
        rows = self._layout.rows
        for steps, weight in self._left_out.items():
            assert rows is not None
            for total, idle in zip(self.totals, self._idle(steps), strict=True):
                rows.stored(total).addcmul_(idle.double(), weight[:, None])
        self._left_out.clear()
        done, self.totals = self.totals, torch.zeros_like(self.totals)
        return done

    def _fold(self) -> None:
        if self._pending:
            self.totals += self._recent
            self._recent.zero_()
            self._pending = 0
