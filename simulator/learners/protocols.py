"""The protocols of a learner and of a cohort, which every implementation of training follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from fedpatch.simulator.clients.minibatches import Turn


@dataclass(frozen=True)
class CohortMember:
    """A client in a round: how many batches it took before, and its share of all the round's examples."""

    client: int
    first_batch: int
    weight: float


class Learner(Protocol):
    """Holds one model and lends it to one client after another."""

    def begin(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the global model (and moments) of the round, by name."""

    def measure(self, client: int) -> float:
        """User accuracy of the global model with this client's patch."""

    def expect(self, turns: Sequence[Turn]) -> None:
        """Announce the clients that will probably be trained next, in this order, to prepare many at once."""

    def train(self, client: int, first_batch: int, weight: float) -> float:
        """LocalUpdate; the patch is kept, the rest is added to the sums. Returns the mean loss over the steps."""

    def result(self) -> Tensor:
        """Weighted sums of the clients trained since the last call: a float64 vector that `tensors_of` can read."""

    def tensors_of(self, total: Tensor) -> dict[str, Tensor]:
        """Tensors by name, float64, from a (sum of) `result`."""


class Cohort(Protocol):
    """Trains and measures many clients of a round."""

    def begin(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the global model (and moments) of the round, by name."""

    def measure(self, clients: Sequence[int]) -> list[float]:
        """User accuracy of each."""

    def train(self, members: Sequence[CohortMember]) -> tuple[dict[str, Tensor], list[float]]:
        """The weighted mean (float64) of what the members send, and their losses."""

    def close(self) -> None:
        """End what it started."""
