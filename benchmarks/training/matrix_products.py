"""The matrix products of a round alone, which every implementation that trains one client at a time needs.

For each linear layer, a step of a client needs the product for the outputs, the product for the gradient of the weights and,
except for the first layer, the product for the gradient of the inputs. Here they use existing tensors, with weights as
(in, out), the faster order. There is no activation, no batch norm, no loss, no update, and no data.
"""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.support.work import Work, linear_shapes
from fedpatch.simulator.kernels.sparse_features import used_features


class MatrixProducts:
    """The matrix products of a model of linear layers, for the first `clients` clients (None: all).

    With `used_only`, the first layer has only the features that the data of the client use.
    """

    def __init__(self, work: Work, clients: int | None = None, *, used_only: bool = False) -> None:
        self._steps = work.steps[:clients]
        shapes = linear_shapes(work.task)
        features = used_features(work.population) if used_only else None
        self._inputs = [
            shapes[0][0] if features is None else len(features.of(client)[0]) for client in range(len(self._steps))
        ]
        rows = work.study.batch_size
        self._x = [torch.rand(rows, width) for width, _ in shapes]
        self._weights = [torch.randn(shape) / shape[0] ** 0.5 for shape in shapes]
        self._biases = [torch.zeros(width) for _, width in shapes]
        self._outputs = [torch.zeros(rows, width) for _, width in shapes]
        self._grads = [torch.randn(rows, width) for _, width in shapes]
        self._below = [torch.zeros(rows, width) for width, _ in shapes]
        self._weight_grads = [torch.zeros(shape) for shape in shapes]

    def play(self) -> None:
        """Compute the products of a round."""
        with torch.no_grad():
            for steps, inputs in zip(self._steps, self._inputs, strict=True):
                layers = self._layers(inputs)
                for _ in range(steps):
                    _step(layers)

    def _layers(self, inputs: int) -> list[tuple[Tensor, ...]]:
        """Return contiguous views of the tensors of each layer, with `inputs` input features."""
        rows = len(self._x[0])
        first = (
            self._x[0].view(-1)[: rows * inputs].view(rows, inputs),
            self._weights[0][:inputs],
            self._biases[0],
            self._outputs[0],
            self._grads[0],
            self._below[0],
            self._weight_grads[0][:inputs],
        )
        rest = (self._x, self._weights, self._biases, self._outputs, self._grads, self._below, self._weight_grads)
        return [first, *(tuple(parts[layer] for parts in rest) for layer in range(1, len(self._x)))]


def _step(layers: list[tuple[Tensor, ...]]) -> None:
    for x, weight, bias, output, _, _, _ in layers:
        torch.addmm(bias, x, weight, out=output)
    for number, (x, weight, _, _, grad, below, weight_grad) in enumerate(layers):
        if number:
            torch.mm(grad, weight.t(), out=below)
        torch.mm(x.t(), grad, out=weight_grad)
