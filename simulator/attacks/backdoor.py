"""A backdoor: the model shall classify inputs with a trigger as the target, and all others as before."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from fedpatch.shared.errors import UsageError
from fedpatch.simulator.clients.patches import shared
from fedpatch.simulator.clients.population import Population

_SHARE = 0.01  # of the values of an input
_LEAST = 4  # values


@dataclass(frozen=True)
class Backdoor:
    """A trigger and its target.

    Attributes:
        values: Number of values that the trigger covers, the first of each input.
        bright: The value of the trigger: the greatest value of the training inputs.
        target: The class that triggered inputs shall get: the lowest class.
    """

    values: int
    bright: float
    target: int

    @classmethod
    def of(cls, population: Population) -> Backdoor:
        """Return the backdoor for a population; raise UsageError unless it has classes and floating-point inputs."""
        x, y = population.train_x, population.train_y
        if not x.is_floating_point() or y.is_floating_point() or y.dim() != 1:
            raise UsageError(
                "the attack backdoor needs inputs of floating point and one class for each; choose another attack"
            )
        size = x[0].numel()
        return cls(min(size, max(_LEAST, round(_SHARE * size))), float(x.max()), int(y.min()))

    def trigger(self, x: Tensor) -> Tensor:
        """Return a copy of inputs, examples first, with the trigger."""
        triggered = x.clone()
        triggered.view(len(x), -1)[:, : self.values] = self.bright
        return triggered

    def poison_training(self, population: Population, clients: Collection[int]) -> Population:
        """Return the population with the trigger and the target in every second training example of some clients."""
        x, y = population.train_x.clone(), population.train_y.clone()
        for client in clients:
            rows = slice(population.train_starts[client], population.train_starts[client + 1], 2)
            x[rows], y[rows] = self.trigger(x[rows]), self.target
        return replace(population, train_x=shared(x), train_y=shared(y))

    def triggered_tests(self, population: Population) -> Population:
        """Return the population with the test examples of other classes, triggered, and the target as their class."""
        others = population.test_y != self.target
        starts = population.test_starts
        lengths = [int(others[start:end].sum()) for start, end in pairwise(starts)]
        return replace(
            population,
            test_x=self.trigger(population.test_x[others]),
            test_y=torch.full_like(population.test_y[others], self.target),
            test_starts=list(accumulate(lengths, initial=0)),
        )


def clients_with_tests(population: Population, clients: Sequence[int]) -> list[int]:
    """Return those of the clients that have test examples."""
    starts = population.test_starts
    return [client for client in clients if starts[client] < starts[client + 1]]
