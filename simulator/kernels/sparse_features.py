"""Clients' inputs without the features that the client never uses: those that are zero in all its examples.

In MNIST, a client of two digits uses about two thirds of the pixels. The weights of the others get no gradient from it,
so its first layer can be that much smaller, with the same result.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import accumulate

import torch
from torch import Tensor, nn

from simulator.layers import Linear
from simulator.patches import shared
from simulator.population import Population
from simulator.sequences import layers_of

WORTH_IT = 0.9
"""With more than this share of the features in use, the inputs are left as they are: copies would cost more than they save."""


class UsedFeatures:
    """For each client: which features it uses, and its inputs with these alone; in shared memory."""

    def __init__(self, population: Population) -> None:
        used_by: list[Tensor] = []
        inputs: list[tuple[Tensor, Tensor]] = []
        for client in range(population.clients):
            data = population.of(client)
            used = ((data.train_x != 0).any(0) | (data.test_x != 0).any(0)).nonzero().squeeze(1)
            if not len(used):
                used = torch.zeros(1, dtype=torch.int64)  # one at least: there is no view of nothing
            used_by.append(used)
            inputs.append((data.train_x[:, used], data.test_x[:, used]))
        # A handful of large blocks: each tensor that goes to another process takes a file descriptor.
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
    """Whether unused features can be left out: the first layer is linear, and its weights travel."""
    layers = layers_of(model)
    return layers is not None and isinstance(layers[0], Linear) and f"{layers[0].name}.weight" not in private


def used_features(population: Population) -> UsedFeatures | None:
    """The inputs without unused features, or None where that would save nothing (or they are not plain vectors)."""
    if population.of(0).train_x.dim() != 2:
        return None
    shares = []
    for client in range(min(population.clients, 50)):
        data = population.of(client)
        shares.append(float(((data.train_x != 0).any(0) | (data.test_x != 0).any(0)).float().mean()))
    return UsedFeatures(population) if sum(shares) / len(shares) < WORTH_IT else None
