"""The protocols of a learner and of a cohort, which every implementation of training follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from fedpatch.simulator.clients.minibatches import Turn


@dataclass(frozen=True)
class CohortMember:
    """A client in a round: the number of batches that it took before, and its share of all examples of the round."""

    client: int
    first_batch: int
    weight: float


class Learner(Protocol):
    """Trains and measures one client after another on one model."""

    def begin(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the global model (and moments) of the round, by name."""

    def measure(self, client: int) -> float:
        """Return the user accuracy of the global model with this client's patch."""

    def expect(self, turns: Sequence[Turn]) -> None:
        """Announce the clients that will probably be trained next, in this order, to prepare many at once."""

    def train(self, client: int, first_batch: int, weight: float) -> float:
        """Do LocalUpdate; keep the patch, add the rest to the sums. Return the mean loss over the steps."""

    def result(self) -> Tensor:
        """Return weighted sums over the clients trained since the last call: a float64 vector that `tensors_of` reads."""

    def tensors_of(self, total: Tensor) -> dict[str, Tensor]:
        """Return tensors by name, float64, from one `result` or a sum of them."""


class Cohort(Protocol):
    """Trains and measures many clients of a round."""

    def begin(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the global model (and moments) of the round, by name."""

    def measure(self, clients: Sequence[int]) -> list[float]:
        """Return the user accuracy of each client."""

    def train(self, members: Sequence[CohortMember]) -> tuple[dict[str, Tensor], list[float]]:
        """Return the weighted mean (float64) of the members' updates, and their losses."""

    def close(self) -> None:
        """End the processes that the cohort started."""
