"""LocalUpdate of one client after another on one working model that never leaves the processor's cache.

It makes the same steps on the same batches as device_agent.training.local_update, in a fraction of the time: no autograd, no
new tensors for each client, one pass over memory to load a model and one to add it to the sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from fedpatch.device_agent.training.evaluation import evaluation_batches
from fedpatch.shared.errors import UpdateRefused
from fedpatch.shared.tasks.task import Task
from fedpatch.shared.tensors.arrays import moment_name
from fedpatch.simulator.clients.minibatches import MinibatchStream, Turn
from fedpatch.simulator.kernels.flat_model import Place, WorkingModel
from fedpatch.simulator.kernels.layers import Layer
from fedpatch.simulator.kernels.losses import loss_of
from fedpatch.simulator.kernels.sparse_features import SparseSum
from fedpatch.simulator.learners.baselines import kind_of_steps
from fedpatch.simulator.learners.learner_context import LearnerContext
from fedpatch.simulator.learners.optimizer_steps import AdamSteps, Batches, ClientSteps

VECTOR_MOMENTS = ("exp_avg", "exp_avg_sq")


class FusedLearner:
    """Trains and measures clients of a population; see simulator.learners.protocols.Learner."""

    def __init__(self, task: Task, model: nn.Module, layers: list[Layer], context: LearnerContext) -> None:
        self._task, self._plan = task, context.plan
        self._population, self._patches = context.population, context.patches
        kind = kind_of_steps(context.study.strategy, self._plan)
        self._model = WorkingModel(model, layers, self._patches.private_names, grads=kind.needs_grads)
        self._layout = self._model.layout
        self._kept = [
            (self._patches.values[name], place.canonical(self._model.private))
            for name, place in self._layout.private.items()
        ]
        self._features = context.features if self._layout.rows is not None else None
        self._steps: ClientSteps = kind(context, self._model)
        self._draws = MinibatchStream(context.plan, self._population.num_examples, kind.batches_per_step)
        self._loss = loss_of(task.loss)
        self._nothing = torch.zeros_like(self._model.private)
        self._round: list[Tensor] = []
        self._counters: dict[str, int] = {}
        self._counter_sums: dict[str, float] = {}
        self._step = self._step_sum = 0.0
        self._idle: dict[int, list[Tensor]] = {}
        self._sums = SparseSum(self._layout, 1 + self._steps.moments, self._idle_rows)

    # ---- travelling tensors as one vector

    def begin(self, tensors: Mapping[str, Tensor]) -> None:
        """Take the global model (and moments) of the round, by name."""
        layout = self._layout
        suffixes = ("", *(f":{moment}" for moment in VECTOR_MOMENTS[: self._steps.moments]))
        self._round = [layout.flatten(tensors, suffix) for suffix in suffixes]
        self._counters = {name: int(tensors[name]) for name in layout.counters if name in tensors}
        steps = [float(value) for name, value in tensors.items() if name.endswith(":step")]
        self._step = steps[0] if steps else 0.0
        self._idle.clear()
        self._forget_sums()

    def result(self) -> Tensor:
        """Return weighted sums over the clients trained since the last call: a float64 vector that `tensors_of` reads."""
        rest = torch.tensor([self._step_sum, *self._counter_sums.values()], dtype=torch.float64)
        total = torch.cat([self._sums.result().view(-1), rest])
        self._forget_sums()
        return total

    def tensors_of(self, total: Tensor) -> dict[str, Tensor]:
        """Return tensors by name, float64, from one `result` or a sum of them."""
        layout, count = self._layout, 1 + self._steps.moments
        vectors = total[: count * layout.public_size].view(count, -1)
        step, *counters = total[count * layout.public_size :].tolist()
        tensors = layout.unflatten(vectors[0])
        for moment, vector in zip(VECTOR_MOMENTS, vectors[1:], strict=False):
            tensors |= layout.unflatten(vector, f":{moment}")
        for name, value in zip(self._counter_sums, counters, strict=True):
            tensors[name] = torch.tensor(value, dtype=torch.float64)
        for name in layout.public:
            if name in layout.trained and self._steps.moments:
                tensors[moment_name(name, "step")] = torch.tensor(step, dtype=torch.float64)
        return tensors

    def _forget_sums(self) -> None:
        self._loss.total()  # drops the losses of a client whose training did not finish
        self._step_sum = 0.0
        self._counter_sums = dict.fromkeys(self._counters, 0.0)

    # ---- one client

    def measure(self, client: int) -> float:
        """Return user accuracy of the model that this client would use: the global model with its patch, or its own model."""
        with torch.inference_mode():
            _, x, test_x = self._load(client)
            y = self._population.of(client).train_y
            self._steps.personalise(client, partial(self._some_batches, client, x, y), self._loss)
            outputs = torch.cat([self._model.infer(test_x[batch]) for batch in evaluation_batches(len(test_x))])
        return float(self._task.metric(outputs, self._population.of(client).test_y))

    def expect(self, turns: Sequence[Turn]) -> None:
        """See simulator.learners.protocols.Learner."""
        self._draws.expect(turns)

    def train(self, client: int, first_batch: int, weight: float) -> float:
        """Do LocalUpdate; keep the patch, add the rest to the sums. Return the mean loss over the steps."""
        with torch.inference_mode():
            used, x, _ = self._load(client)
            self._load_moments(client, used)
            y = self._population.of(client).train_y
            count = self._plan.steps_for(len(x))
            chosen = self._draws.of_turn((client, first_batch))
            self._steps.run(self._batches(client, x, y, chosen), self._loss)
            self._steps.finish(client, count)
            self._store(client, count)
            self._sums.add(self._vectors(), weight, count, used)
        self._step_sum += weight * (self._step + count)
        for name, value in self._counters.items():
            self._counter_sums[name] += weight * (value + len(chosen))
        return self._loss.total() / count

    def _some_batches(self, client: int, x: Tensor, y: Tensor, first_batch: int, count: int) -> Batches:
        return self._batches(client, x, y, self._draws.batches(client, first_batch, count))

    def _batches(self, client: int, x: Tensor, y: Tensor, chosen: Tensor) -> Batches:
        targets = y.index_select(0, chosen.view(-1)).view(*chosen.shape, *y.shape[1:])
        # Inputs are copied batch by batch: the inputs of a whole round would evict the model from the cache.
        room = self._model.room_for((chosen.shape[1], *x.shape[1:]))
        for rows, batch_y in zip(chosen.unbind(), targets.unbind(), strict=True):
            yield torch.index_select(x, 0, rows, out=room), batch_y

    def _load(self, client: int) -> tuple[Tensor | None, Tensor, Tensor]:
        """Load global values and the client's patch; return its features, training inputs and test inputs."""
        model, data = self._model, self._population.of(client)
        used, train_x, test_x = self._features.of(client) if self._features else (None, data.train_x, data.test_x)
        if used is not None:
            model.use_features(len(used))
        self._copy_public(self._round[0], model.public, used)
        for block, working in self._kept:
            working.copy_(block[client])
        return used, train_x, test_x

    def _copy_public(self, source: Tensor, target: Tensor, used: Tensor | None) -> None:
        rows = self._layout.rows
        if rows is None or used is None:
            target.copy_(source)
            return
        target[: rows.start].copy_(source[: rows.start])
        held = target[rows.start : self._model.length].view(len(used), rows.shape[1])
        torch.index_select(rows.stored(source), 0, used, out=held)

    def _load_moments(self, client: int, used: Tensor | None) -> None:
        if not isinstance(self._steps, AdamSteps):
            return
        for source, target in zip(self._round[1:], self._steps.public, strict=True):
            self._copy_public(source, target, used)
        self._steps.step.fill_(self._step)
        for name, place in self._private_trained():
            for moment, target in zip(VECTOR_MOMENTS, self._steps.private, strict=True):
                place.canonical(target).copy_(self._patches.values[moment_name(name, moment)][client])
            self._steps.private_step.copy_(self._patches.values[moment_name(name, "step")][client])

    def _store(self, client: int, steps: int) -> None:
        values = self._patches.values
        if float(torch.dot(self._model.private, self._nothing)):  # not 0 if a value is infinite: inf * 0 is nan
            raise UpdateRefused(
                "not_finite", f"the patch of client {client} became infinite; try a smaller learning rate"
            )
        for block, working in self._kept:
            block[client].copy_(working)
        for name in self._layout.counters:
            if name in values:
                values[name][client] += steps
        if isinstance(self._steps, AdamSteps):
            for name, place in self._private_trained():
                for moment, source in zip(VECTOR_MOMENTS, self._steps.private, strict=True):
                    values[moment_name(name, moment)][client] = place.canonical(source)
                values[moment_name(name, "step")][client] = self._steps.private_step

    def _private_trained(self) -> Iterator[tuple[str, Place]]:
        return ((name, place) for name, place in self._layout.private.items() if name in self._layout.trained)

    def _vectors(self) -> list[Tensor]:
        model = self._model
        moments: Sequence[Tensor] = self._steps.public if isinstance(self._steps, AdamSteps) else ()
        return [vector[: model.length] for vector in (model.public, *moments)]

    def _idle_rows(self, steps: int) -> list[Tensor]:
        if steps not in self._idle:
            rows = self._layout.rows
            assert rows is not None
            held = [rows.stored(vector) for vector in self._round]
            self._idle[steps] = self._steps.idle(held, self._step, steps)
        return self._idle[steps]
