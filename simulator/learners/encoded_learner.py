"""A learner whose updates pass through the encoding of the study, as they do on the way to a coordinator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from fedpatch.device_agent.training.batches import update_seed
from fedpatch.shared.tensors.arrays import Array
from fedpatch.shared.wire.messages import TrainPlan, UpdateReport
from fedpatch.simulator.clients.transport import Uplink, report_of
from fedpatch.simulator.learners.protocols import Learner
from fedpatch.simulator.learners.single_updates import SingleUpdates
from fedpatch.simulator.spec.study import client_id


class EncodedLearner(SingleUpdates):
    """Lets another learner train, and adds up the updates as the coordinator would read them; see Learner."""

    def __init__(self, learner: Learner, uplink: Uplink, plan: TrainPlan, num_examples: Sequence[int]) -> None:
        super().__init__(learner, uplink.travelling)
        self._uplink, self._plan, self._num_examples = uplink, plan, num_examples
        self._base: dict[str, Array] = {}
        self._sums = self._nothing()

    def begin(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the global model (and moments) of the round, by name."""
        super().begin(tensors)
        self._base = {spec.name: tensors[spec.name].numpy().copy() for spec in self._specs}
        self._sums = self._nothing()

    def train(self, client: int, first_batch: int, weight: float) -> float:
        """Do LocalUpdate; keep the patch, send the rest and add it to the sums. Return the mean loss over the steps."""
        loss, tensors = self._update_of(client, first_batch)
        seed = update_seed(self._plan.seed, client_id(client), first_batch)
        sent = self._uplink.send(client, tensors, self._base, self._report(client, loss), seed)
        for name, total in self._sums.items():
            total += np.multiply(sent[name], weight, dtype=np.float64)
        return loss

    def result(self) -> Tensor:
        """Return weighted sums over the clients trained since the last call: a float64 vector that `tensors_of` reads."""
        done, self._sums = self._sums, self._nothing()
        flat = [torch.from_numpy(np.atleast_1d(total)).reshape(-1) for total in done.values()]
        return torch.cat(flat) if flat else torch.zeros(0, dtype=torch.float64)

    def tensors_of(self, total: Tensor) -> dict[str, Tensor]:
        """Return tensors by name, float64, from one `result` or a sum of them."""
        parts = torch.split(total, [torch.Size(spec.shape).numel() for spec in self._specs])
        return {spec.name: part.view(spec.shape) for spec, part in zip(self._specs, parts, strict=True)}

    def _nothing(self) -> dict[str, Array]:
        return {spec.name: np.zeros(spec.shape, np.float64) for spec in self._specs}

    def _report(self, client: int, loss: float) -> UpdateReport:
        count = self._num_examples[client]
        return report_of(client, count, self._plan.steps_for(count), loss)
