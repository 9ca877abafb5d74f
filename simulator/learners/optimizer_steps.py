"""The steps that a client makes on the working model: SGD and Adam as in LocalUpdate (paper, Table 1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam

from fedpatch.simulator.kernels.flat_model import WorkingModel
from fedpatch.simulator.kernels.losses import Loss
from fedpatch.simulator.learners.learner_context import LearnerContext

Batches = Iterator[tuple[Tensor, Tensor]]
BatchesFrom = Callable[[int, int], Batches]
"""Returns a client's batches, given the number of the first batch and their count."""


class ClientSteps:
    """One round's training of one client after another, on the model and moments that are loaded in `model`.

    The default methods fit steps that take one batch each, have no moments, do not change values without a gradient, and
    keep only the patch for the client.
    """

    needs_grads = False
    """True if `model` must have room for gradients."""
    moments = 0
    """Number of vectors of moments beside the values: 0, or 2 (exp_avg, exp_avg_sq) and a step count."""
    batches_per_step = 1

    def __init__(self, context: LearnerContext, model: WorkingModel) -> None:
        self._plan, self._model = context.plan, model

    def run(self, batches: Batches, loss: Loss) -> None:
        """Train on all batches; `loss` keeps the sum of the steps' losses."""
        raise NotImplementedError

    def idle(self, vectors: list[Tensor], step: float, count: int) -> list[Tensor]:
        """Return values (and moments) without a gradient after `count` steps that began at step count `step`."""
        return vectors

    def finish(self, client: int, steps: int) -> None:
        """End the client's round of `steps` steps: keep its own values, and leave in the model the values that it sends."""

    def personalise(self, client: int, batches: BatchesFrom, loss: Loss) -> None:
        """Turn the global model (with the client's patch) into the model that the client would use, only for measuring."""


class SgdSteps(ClientSteps):
    """w <- w - lr * gradient, computed in the same product as the gradient."""

    def run(self, batches: Batches, loss: Loss) -> None:
        """See ClientSteps."""
        model, learning_rate = self._model, self._plan.learning_rate
        for x, y in batches:
            model.backward(loss.gradient(model.outputs(x), y, model.grad), learning_rate)


class AdamSteps(ClientSteps):
    """Adam from the moments that travel with the model; moments of private values are the client's own."""

    needs_grads = True
    moments = 2

    def __init__(self, context: LearnerContext, model: WorkingModel) -> None:
        super().__init__(context, model)
        plan = context.plan
        self._options: dict[str, Any] = {
            "lr": plan.learning_rate,
            "beta1": plan.beta_1,
            "beta2": plan.beta_2,
            "eps": plan.epsilon,
        }
        self.public = [torch.zeros_like(model.public) for _ in range(2)]
        self.private = [torch.zeros_like(model.private) for _ in range(2)]
        self.step = torch.zeros(())
        self.private_step = torch.zeros(())

    def run(self, batches: Batches, loss: Loss) -> None:
        """See ClientSteps."""
        model, layout = self._model, self._model.layout
        sides = [
            (model.public, model.public_grad, self.public, self.step, slice(layout.trained_from, model.length)),
            (
                model.private,
                model.private_grad,
                self.private,
                self.private_step,
                slice(layout.private_trained_from, None),
            ),
        ]
        groups = [
            (values[part], grads[part], [moment[part] for moment in moments], step)
            for values, grads, moments, step, part in sides
            if len(values[part])
        ]
        for x, y in batches:
            model.backward(loss.gradient(model.outputs(x), y, model.grad), None)
            for values, grads, moments, step in groups:
                self._step(values, grads, moments, step)

    def idle(self, vectors: list[Tensor], step: float, count: int) -> list[Tensor]:
        """Without a gradient the moments decay, and the values still follow the first of them."""
        values, *moments = [one.clone() for one in vectors]
        at, nothing = torch.tensor(step), torch.zeros_like(values)
        for _ in range(count):
            self._step(values, nothing, moments, at)
        return [values, *moments]

    def _step(self, values: Tensor, grads: Tensor, moments: list[Tensor], step: Tensor) -> None:
        adam(
            [values],
            [grads],
            moments[:1],
            moments[1:],
            [],
            [step],
            fused=True,
            amsgrad=False,
            weight_decay=0.0,
            maximize=False,
            **self._options,
        )
