"""SGD and Adam as in the paper's Table 1, by the functions beneath torch.optim, and SGD with SCAFFOLD's control variates.

The classes of torch.optim do the same arithmetic, but the first of them imports torch's compiler: 70 MB of memory and, on a
Raspberry Pi, half a minute, for code that is never used here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.sgd import sgd

from fedpatch.shared.tensors.arrays import Array, Tensors, moment_name
from fedpatch.shared.wire.plan_terms import CONTROL

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


class ControlVariates:
    """c of the round and the device's own c_i, for the values that travel; c and c_i of other values are zero.

    Karimireddy et al. 2020, Algorithm 1, lines 7 to 13, option II.

    Args:
        trained: The parameters that learn, by name.
        tensors: The model of the round with c, by name.
        own: c_i, by the same names; a missing one is zero.
        private: Names of the values that do not travel.
    """

    def __init__(
        self, trained: Mapping[str, nn.Parameter], tensors: Tensors, own: Tensors, private: Collection[str]
    ) -> None:
        self._trained = trained
        self._begun = {name: value.detach().numpy().copy() for name, value in trained.items()}
        self._server = {name: np.zeros_like(value) for name, value in self._begun.items()}
        self._own = dict(self._server)
        for name in (name for name in trained if name not in private):
            key = moment_name(name, CONTROL)
            self._server[name] = tensors[key]
            self._own[name] = own.get(key, self._own[name])
        self._travel = [name for name in trained if name not in private]

    def optimizer(self, learning_rate: float) -> Sgd:
        """Return SGD whose gradients are those of the loss, less c_i, plus c."""
        # The difference of two arrays without dimensions is a number.
        changes = {name: np.asarray(self._server[name] - self._own[name]) for name in self._travel}
        shifts = {self._trained[name]: torch.from_numpy(change) for name, change in changes.items()}
        return CorrectedSgd(shifts, list(self._trained.values()), learning_rate)

    def after(self, steps: int, learning_rate: float) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return the sent values c + c_i+ - c_i, and those that the device keeps, c_i+ = c_i - c + (x - y_i) / (K eta_l).

        Args:
            steps: K, the steps that were made.
            learning_rate: eta_l.
        """
        sent, kept = dict(self._server), {}
        for name in self._travel:
            c, own, x = (one[name].astype(np.float64) for one in (self._server, self._own, self._begun))
            y = self._trained[name].detach().numpy()
            new = np.asarray(own - c + (x - y) / (steps * learning_rate), y.dtype)
            kept[moment_name(name, CONTROL)] = new
            sent[name] = np.asarray(c + (new - own), y.dtype)
        return {moment_name(name, CONTROL): value for name, value in sent.items()}, kept


class CorrectedSgd(Sgd):
    """w <- w - lr * (gradient + shift)."""

    def __init__(self, shifts: Mapping[nn.Parameter, Tensor], parameters: list[nn.Parameter], rate: float) -> None:
        super().__init__(parameters, rate)
        self._shifts = shifts

    def _step(self, parameters: list[nn.Parameter], grads: list[Tensor]) -> None:
        pairs = zip(parameters, grads, strict=True)
        super()._step(parameters, [grad + self._shifts[one] if one in self._shifts else grad for one, grad in pairs])
