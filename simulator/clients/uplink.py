"""Each client's update as a device would send it: encoded, decoded again, and with what rounding took kept for the next one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from device_agent.batches import update_seed
from device_agent.residuals import as_kept
from shared.encodings import FEEDBACK
from shared.feedback import residual_name, step_with_feedback
from shared.messages import TrainPlan, UpdateReport
from shared.tensors import Array, Schema, Tensors
from simulator.draws import Turn
from simulator.patches import check_blocks, shared_zeros
from simulator.study import client_id

if TYPE_CHECKING:
    from simulator.cohort import Learner


class Uplink:
    """What all clients have from their updates before: `residuals[name]` has shape (clients, ...), `sizes` is in bytes.

    Both lie in memory that worker processes share; a page that nobody wrote to takes none. Who has sent nothing yet has a
    size of 0.
    """

    def __init__(self, encoding: str, travelling: Schema, clients: int) -> None:
        self.encoding, self.travelling = encoding, travelling
        trained = [spec for spec in travelling.specs if spec.trainable and encoding in FEEDBACK]
        self.residuals = {
            residual_name(spec.name): shared_zeros((clients, *spec.shape), getattr(torch, spec.dtype))
            for spec in trained
        }
        self.sizes = shared_zeros((clients,), torch.int64)

    def send(self, client: int, tensors: Tensors, base: Tensors, report: UpdateReport, seed: int) -> dict[str, Array]:
        """What the coordinator reads of the client's update; its residual and its size are kept."""
        residual = {name: block[client].numpy() for name, block in self.residuals.items()}
        step = step_with_feedback(
            tensors, self.travelling, asdict(report), self.encoding, base=base, seed=seed, residual=residual
        )
        if step.residual:
            for name, values in as_kept(step.residual, self.travelling, seed).items():
                residual[name][...] = values
        self.sizes[client] = len(step.packed.blob)
        return step.tensors

    def bytes_of(self, clients: Sequence[int]) -> int:
        """Bytes of the last updates of these clients together."""
        return int(self.sizes[list(clients)].sum())

    def restore(self, residuals: Tensors) -> None:
        """Take residuals of earlier. Raises SchemaMismatch unless they are those of as many clients of this model."""
        check_blocks("residuals", self.residuals, residuals)
        for name, block in self.residuals.items():
            block.copy_(torch.from_numpy(residuals[name]))


class SingleUpdates:
    """The part of a learner that lets another one train, and takes each update by itself; see simulator.cohort.Learner."""

    def __init__(self, learner: Learner, travelling: Schema) -> None:
        self._learner, self._specs = learner, travelling.specs

    def begin(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the global model (and moments) of the round, by name."""
        self._learner.begin(tensors)

    def measure(self, client: int) -> float:
        """User accuracy of the global model with this client's patch."""
        return self._learner.measure(client)

    def expect(self, turns: Sequence[Turn]) -> None:
        """See simulator.cohort.Learner."""
        self._learner.expect(turns)

    def _update_of(self, client: int, first_batch: int) -> tuple[float, dict[str, Array]]:
        """LocalUpdate; the patch is kept. Returns the mean loss over the steps, and what was trained besides."""
        loss = self._learner.train(client, first_batch, 1.0)
        # The sum of one client with a weight of one is what it trained, to the last bit.
        trained = self._learner.tensors_of(self._learner.result())
        return loss, {spec.name: trained[spec.name].numpy().astype(spec.dtype) for spec in self._specs}


class EncodedLearner(SingleUpdates):
    """Lets another learner train, and adds up what the coordinator would read of each update; see simulator.cohort.Learner."""

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
        """LocalUpdate; the patch is kept, the rest is sent and added to the sums. Returns the mean loss over the steps."""
        loss, tensors = self._update_of(client, first_batch)
        seed = update_seed(self._plan.seed, client_id(client), first_batch)
        sent = self._uplink.send(client, tensors, self._base, self._report(client, loss), seed)
        for name, total in self._sums.items():
            total += np.multiply(sent[name], weight, dtype=np.float64)
        return loss

    def result(self) -> Tensor:
        """Weighted sums of the clients trained since the last call: a float64 vector that `tensors_of` can read."""
        done, self._sums = self._sums, self._nothing()
        flat = [torch.from_numpy(np.atleast_1d(total)).reshape(-1) for total in done.values()]
        return torch.cat(flat) if flat else torch.zeros(0, dtype=torch.float64)

    def tensors_of(self, total: Tensor) -> dict[str, Tensor]:
        """Tensors by name, float64, from a (sum of) `result`."""
        parts = torch.split(total, [torch.Size(spec.shape).numel() for spec in self._specs])
        return {spec.name: part.view(spec.shape) for spec, part in zip(self._specs, parts, strict=True)}

    def _nothing(self) -> dict[str, Array]:
        return {spec.name: np.zeros(spec.shape, np.float64) for spec in self._specs}

    def _report(self, client: int, loss: float) -> UpdateReport:
        count = self._num_examples[client]
        return report_of(client, count, self._plan.steps_for(count), loss)


def report_of(client: int, num_examples: int, steps: int, loss: float) -> UpdateReport:
    """As long as a device's; what a simulation does not know (digest, accuracies, seconds) is made up."""
    digest = hashlib.sha256(client_id(client).encode()).hexdigest()
    return UpdateReport(digest, num_examples, steps, loss, 0.9, 0.9, 0.1, 0.1)
