"""The steps that a client makes on the working model: SGD and Adam as in LocalUpdate (paper, Table 1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam

from shared.tasks.classification import cross_entropy
from simulator.ground import Ground
from simulator.storage import WorkingModel

LossAndGrad = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
Batches = Iterator[tuple[Tensor, Tensor]]
BatchesFrom = Callable[[int, int], Batches]
"""A client's batches: the number of the first, and how many."""


class ClientSteps:
    """One round's training of one client after another, on a model and moments that lie ready in `model`.

    What is not abstract here is right for steps that take one batch each, have no moments, leave alone what has no
    gradient, and keep nothing for the client but its patch.
    """

    needs_grads = False
    """Whether `model` must have room for gradients."""
    moments = 0
    """How many vectors of moments there are beside the values: 0, or 2 (exp_avg, exp_avg_sq) and a step count."""
    batches_per_step = 1

    def __init__(self, ground: Ground, model: WorkingModel) -> None:
        self._plan, self._model = ground.plan, model

    def run(self, batches: Batches, loss: LossAndGrad) -> Tensor:
        """Train through all batches; returns the sum of the steps' losses."""
        raise NotImplementedError

    def idle(self, vectors: list[Tensor], step: float, count: int) -> list[Tensor]:
        """Values (and moments) that no gradient reaches, after `count` steps that began at step count `step`."""
        return vectors

    def finish(self, client: int, steps: int) -> None:
        """End the client's round of so many steps: keep what is its own, and leave in the model what it sends."""

    def personalise(self, client: int, batches: BatchesFrom, loss: LossAndGrad) -> None:
        """Turn the global model (with the client's patch) into the one that the client would use; only to be measured."""


class SgdSteps(ClientSteps):
    """w <- w - lr * gradient, made in the same product as the gradient."""

    def run(self, batches: Batches, loss: LossAndGrad) -> Tensor:
        """See ClientSteps."""
        model, learning_rate, total = self._model, self._plan.learning_rate, torch.zeros((), dtype=torch.float64)
        for x, y in batches:
            value, grad = loss(model.outputs(x), y)
            model.backward(grad, learning_rate)
            total += value
        return total


class AdamSteps(ClientSteps):
    """Adam from the moments that travel with the model; those of private values are the client's own."""

    needs_grads = True
    moments = 2

    def __init__(self, ground: Ground, model: WorkingModel) -> None:
        super().__init__(ground, model)
        plan = ground.plan
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

    def run(self, batches: Batches, loss: LossAndGrad) -> Tensor:
        """See ClientSteps."""
        model, layout, total = self._model, self._model.layout, torch.zeros((), dtype=torch.float64)
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
            value, grad = loss(model.outputs(x), y)
            model.backward(grad, None)
            total += value
            for values, grads, moments, step in groups:
                self._step(values, grads, moments, step)
        return total

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


def loss_and_grad(loss: Callable[[Tensor, Tensor], Tensor]) -> LossAndGrad:
    """Loss and its gradient by the outputs; written out for cross-entropy, by autograd for any other."""
    return _CrossEntropy() if loss is cross_entropy else _by_autograd(loss)


class _CrossEntropy:
    """The gradient is softmax(outputs) - onehot(targets), over the number of examples; it and the loss hold until the next."""

    def __init__(self) -> None:
        self._like = torch.zeros(0)

    def __call__(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        if outputs.shape != self._like.shape or outputs.dtype != self._like.dtype:
            self._make_room(outputs)
        torch.log_softmax(outputs, 1, out=self._logs)
        torch.index_select(self._shares, 0, targets, out=self._grad)
        torch.dot(self._all_logs, self._all_grads, out=self._value)
        self._grad.add_(self._logs.exp_(), alpha=self._share)
        return self._value, self._grad

    def _make_room(self, like: Tensor) -> None:
        self._like, self._logs, self._grad = like, torch.zeros_like(like), torch.zeros_like(like)
        self._all_logs, self._all_grads = self._logs.view(-1), self._grad.view(-1)
        self._share = 1 / len(like)
        self._shares = torch.eye(like.shape[1], dtype=like.dtype).mul_(-self._share)
        self._value = torch.zeros((), dtype=like.dtype)


def _by_autograd(loss: Callable[[Tensor, Tensor], Tensor]) -> LossAndGrad:
    def both(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        # What is made in inference mode, which saves a tenth of the time, autograd will not touch.
        with torch.inference_mode(False), torch.enable_grad():
            leaf = outputs.clone().requires_grad_()
            value = loss(leaf, targets.clone())
            (grad,) = torch.autograd.grad(value, leaf)
        return value.detach(), grad

    return both
