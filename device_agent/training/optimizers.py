"""SGD and Adam as in the paper's Table 1, by the functions beneath torch.optim.

The classes of torch.optim do the same arithmetic, but the first of them imports torch's compiler: 70 MB of memory and, on a
Raspberry Pi, half a minute, for code that is never used here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.sgd import sgd

AdamState = Mapping[str, Tensor]
"""State of Adam for one parameter: `step` (a scalar), `exp_avg` and `exp_avg_sq` (shaped like it)."""


class ClientOptimizer:
    """Steps along the gradients of `parameters`; a parameter without a gradient stays."""

    def __init__(self, parameters: Sequence[nn.Parameter], learning_rate: float) -> None:
        self._parameters = list(parameters)
        self._learning_rate = learning_rate

    def zero_grad(self) -> None:
        """Drop the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Make one step."""
        graded = [(one, one.grad) for one in self._parameters if one.grad is not None]
        if graded:
            self._step([one for one, _ in graded], [grad for _, grad in graded])

    def _step(self, parameters: list[nn.Parameter], grads: list[Tensor]) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class Pull:
    """The term strength / 2 * |w - anchor|^2 of a loss, over the parameters w in `anchors`.

    With `follow` each step moves the anchors in place by that share of their distance to the parameters.
    """

    strength: float
    anchors: Mapping[nn.Parameter, Tensor]
    follow: float = 0.0

    @torch.no_grad()
    def add_gradients(self) -> None:
        """Add the term's gradient to those of the loss; a parameter without a gradient stays without."""
        for parameter, anchor in self.anchors.items():
            if parameter.grad is not None:
                parameter.grad.add_(parameter - anchor, alpha=self.strength)

    @torch.no_grad()
    def move_anchors(self) -> None:
        """Let the anchors follow the parameters after a step."""
        if self.follow:
            for parameter, anchor in self.anchors.items():
                anchor.lerp_(parameter, self.follow)


class Sgd(ClientOptimizer):
    """w <- w - lr * gradient."""

    def _step(self, parameters: list[nn.Parameter], grads: list[Tensor]) -> None:
        sgd(
            list[Tensor](parameters),
            grads,
            [None] * len(parameters),
            foreach=False,
            fused=False,
            weight_decay=0.0,
            momentum=0.0,
            lr=self._learning_rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )


class Adam(ClientOptimizer):
    """Adam that continues from `state`, which has an entry for each parameter and is changed in place."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        learning_rate: float,
        *,
        betas: tuple[float, float],
        epsilon: float,
        state: Mapping[nn.Parameter, AdamState],
    ) -> None:
        super().__init__(parameters, learning_rate)
        self._betas, self._epsilon = betas, epsilon
        self.state = state

    def _step(self, parameters: list[nn.Parameter], grads: list[Tensor]) -> None:
        states = [self.state[one] for one in parameters]
        adam(
            list[Tensor](parameters),
            grads,
            [one["exp_avg"] for one in states],
            [one["exp_avg_sq"] for one in states],
            [],
            [one["step"] for one in states],
            foreach=False,
            fused=False,
            amsgrad=False,
            beta1=self._betas[0],
            beta2=self._betas[1],
            lr=self._learning_rate,
            weight_decay=0.0,
            eps=self._epsilon,
            maximize=False,
        )
