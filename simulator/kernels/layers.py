"""Forward and backward passes of the layers of the bundled models, written for speed.

For a small model, autograd takes more time than the arithmetic, and so do new tensors and the overhead of calls. Here every
layer has its own derivative and records the calls that compute it, on fixed tensors; simulator.kernels.flat_model repeats the
calls for every batch. A gradient, times minus the learning rate, is added to the weights in the same matrix product that
computes it (plain SGD), or left in `grads` for the optimizer (Adam, pFedMe). Values are in the order in which the products
are fastest: weights of linear layers as (in, out), images and weights of convolutions with the channels last.

This module has linear layers, batch norm, convolutions and pooling. It has no dropout, residual connections and hooks:
`fedpatch.simulator.learners.reference_learner` trains any model.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fedpatch.shared.errors import DataError

Calls = list[Callable[[], object]]

aten: Any = torch.ops.aten

NARROW = 16
"""Products with a matrix of fewer columns take half the time if it is stored column by column, not row by row."""


class Layer:
    """A layer without weights.

    `forward` and `backward` compute nothing: they append the computing calls to `calls`, and return the tensor of the result.
    For inputs of the same shape they record the same calls again; for another number of examples, earlier calls are no longer
    valid. `backward` belongs to the last `forward`.

    `params`, `grads` and `buffers` are views into storage of the model, set by its owner, by the module's names. `order`:
    the axes of the weight in the order in which they are stored; empty: as they are. With `learning_rate` None the gradient
    is stored, else applied. `first` is True for the layer whose input is data: the result of its `backward` is unused.
    `spare_output`: whether the next layer may overwrite the output of this layer; `in_place`: whether this layer overwrites
    the output of the previous layer.
    """

    first = False
    spare_output = False
    in_place = False
    order: tuple[int, ...] = ()

    def __init__(self, name: str, module: nn.Module) -> None:
        self.name = name
        self.module = module
        self.params: dict[str, Tensor] = {}
        self.grads: dict[str, Tensor] = {}
        self.buffers: dict[str, Tensor] = {}
        self._rooms: dict[str, Tensor] = {}

    def forward(self, x: Tensor, calls: Calls) -> Tensor:
        """Record the forward pass in training mode; return its outputs."""
        raise NotImplementedError

    def infer(self, x: Tensor) -> Tensor:
        """Return the outputs in evaluation mode, computed at once."""
        raise NotImplementedError

    def backward(self, grad: Tensor, learning_rate: float | None, calls: Calls) -> Tensor:
        """Record the backward pass from the gradient by the output; return the gradient by the input."""
        raise NotImplementedError

    def _room(self, what: str, like: Tensor) -> Tensor:
        """Return a tensor of this layer, of the shape and order of `like`; it stays the same until the shape changes."""
        room = self._rooms.get(what)
        if room is None or room.shape != like.shape or room.stride() != like.stride():
            room = self._rooms[what] = torch.empty_like(like)
        return room

    def _laid(self, what: str, x: Tensor, order: torch.memory_format, calls: Calls) -> Tensor:
        """Return `x` if it is in this memory order, else a tensor for its copy."""
        if x.is_contiguous(memory_format=order):
            return x
        room = self._room(what, x.contiguous(memory_format=order))
        calls.append(partial(room.copy_, x))
        return room

    def _learn(self, name: str, grad: Tensor, learning_rate: float | None) -> None:
        if learning_rate is None:
            self.grads[name].copy_(grad)
        else:
            self.params[name].sub_(grad, alpha=learning_rate)


class Linear(Layer):
    """y = x W + b along the last axis. `params["weight"]` has the shape (in, out), in any memory order."""

    spare_output = True

    def __init__(self, name: str, module: nn.Linear) -> None:
        super().__init__(name, module)
        self.order = (1, 0) if module.out_features >= NARROW else ()

    def forward(self, x: Tensor, calls: Calls) -> Tensor:
        """Shape (n, ..., in) to (n, ..., out)."""
        weight = self.params["weight"]
        self._x = x = self._laid("x", x, torch.contiguous_format, calls)
        out = self._room("out", x.new_empty(*x.shape[:-1], weight.shape[1]))
        calls.append(partial(torch.mm, _rows(x), weight, out=_rows(out)))
        if "bias" in self.params:
            calls.append(partial(out.add_, self.params["bias"]))
        return out

    def infer(self, x: Tensor) -> Tensor:
        """As `forward`."""
        out = torch.matmul(x, self.params["weight"])
        return out.add_(self.params["bias"]) if "bias" in self.params else out

    def backward(self, grad: Tensor, learning_rate: float | None, calls: Calls) -> Tensor:
        """The gradient by the input is computed before the weights change."""
        weight, x = self.params["weight"], _rows(self._x)
        grad = _rows(self._laid("grad", grad, torch.contiguous_format, calls))
        below = grad
        if not self.first:
            below = self._room("below", self._x)
            calls.append(partial(torch.mm, grad, weight.t(), out=_rows(below)))
        bias = self.params.get("bias")
        if learning_rate is None:
            calls.append(partial(torch.mm, x.t(), grad, out=self.grads["weight"]))
            if bias is not None:
                calls.append(partial(torch.sum, grad, 0, out=self.grads["bias"]))
        else:
            calls.append(partial(weight.addmm_, x.t(), grad, alpha=-learning_rate))
            if bias is not None:
                calls.append(partial(bias.addmv_, grad.t(), grad.new_ones(len(grad)), alpha=-learning_rate))
        return below


class BatchNorm(Layer):
    """Batch norm over all axes except the second (BatchNorm1d and BatchNorm2d)."""

    spare_output = True

    def __init__(self, name: str, module: nn.BatchNorm1d | nn.BatchNorm2d) -> None:
        super().__init__(name, module)
        self._momentum, self._eps = module.momentum or 0.0, module.eps

    def forward(self, x: Tensor, calls: Calls) -> Tensor:
        """Normalise by the batch and update the running statistics. Raises DataError for one value per channel."""
        if x.numel() == x.shape[1]:
            raise DataError(
                f"batch norm {self.name} cannot learn from a batch of one example; "
                "use a batch size and clients' data of at least 2"
            )
        out, running = self._room("out", x), self.buffers["running_mean"]
        into = out, self._room("mean", running), self._room("invstd", running)
        calls.append(partial(torch.native_batch_norm, x, *self._values(), True, self._momentum, self._eps, out=into))
        self._x = x
        return out

    def infer(self, x: Tensor) -> Tensor:
        """Normalise by the running statistics."""
        return torch.native_batch_norm(x, *self._values(), False, self._momentum, self._eps)[0]

    def backward(self, grad: Tensor, learning_rate: float | None, calls: Calls) -> Tensor:
        """Gradient through the batch's own mean and variance."""
        x, below = self._x, self._room("below", self._x)
        weight, _, *running = self._values()
        batch = self._rooms["mean"], self._rooms["invstd"]
        grad = self._laid("grad", grad, _order(x), calls)

        def learn() -> None:
            found, weight_grad, bias_grad = aten.native_batch_norm_backward.default(
                grad, x, weight, *running, *batch, True, self._eps, [True, True, True]
            )
            below.copy_(found)
            self._learn("weight", weight_grad, learning_rate)
            self._learn("bias", bias_grad, learning_rate)

        calls.append(learn)
        return below

    def _values(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        params, buffers = self.params, self.buffers
        return params["weight"], params["bias"], buffers["running_mean"], buffers["running_var"]


class ReLU(Layer):
    """max(x, 0)."""

    def forward(self, x: Tensor, calls: Calls) -> Tensor:
        """Any shape."""
        if self.in_place:
            self._y = x
            calls.append(partial(torch.relu_, x))
        else:
            self._y = self._room("out", x)
            calls.append(partial(torch.clamp_min, x, 0, out=self._y))
        return self._y

    def infer(self, x: Tensor) -> Tensor:
        """As `forward`."""
        return torch.relu(x)

    def backward(self, grad: Tensor, learning_rate: float | None, calls: Calls) -> Tensor:
        """Zero where the output was zero."""
        below = self._room("below", grad)
        calls.append(partial(aten.threshold_backward.grad_input, grad, self._y, 0, grad_input=below))
        return below


class Tanh(Layer):
    """tanh(x)."""

    def forward(self, x: Tensor, calls: Calls) -> Tensor:
        """Any shape."""
        self._y = self._room("out", x)
        calls.append(partial(torch.tanh, x, out=self._y))
        return self._y

    def infer(self, x: Tensor) -> Tensor:
        """As `forward`."""
        return torch.tanh(x)

    def backward(self, grad: Tensor, learning_rate: float | None, calls: Calls) -> Tensor:
        """Grad * (1 - y^2)."""
        below = self._room("below", grad)
        calls.append(partial(aten.tanh_backward.grad_input, grad, self._y, grad_input=below))
        return below


class Flatten(Layer):
    """All axes except the first become one."""

    def forward(self, x: Tensor, calls: Calls) -> Tensor:
        """Shape (n, ...) to (n, features)."""
        self._shape = x.shape
        return self._laid("x", x, torch.contiguous_format, calls).view(len(x), -1)

    def infer(self, x: Tensor) -> Tensor:
        """As `forward`."""
        return x.reshape(len(x), -1)

    def backward(self, grad: Tensor, learning_rate: float | None, calls: Calls) -> Tensor:
        """The shape of the input."""
        return self._laid("grad", grad, torch.contiguous_format, calls).view(self._shape)


def _rows(x: Tensor) -> Tensor:
    return x if x.dim() == 2 else x.view(-1, x.shape[-1])


def _order(x: Tensor) -> torch.memory_format:
    if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
        return torch.channels_last
    return torch.contiguous_format


class Conv2d(Layer):
    """A two-dimensional convolution with zero padding."""

    order = (0, 2, 3, 1)
    spare_output = True

    def __init__(self, name: str, module: nn.Conv2d) -> None:
        super().__init__(name, module)
        self._shape: Any = module.stride, module.padding, module.dilation
        self._groups = module.groups

    def forward(self, x: Tensor, calls: Calls) -> Tensor:
        """Shape (n, channels, height, width)."""
        self._x = x = self._laid("x", x, torch.channels_last, calls)
        out = self._room("out", self.infer(x))
        calls.append(lambda: out.copy_(self.infer(x)))
        return out

    def infer(self, x: Tensor) -> Tensor:
        """As `forward`."""
        x = x.contiguous(memory_format=torch.channels_last)
        out: Tensor = aten.conv2d(x, self.params["weight"], self.params.get("bias"), *self._shape, self._groups)
        return out

    def backward(self, grad: Tensor, learning_rate: float | None, calls: Calls) -> Tensor:
        """As the backward pass of a linear layer."""
        x, below, weight, has_bias = self._x, self._room("below", self._x), self.params["weight"], "bias" in self.params
        bias_sizes, wanted = [weight.shape[0]] if has_bias else None, [not self.first, True, has_bias]

        def learn() -> None:
            found, weight_grad, bias_grad = aten.convolution_backward(
                grad, x, weight, bias_sizes, *self._shape, False, [0, 0], self._groups, wanted
            )
            self._learn("weight", weight_grad, learning_rate)
            if has_bias:
                self._learn("bias", bias_grad, learning_rate)
            if not self.first:
                below.copy_(found)

        calls.append(learn)
        return below


class MaxPool2d(Layer):
    """The greatest value of each window."""

    spare_output = True

    def __init__(self, name: str, module: nn.MaxPool2d) -> None:
        super().__init__(name, module)
        sizes = [_pair(size) for size in (module.kernel_size, module.stride, module.padding, module.dilation)]
        self._shape = *sizes, module.ceil_mode

    def forward(self, x: Tensor, calls: Calls) -> Tensor:
        """Shape (n, channels, height, width)."""
        self._x = x
        out, indices = aten.max_pool2d_with_indices(x, *self._shape)
        out, self._indices = self._room("out", out), self._room("indices", indices)
        calls.append(partial(aten.max_pool2d_with_indices.out, x, *self._shape, out=out, indices=self._indices))
        return out

    def infer(self, x: Tensor) -> Tensor:
        """As `forward`."""
        out: Tensor = aten.max_pool2d_with_indices(x, *self._shape)[0]
        return out

    def backward(self, grad: Tensor, learning_rate: float | None, calls: Calls) -> Tensor:
        """Pass the gradient to the places of the greatest values."""
        below = self._room("below", self._x)
        backward = aten.max_pool2d_with_indices_backward.grad_input
        calls.append(partial(backward, grad, self._x, *self._shape, self._indices, grad_input=below))
        return below


def _pair(size: int | tuple[int, ...]) -> list[int]:
    return [size, size] if isinstance(size, int) else list(size)
