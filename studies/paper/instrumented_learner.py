"""A learner that measures every client between its steps, for figures 3 and 4 of the paper."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from fedpatch.shared.errors import UsageError
from fedpatch.shared.tasks.task import Task
from fedpatch.simulator.kernels.layers import BatchNorm
from fedpatch.simulator.kernels.model_layers import layers_of
from fedpatch.simulator.learners.fused_learner import FusedLearner
from fedpatch.simulator.learners.learner_context import LearnerContext

Moments = dict[str, tuple[Tensor, Tensor]]
"""By batch norm layer: mean and variance of its outputs, per channel, over a client's test examples."""

AtStep = Callable[[int, int, float, float], None]


class WatchedLearner(FusedLearner):
    """Calls `at_step(client, steps done, training accuracy, test accuracy)` after aggregation and after every step.

    Training accuracy is measured on `sample` of the client's training examples (or on all, if it has fewer), after one
    shuffle of the examples. With `at_step` None nothing is measured between the steps.
    """

    def __init__(self, task: Task, context: LearnerContext, *, at_step: AtStep | None, sample: int) -> None:
        with torch.random.fork_rng(devices=[]):
            model = task.build_model()
        layers = layers_of(model)
        if layers is None:
            raise UsageError(f"task {task.name!r}: only a plain sequence of known layers can be watched")
        super().__init__(task, model, layers, context)
        self._at_step, self._sample = at_step, sample
        self.after_training: dict[int, Moments] = {}

    def train(self, client: int, first_batch: int, weight: float) -> float:
        """Train as any learner; then store the batch norm outputs of the client's own model."""
        loss = super().train(client, first_batch, weight)
        self.after_training[client] = self._outputs_of_batch_norm(client)
        return loss

    def after_aggregation(self, client: int, values: dict[str, Tensor] | None = None) -> Moments:
        """Return the batch norm outputs of the global model with the client's patch, or with `values` instead of the patch."""
        with torch.no_grad():
            self._load(client)
            for name, value in (values or {}).items():
                if name in self._layout.private:
                    self._layout.private[name].canonical(self._model.private).copy_(value)
        return self._outputs_of_batch_norm(client)

    def _batches(self, client: int, x: Tensor, y: Tensor, chosen: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches, and measure before each: the training loop takes a batch when its previous step is complete."""
        if self._at_step is None:
            yield from super()._batches(client, x, y, chosen)
            return
        order = _spread(len(x))[: self._sample]
        sample_x, sample_y = x[order], y[order]
        done = 0
        for batch in super()._batches(client, x, y, chosen):
            self._look(client, done, sample_x, sample_y)
            yield batch
            done += 1
        self._look(client, done, sample_x, sample_y)

    def _look(self, client: int, done: int, sample_x: Tensor, sample_y: Tensor) -> None:
        assert self._at_step is not None
        train = float(self._task.metric(self._model.infer(sample_x), sample_y))
        test = float(self._task.metric(self._model.infer(self._test_x(client)), self._population.of(client).test_y))
        self._at_step(client, done, train, test)

    def _test_x(self, client: int) -> Tensor:
        return self._features.of(client)[2] if self._features else self._population.of(client).test_x

    def _outputs_of_batch_norm(self, client: int) -> Moments:
        found: Moments = {}
        with torch.no_grad():
            x = self._test_x(client)
            for layer in self._model.layers:
                x = layer.infer(x)
                if isinstance(layer, BatchNorm):
                    axes = [axis for axis in range(x.dim()) if axis != 1]
                    variance, mean = torch.var_mean(x, axes, correction=0)
                    found[layer.name] = mean, variance
        return found


def _spread(count: int) -> Tensor:
    """Return the order of `count` examples, the same for all callers."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(count))
