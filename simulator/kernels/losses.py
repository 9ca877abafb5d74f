"""Losses and their gradients with respect to a model's outputs; cross-entropy has a hand-written kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from fedpatch.shared.tasks.bundled.classification import cross_entropy

KEPT_STEPS = 16
"""Number of steps whose losses are summed together, which is faster than one by one."""


class Loss(Protocol):
    """The mean loss of one batch after another."""

    def gradient(self, outputs: Tensor, targets: Tensor, into: Tensor, *, counts: bool = True) -> Tensor:
        """Write the gradient of a batch's loss by its outputs to `into`; return it; `total` includes the loss if `counts`."""

    def total(self) -> float:
        """The sum of the losses since the last call."""


def loss_of(function: Callable[[Tensor, Tensor], Tensor]) -> Loss:
    """Return the loss of a function of outputs and targets; with autograd unless it is cross-entropy."""
    return _CrossEntropy() if function is cross_entropy else _ByAutograd(function)


class _CrossEntropy:
    """The gradient is softmax(outputs) - onehot(targets), over the number of examples."""

    def __init__(self) -> None:
        self._sum, self._at = 0.0, 0
        self._make_room(torch.zeros(0, 0))

    def gradient(self, outputs: Tensor, targets: Tensor, into: Tensor, *, counts: bool = True) -> Tensor:
        """See Loss."""
        if outputs.shape != self._shape or outputs.dtype != self._logs.dtype:
            self._add_up()
            self._make_room(outputs)
        elif self._at == KEPT_STEPS:
            self._add_up()
        logs, shares = self._steps[self._at]
        torch.log_softmax(outputs, 1, out=logs)
        torch.index_select(self._shares_by_class, 0, targets, out=shares)
        torch._log_softmax_backward_data(shares, logs, 1, logs.dtype, out=into)
        self._at += counts
        return into

    def total(self) -> float:
        """See Loss."""
        self._add_up()
        done, self._sum = self._sum, 0.0
        return done

    def _add_up(self) -> None:
        if self._at:
            end = self._at * self._shape.numel()
            self._sum += float(torch.dot(self._logs[:end], self._shares[:end]))
            self._at = 0

    def _make_room(self, like: Tensor) -> None:
        self._shape = like.shape
        self._logs, self._shares = (like.new_zeros(KEPT_STEPS * like.numel()) for _ in range(2))
        by_step = [flat.view(KEPT_STEPS, *like.shape).unbind() for flat in (self._logs, self._shares)]
        self._steps = list(zip(*by_step, strict=True))
        self._shares_by_class = torch.eye(like.shape[1], dtype=like.dtype).mul_(-1 / max(1, len(like)))


class _ByAutograd:
    """Any other loss."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        self._function = function
        self._sum = 0.0

    def gradient(self, outputs: Tensor, targets: Tensor, into: Tensor, *, counts: bool = True) -> Tensor:
        """See Loss."""
        # The loop runs in inference mode, which saves a tenth of the time; autograd refuses tensors made in it.
        with torch.inference_mode(False), torch.enable_grad():
            leaf = outputs.clone().requires_grad_()
            value = self._function(leaf, targets.clone())
            (grad,) = torch.autograd.grad(value, leaf)
        self._sum += counts * float(value.detach())
        return into.copy_(grad)

    def total(self) -> float:
        """See Loss."""
        done, self._sum = self._sum, 0.0
        return done
