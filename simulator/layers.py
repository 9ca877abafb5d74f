"""Forward and backward passes of the layers that the bundled models are made of, written out for speed.

Autograd costs a small model more than its arithmetic does. Here every layer knows its own derivative and either adds
its gradient, times minus the learning rate, to its weights in the same matrix product that computes it (plain SGD), or
leaves it in `grads` for whoever needs it (Adam, pFedMe). Values lie in the order in which the products are fastest: weights of
linear layers as (in, out), images and weights of convolutions with the channels last.

What is not here (dropout, residual connections, hooks) is for `simulator.one_by_one`, which trains any model.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from shared.errors import DataError

aten: Any = torch.ops.aten


class Layer:
    """A layer without weights; `forward` keeps what `backward` needs.

    `params`, `grads` and `buffers` are views into storage of the model, set by whoever owns that; by the names that the
    module gives them. `order`: the axes of the weight in the order in which they are to be stored; none: as they are. With
    `learning_rate` None the gradient is stored, else applied. `first` is True for the layer
    whose input is data: its `backward` returns what nobody looks at.
    """

    first = False
    order: tuple[int, ...] = ()

    def __init__(self, name: str, module: nn.Module) -> None:
        self.name = name
        self.module = module
        self.params: dict[str, Tensor] = {}
        self.grads: dict[str, Tensor] = {}
        self.buffers: dict[str, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        """Outputs in training mode."""
        raise NotImplementedError

    def infer(self, x: Tensor) -> Tensor:
        """Outputs in evaluation mode."""
        return self.forward(x)

    def backward(self, grad: Tensor, learning_rate: float | None) -> Tensor:
        """Gradient of the loss by this layer's input, from that by its output."""
        raise NotImplementedError

    def _learn(self, name: str, grad: Tensor, learning_rate: float | None) -> None:
        if learning_rate is None:
            self.grads[name].copy_(grad)
        else:
            self.params[name].sub_(grad, alpha=learning_rate)


class Linear(Layer):
    """y = x W + b along the last axis, with W as (in, out)."""

    order = (1, 0)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (n, ..., in) to (n, ..., out)."""
        self._shape = x.shape
        self._x = x = x if x.dim() == 2 else x.flatten(0, -2)
        bias = self.params.get("bias")
        weight = self.params["weight"]
        out = torch.mm(x, weight) if bias is None else torch.addmm(bias, x, weight)
        return out if len(self._shape) == 2 else out.view(*self._shape[:-1], -1)

    def backward(self, grad: Tensor, learning_rate: float | None) -> Tensor:
        """The input's gradient is taken before the weights move."""
        weight = self.params["weight"]
        grad = grad if grad.dim() == 2 else grad.flatten(0, -2)
        below = grad if self.first else torch.mm(grad, weight.t()).view(self._shape)
        if learning_rate is None:
            torch.mm(self._x.t(), grad, out=self.grads["weight"])
        else:
            weight.addmm_(self._x.t(), grad, alpha=-learning_rate)
        if "bias" in self.params:
            self._learn("bias", grad.sum(0), learning_rate)
        return below


class Conv2d(Layer):
    """A two-dimensional convolution with zero padding."""

    order = (0, 2, 3, 1)

    def __init__(self, name: str, module: nn.Conv2d) -> None:
        super().__init__(name, module)
        self._shape: Any = module.stride, module.padding, module.dilation
        self._groups = module.groups

    def forward(self, x: Tensor) -> Tensor:
        """Shape (n, channels, height, width)."""
        self._x = x = x.contiguous(memory_format=torch.channels_last)
        out: Tensor = aten.conv2d(x, self.params["weight"], self.params.get("bias"), *self._shape, self._groups)
        return out

    def backward(self, grad: Tensor, learning_rate: float | None) -> Tensor:
        """As `Linear.backward`."""
        weight, has_bias = self.params["weight"], "bias" in self.params
        bias_sizes, wanted = [weight.shape[0]] if has_bias else None, [not self.first, True, has_bias]
        below, weight_grad, bias_grad = aten.convolution_backward(
            grad, self._x, weight, bias_sizes, *self._shape, False, [0, 0], self._groups, wanted
        )
        self._learn("weight", weight_grad, learning_rate)
        if has_bias:
            self._learn("bias", bias_grad, learning_rate)
        return grad if self.first else below


class BatchNorm(Layer):
    """Batch norm over all axes but the second (BatchNorm1d and BatchNorm2d)."""

    def __init__(self, name: str, module: nn.BatchNorm1d | nn.BatchNorm2d) -> None:
        super().__init__(name, module)
        self._momentum, self._eps = module.momentum or 0.0, module.eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalises by the batch and moves the running statistics. Raises DataError for a batch of one value each."""
        if x.numel() == x.shape[1]:
            raise DataError(
                f"batch norm {self.name} cannot learn from a batch of one example; "
                "use a batch size and clients' data of at least 2"
            )
        out, self._mean, self._invstd = torch.native_batch_norm(x, *self._values(), True, self._momentum, self._eps)
        self._x = x
        return out

    def infer(self, x: Tensor) -> Tensor:
        """Normalises by the running statistics."""
        return torch.native_batch_norm(x, *self._values(), False, self._momentum, self._eps)[0]

    def backward(self, grad: Tensor, learning_rate: float | None) -> Tensor:
        """Gradient through the batch's own mean and variance."""
        below: Tensor
        below, weight_grad, bias_grad = aten.native_batch_norm_backward(
            grad.contiguous(memory_format=_format(self._x)),
            self._x,
            self.params["weight"],
            self.buffers["running_mean"],
            self.buffers["running_var"],
            self._mean,
            self._invstd,
            True,
            self._eps,
            [True, True, True],
        )
        self._learn("weight", weight_grad, learning_rate)
        self._learn("bias", bias_grad, learning_rate)
        return below

    def _values(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        params, buffers = self.params, self.buffers
        return params["weight"], params["bias"], buffers["running_mean"], buffers["running_var"]


class ReLU(Layer):
    """max(x, 0)."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape."""
        self._y = torch.relu(x)
        return self._y

    def backward(self, grad: Tensor, learning_rate: float | None) -> Tensor:
        """Zero where the output was."""
        below: Tensor = aten.threshold_backward(grad, self._y, 0)
        return below


class Tanh(Layer):
    """tanh(x)."""

    def forward(self, x: Tensor) -> Tensor:
        """Any shape."""
        self._y = torch.tanh(x)
        return self._y

    def backward(self, grad: Tensor, learning_rate: float | None) -> Tensor:
        """Grad * (1 - y^2)."""
        below: Tensor = aten.tanh_backward(grad, self._y)
        return below


class MaxPool2d(Layer):
    """The greatest value of each window."""

    def __init__(self, name: str, module: nn.MaxPool2d) -> None:
        super().__init__(name, module)
        sizes = [_pair(size) for size in (module.kernel_size, module.stride, module.padding, module.dilation)]
        self._shape = sizes, module.ceil_mode

    def forward(self, x: Tensor) -> Tensor:
        """Shape (n, channels, height, width)."""
        sizes, ceil_mode = self._shape
        self._x = x
        out: Tensor
        out, self._indices = aten.max_pool2d_with_indices(x, *sizes, ceil_mode)
        return out

    def backward(self, grad: Tensor, learning_rate: float | None) -> Tensor:
        """To where the greatest values came from."""
        sizes, ceil_mode = self._shape
        below: Tensor = aten.max_pool2d_with_indices_backward(grad, self._x, *sizes, ceil_mode, self._indices)
        return below


class Flatten(Layer):
    """All axes but the first become one."""

    def forward(self, x: Tensor) -> Tensor:
        """Shape (n, ...) to (n, features)."""
        self._shape = x.shape
        return x.reshape(len(x), -1)

    def backward(self, grad: Tensor, learning_rate: float | None) -> Tensor:
        """The shape that went in."""
        return grad.reshape(self._shape)


def _pair(size: int | tuple[int, ...]) -> list[int]:
    return [size, size] if isinstance(size, int) else list(size)


def _format(x: Tensor) -> torch.memory_format:
    if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
        return torch.channels_last
    return torch.contiguous_format
