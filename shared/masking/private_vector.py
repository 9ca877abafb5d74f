"""A device's vector in a masked round with differential privacy: whole numbers of a bounded norm, and nothing else.

The step is shortened to the clip and rounded at random to a grid on which the clip has `steps` steps. The vector has no
figures of the report, because their sum would be a release too. The rounding error is not kept. All devices count equally.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedpatch.shared.masking.vector_layout import element_type, travelling
from fedpatch.shared.tensors.arrays import Array, Schema, Tensors, TensorSpec

BITS = 16
_ATTEMPTS = 20
_LESS = 1 - 1e-12  # the product with the factor may round up


@dataclass(frozen=True)
class PrivateLayout:
    """The places of the values in a vector: those of all tensors, by name.

    Attributes:
        schema: Schema of the travelling tensors, all of them trained.
        clip: Greatest L2 norm of a device's step.
        steps: The clip in steps of the grid.

    Example:
        >>> layout = PrivateLayout(Schema((TensorSpec("w", (3, 4), "float32", "weight"),)), clip=0.5, steps=100)
        >>> layout.size, layout.nbytes, layout.unit
        (12, 24, 0.005)
    """

    schema: Schema
    clip: float
    steps: int

    @cached_property
    def specs(self) -> tuple[TensorSpec, ...]:
        """Tensors with values in the vector, by name."""
        return travelling(self.schema)

    @cached_property
    def size(self) -> int:
        """Elements of the vector."""
        return sum(math.prod(spec.shape) for spec in self.specs)

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """Type of an element."""
        return element_type(BITS)

    @property
    def nbytes(self) -> int:
        """Bytes of the vector."""
        return self.size * self.dtype.itemsize

    @property
    def unit(self) -> float:
        """One step of the grid."""
        return self.clip / self.steps


def make_private_vector(layout: PrivateLayout, step: Tensors, seed: int) -> Array:
    """Return the vector of a device without noise.

    Args:
        step: Tensors after training minus the global model's.
        seed: Seed of the rounding.

    Returns:
        Elements modulo 2^16, shape (layout.size,). The whole numbers that they represent have an L2 norm of at most
        `layout.steps`, for any step. A step that is not finite counts as none.
    """
    rng = np.random.default_rng(seed)
    flat = np.concatenate([np.zeros(0), *(step[one.name].reshape(-1) for one in layout.specs)])
    with np.errstate(over="ignore", invalid="ignore"):
        norm = math.sqrt(float(np.dot(flat, flat)))
    if not math.isfinite(norm):
        flat, norm = np.zeros(layout.size), 0.0
    exact = flat * (_LESS / max(layout.unit, norm / layout.steps))
    for _ in range(_ATTEMPTS):
        codes = np.floor(exact + rng.random(layout.size)).astype(np.int64)
        length = int(np.dot(codes, codes))
        if length <= layout.steps**2:
            break
        exact = exact * (layout.steps / math.sqrt(length))
    else:
        codes = np.trunc(exact).astype(np.int64)
    return codes.astype(layout.dtype)


def signed_sum(elements: Array) -> Array:
    """Return the whole numbers that the unmasked sum of a group represents, int64."""
    return elements.view("<i2").astype(np.int64)


def step_of_sum(layout: PrivateLayout, total: Array, denominator: int) -> dict[str, Array]:
    """Return the mean step of the sum of all groups, by tensor, in float64.

    Args:
        total: Sum of whole numbers, shape (layout.size,).
        denominator: Devices that the round was meant for.
    """
    steps, start = {}, 0
    for spec in layout.specs:
        end = start + math.prod(spec.shape)
        steps[spec.name] = total[start:end].reshape(spec.shape) * (layout.unit / denominator)
        start = end
    return steps
