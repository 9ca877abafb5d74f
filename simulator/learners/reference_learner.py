"""LocalUpdate of one client after another by the device's own code: slower, but for any model that torch can train."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from msgspec import UNSET
from torch import Tensor

from fedpatch.device_agent.training.batches import stream_seed
from fedpatch.device_agent.training.evaluation import user_accuracy
from fedpatch.device_agent.training.local_trainer import LocalTrainer
from fedpatch.shared.tasks.task import DeviceData, Task
from fedpatch.shared.tasks.torch_model import load_tensors
from fedpatch.shared.tensors.arrays import Array, Schema, TensorSpec, moment_name
from fedpatch.shared.wire.plan_terms import CONTROL
from fedpatch.simulator.clients.minibatches import Turn
from fedpatch.simulator.learners.learner_context import LearnerContext
from fedpatch.simulator.spec.study import client_id

COPY = "copy:"
"""Prefix of the names of a client's personal copy among the values that it keeps."""
OWN = "own:"
"""Prefix of the names of a client's control variate among these values."""
TAKEN = "taken:"
"""True if a client has trained its copy."""


def copy_schema(whole: Schema) -> Schema:
    """Return the schema of a client's personal copy between rounds, of a model with moments."""
    return Schema(
        (
            *(replace(one, name=f"{COPY}{one.name}", role="moment") for one in whole.specs),
            TensorSpec(TAKEN, (), "bool", "moment"),
        )
    )


def control_schema(public: Schema) -> Schema:
    """Return the schema of a client's own control variate, of a public model without moments."""
    moments = public.with_moments((CONTROL,)).subset(
        moment_name(one.name, CONTROL) for one in public.specs if one.trainable
    )
    return Schema(tuple(replace(one, name=f"{OWN}{one.name}") for one in moments.specs))


def control_in(patch: Mapping[str, Array]) -> dict[str, Array]:
    """Return the control variate in the values that a client keeps."""
    return {name.removeprefix(OWN): value for name, value in patch.items() if name.startswith(OWN)}


def copy_in(patch: Mapping[str, Array]) -> dict[str, Array]:
    """Return the personal copy in the values that a client keeps; empty before the client has trained it."""
    if not patch.get(TAKEN, False):
        return {}
    return {name.removeprefix(COPY): value for name, value in patch.items() if name.startswith(COPY)}


class OneByOneLearner:
    """Trains and measures clients of a population; see simulator.learners.protocols.Learner."""

    def __init__(self, task: Task, context: LearnerContext) -> None:
        self._task = task
        # The plan of a round; finishing happens only in `measure`, and does not change the round.
        self._plan, self._finishing = replace(context.plan, finish=UNSET), context.plan if context.plan.finish else None
        self._population, self._patches = context.population, context.patches
        self._travelling = context.travelling
        self._round: dict[str, Array] = {}
        self._total = self._nothing()

    def begin(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the global model (and moments) of the round, by name."""
        self._round = {name: value.numpy() for name, value in tensors.items()}
        self._total = self._nothing()

    def measure(self, client: int) -> float:
        """Return user accuracy of the global model with this client's patch, of its copy, or of the finished model."""
        trainer, data = self._trainer(client), self._population.of(client)
        patch = self._patches.of(client)
        tensors: Mapping[str, Array] = copy_in(patch) or self._round | patch
        if self._finishing is not None:
            own = trainer.finish(
                tensors,
                self._finishing,
                stream_seed=stream_seed(self._finishing.seed, client_id(client)),
                cancelled=lambda: False,
                private=self._patches.private_names,
            )
            assert own is not None
            tensors = own.tensors
        load_tensors(trainer.model, {name: array for name, array in tensors.items() if ":" not in name})
        return user_accuracy(trainer.model, self._task, data.test_x, data.test_y)

    def expect(self, turns: Sequence[Turn]) -> None:
        """Do nothing: this learner does not prepare batches."""

    def train(self, client: int, first_batch: int, weight: float) -> float:
        """Do LocalUpdate; keep the patch, add the rest to the sums. Return the mean loss over the steps."""
        patch = self._patches.of(client)
        trained = self._trainer(client).train(
            self._round | patch,
            self._plan,
            copy=copy_in(patch),
            first_batch=first_batch,
            stream_seed=stream_seed(self._plan.seed, client_id(client)),
            on_step=lambda done, total: None,
            cancelled=lambda: False,
            private=self._patches.private_names,
            control=control_in(patch),
        )
        assert trained is not None
        result, shown = trained
        copy = {f"{COPY}{name}": value for name, value in shown.tensors.items()}
        control = {f"{OWN}{name}": value for name, value in result.control.items()}
        self._patches.keep(client, result.tensors | copy | control | {TAKEN: np.array(True)})
        for name, total in self._total.items():
            total.add_(torch.from_numpy(np.array(result.tensors[name], np.float64)), alpha=weight)
        return result.train_loss

    def result(self) -> Tensor:
        """Return weighted sums over the clients trained since the last call: a float64 vector that `tensors_of` reads."""
        done, self._total = self._total, self._nothing()
        flat = [value.reshape(-1) for value in done.values()]
        return torch.cat(flat) if flat else torch.zeros(0, dtype=torch.float64)

    def tensors_of(self, total: Tensor) -> dict[str, Tensor]:
        """Return tensors by name, float64, from one `result` or a sum of them."""
        specs = self._travelling.specs
        parts = torch.split(total, [torch.Size(spec.shape).numel() for spec in specs])
        return {spec.name: part.view(spec.shape) for spec, part in zip(specs, parts, strict=True)}

    def _nothing(self) -> dict[str, Tensor]:
        return {spec.name: torch.zeros(spec.shape, dtype=torch.float64) for spec in self._travelling.specs}

    def _trainer(self, client: int) -> LocalTrainer:
        data = self._population.of(client)
        return LocalTrainer(
            self._task,
            DeviceData(
                data.train_x.numpy(),
                data.train_y.numpy(),
                data.test_x.numpy(),
                data.test_y.numpy(),
                counts_in_ua=False,  # `measure` computes the accuracy
            ),
        )
