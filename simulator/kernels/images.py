"""The layers for images: convolution and pooling; see simulator.layers."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from simulator.layers import Calls, Layer, aten


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
        """The same."""
        x = x.contiguous(memory_format=torch.channels_last)
        out: Tensor = aten.conv2d(x, self.params["weight"], self.params.get("bias"), *self._shape, self._groups)
        return out

    def backward(self, grad: Tensor, learning_rate: float | None, calls: Calls) -> Tensor:
        """As that of a linear layer."""
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
        """The same."""
        out: Tensor = aten.max_pool2d_with_indices(x, *self._shape)[0]
        return out

    def backward(self, grad: Tensor, learning_rate: float | None, calls: Calls) -> Tensor:
        """To where the greatest values came from."""
        below = self._room("below", self._x)
        backward = aten.max_pool2d_with_indices_backward.grad_input
        calls.append(partial(backward, grad, self._x, *self._shape, self._indices, grad_input=below))
        return below


def _pair(size: int | tuple[int, ...]) -> list[int]:
    return [size, size] if isinstance(size, int) else list(size)
