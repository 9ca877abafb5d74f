"""Base class of learners that process each update separately."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from fedpatch.shared.tensors.arrays import Array, Schema
from fedpatch.simulator.clients.minibatches import Turn
from fedpatch.simulator.learners.protocols import Learner


class SingleUpdates:
    """The part of a learner that lets another learner train, and takes each update separately; see Learner."""

    def __init__(self, learner: Learner, travelling: Schema) -> None:
        self._learner, self._specs = learner, travelling.specs

    def begin(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the global model (and moments) of the round, by name."""
        self._learner.begin(tensors)

    def measure(self, client: int) -> float:
        """Return the user accuracy of the global model with this client's patch."""
        return self._learner.measure(client)

    def expect(self, turns: Sequence[Turn]) -> None:
        """See Learner."""
        self._learner.expect(turns)

    def _update_of(self, client: int, first_batch: int) -> tuple[float, dict[str, Array]]:
        """Do LocalUpdate; keep the patch. Return the mean loss over the steps, and the other trained tensors."""
        loss = self._learner.train(client, first_batch, 1.0)
        # The sum over one client with weight 1 has the bits of its trained tensors.
        trained = self._learner.tensors_of(self._learner.result())
        return loss, {spec.name: trained[spec.name].numpy().astype(spec.dtype) for spec in self._specs}
