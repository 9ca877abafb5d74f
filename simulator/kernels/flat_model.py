"""One working model in flat memory: a vector of the public tensors and a vector of the private ones.

To load a global model, to add a trained one to a sum and to step Adam are then one pass over contiguous memory each. If the
first layer is linear and its weights travel, they are at the end, one row per input feature. A client whose data never use a
feature (in MNIST a third of the pixels are black in all images of a client) can then leave the row out, and works on a shorter
vector. The result is exact: such a row has no gradient.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedpatch.simulator.kernels.layers import Calls, Layer, Linear

KEPT_PASSES = 256
"""For so many shapes of inputs the passes are kept; clients that leave out features differ in shape."""

CACHE_LINE = 16
"""Values (of four bytes) in a cache line."""


@dataclass(frozen=True)
class Place:
    """Place of a tensor in a flat vector: `shape` is the stored one; axis i of the model's tensor is its axis `axes[i]`."""

    start: int
    shape: tuple[int, ...]
    axes: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of values."""
        return torch.Size(self.shape).numel()

    def stored(self, flat: Tensor) -> Tensor:
        """Return a view of the tensor as it is stored."""
        return flat[self.start : self.start + self.size].view(self.shape)

    def canonical(self, flat: Tensor) -> Tensor:
        """Return a view of the tensor in the model's own shape."""
        return self.stored(flat).permute(self.axes)


class Layout:
    """Layout of the model: `public` and `private` vectors, each with statistics first and trained values after them.

    `trained_from` and `private_trained_from` are the positions of the first trained value. `rows` is the place of the first
    layer's weights at the end of the public vector, None if features cannot be left out. Integer buffers
    (num_batches_tracked) are in no vector: `counters` names them.
    """

    def __init__(self, model: nn.Module, layers: list[Layer], private: Collection[str]) -> None:
        state = model.state_dict()
        trained = {name for name, _ in model.named_parameters()}
        orders = {f"{layer.name}.weight": layer.order for layer in layers if layer.order}
        floats = [name for name, value in state.items() if value.is_floating_point()]
        self.counters = tuple(name for name in state if name not in floats)
        self.dtype = state[floats[0]].dtype
        first = f"{layers[0].name}.weight" if isinstance(layers[0], Linear) else None
        last = first if first not in private else None

        def place(private_side: bool) -> tuple[dict[str, Place], int, int]:
            names = [name for name in floats if (name in private) is private_side]
            # Large tensors at the end: if the last begins a cache line, the tensors before it mostly do so too.
            names.sort(key=lambda name: ((name in trained) + (name == last), state[name].numel()))
            places, at, trained_from = {}, 0, 0
            for name in names:
                if name not in trained:
                    trained_from = at + state[name].numel()
                shape = tuple(state[name].shape)
                order = (1, 0) if name == last else orders.get(name) or tuple(range(len(shape)))
                back = tuple(order.index(axis) for axis in range(len(shape)))
                places[name] = Place(at, tuple(shape[axis] for axis in order), back)
                at += state[name].numel()
            return places, at, trained_from

        self.public, self.public_size, self.trained_from = place(False)
        self.private, self.private_size, self.private_trained_from = place(True)
        self.rows = self.public[last] if last is not None else None
        self.trained = trained

    def flatten(self, tensors: Mapping[str, Tensor], suffix: str = "") -> Tensor:
        """Return the public vector of `tensors`; with `suffix` such as ":exp_avg", of their moments, 0 for statistics."""
        flat = torch.zeros(self.public_size, dtype=self.dtype)
        for name, place in self.public.items():
            if not suffix or name in self.trained:
                place.canonical(flat).copy_(tensors[name + suffix])
        return flat

    def unflatten(self, flat: Tensor, suffix: str = "") -> dict[str, Tensor]:
        """Undo `flatten`; the tensors are contiguous copies."""
        return {
            name + suffix: place.canonical(flat).clone(memory_format=torch.contiguous_format)
            for name, place in self.public.items()
            if not suffix or name in self.trained
        }


@dataclass
class Passes:
    """Forward and backward passes for inputs of one shape, as calls on fixed tensors."""

    x: Tensor
    outputs: Tensor
    grad: Tensor
    forward: Calls
    backward: dict[float | None, Calls] = field(default_factory=dict)


class WorkingModel:
    """Layers over one set of vectors, and the recorded calls; all clients use the same tensors."""

    def __init__(self, model: nn.Module, layers: list[Layer], private: Collection[str], *, grads: bool) -> None:
        self.layers = layers
        self.layout = Layout(model, layers, private)
        layout = self.layout
        self.public = _aligned_zeros(layout)
        self.private = torch.zeros(layout.private_size, dtype=layout.dtype)
        self.public_grad = _aligned_zeros(layout) if grads else torch.zeros_like(self.public[:0])
        self.private_grad = torch.zeros_like(self.private if grads else self.private[:0])
        self.length = layout.public_size
        self._inputs = torch.zeros(0, dtype=layout.dtype)
        self._passes: dict[torch.Size, Passes] = {}
        self._last: Passes | None = None
        for layer in layers:
            self._point(layer, grads)

    def _point(self, layer: Layer, grads: bool) -> None:
        for name, _ in [*layer.module.named_parameters(), *layer.module.named_buffers()]:
            whole = f"{layer.name}.{name}"
            if whole in self.layout.counters:
                continue
            ours = whole in self.layout.private
            place = (self.layout.private if ours else self.layout.public)[whole]
            values = _as_taken(layer, place, self.private if ours else self.public)
            if whole not in self.layout.trained:
                layer.buffers[name] = values
                continue
            layer.params[name] = values
            if grads:
                layer.grads[name] = _as_taken(layer, place, self.private_grad if ours else self.public_grad)

    def use_features(self, count: int) -> None:
        """Let the first layer have `count` rows; the public vector is then used up to `length`."""
        rows = self.layout.rows
        if rows is None:
            return
        width = rows.shape[1]
        self.length = rows.start + count * width
        first = self.layers[0]
        first.params["weight"] = self.public[rows.start : self.length].view(count, width)
        if len(self.public_grad):
            first.grads["weight"] = self.public_grad[rows.start : self.length].view(count, width)

    def room_for(self, shape: Sequence[int]) -> Tensor:
        """Return the tensor for the inputs of a batch; `outputs` does not copy inputs that are written there."""
        return self._passes_of(torch.Size(shape)).x

    def outputs(self, x: Tensor) -> Tensor:
        """Return the outputs of a forward pass in training mode; the next pass overwrites them."""
        passes = self._last
        if passes is None or x is not passes.x:
            self._last = passes = self._passes_of(x.shape)
            if x is not passes.x:
                passes.x.copy_(x)
        for call in passes.forward:
            call()
        return passes.outputs

    def infer(self, x: Tensor) -> Tensor:
        """Return the outputs of a forward pass in evaluation mode."""
        for layer in self.layers:
            x = layer.infer(x)
        return x

    @property
    def grad(self) -> Tensor:
        """The tensor for the gradient by the last outputs; `backward` does not copy a gradient that is written there."""
        assert self._last is not None
        return self._last.grad

    def backward(self, grad: Tensor, learning_rate: float | None) -> None:
        """Back-propagate the last forward pass from the gradient by its outputs; make a step unless `learning_rate` is None."""
        passes = self._last
        assert passes is not None
        if learning_rate not in passes.backward:
            self._write_down(passes, learning_rate)
        if grad is not passes.grad:
            passes.grad.copy_(grad)
        for call in passes.backward[learning_rate]:
            call()

    def _passes_of(self, shape: torch.Size) -> Passes:
        passes = self._passes.get(shape)
        if passes is None:
            if len(self._passes) == KEPT_PASSES or any(other[0] != shape[0] for other in self._passes):
                self._forget()
            size = shape.numel()
            if size > len(self._inputs):
                self._forget()
                self._inputs = torch.zeros(size, dtype=self.layout.dtype)
            forward: Calls = []
            x = outputs = self._inputs[:size].view(shape)
            for layer in self.layers:
                outputs = layer.forward(outputs, forward)
            passes = self._passes[shape] = Passes(x, outputs, torch.empty_like(outputs), forward)
        return passes

    def _forget(self) -> None:
        self._passes.clear()
        self._last = None

    def _write_down(self, passes: Passes, learning_rate: float | None) -> None:
        """Record the backward pass. Forward runs again before, because a layer's backward belongs to its last forward."""
        x, grad, calls = passes.x, passes.grad, passes.backward.setdefault(learning_rate, [])
        for layer in self.layers:
            x = layer.forward(x, [])
        for layer in reversed(self.layers):
            grad = layer.backward(grad, learning_rate, calls)


def _as_taken(layer: Layer, place: Place, flat: Tensor) -> Tensor:
    """Return a view of a layer's tensor in the shape that the layer uses."""
    values = place.canonical(flat)
    return values.t() if isinstance(layer, Linear) else values


def _aligned_zeros(layout: Layout) -> Tensor:
    """Return a public vector whose rows begin a cache line: products with them take a tenth less time."""
    ahead = 0 if layout.rows is None else -layout.rows.start % CACHE_LINE
    return torch.zeros(ahead + layout.public_size, dtype=layout.dtype)[ahead:]
