"""Layout of a device's vector: one integer for each travelling value, then figures as 2-bit limbs.

    values    for each floating-point tensor of the travelling schema, by name: its values
    limbs     the figures of FIGURES, then one spread per tensor; each figure least significant limb first

Each element is one integer modulo 2^bits. A value is a signed code of at most floor((2^(bits-1) - 1) / group_max), so that the
sum of a group has the right sign. A limb is 0 to 3, so that the sum of 64 devices stays below 256; figures of any size become
exact sums this way.

Tensors of integers and booleans do not travel in a masked round: the global model keeps its value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from fedpatch.shared.errors import WireError
from fedpatch.shared.masking.group_context import check_terms, highest_code, read_grid
from fedpatch.shared.tensors.arrays import Schema, TensorSpec
from fedpatch.shared.wire.masking_messages import SecureTerms

LIMB_BITS = 2
BINS = 16
"""Bins of the histogram of user accuracy, of equal width over the range of the task's metric."""

_COUNT_BITS, _MEASURE_BITS, _ONE_BITS = 40, 52, 2
_RATIO_BITS = 32
MEASURES = (
    "train_loss",
    "user_accuracy_before",
    "user_accuracy_after",
    "user_accuracy_independent",
    "gain",
    "gain_after",
)
"""Measured figures; each travels as a sum and the number of devices that measured it."""

FIGURES: tuple[tuple[str, int], ...] = (
    ("weight", _COUNT_BITS),
    ("num_examples", _COUNT_BITS),
    ("clipped_values", _COUNT_BITS),
    ("norm", _RATIO_BITS),
    ("gaining", _ONE_BITS),
    ("losing", _ONE_BITS),
    *((f"bin_{index}", _ONE_BITS) for index in range(BINS)),
    *(field for name in MEASURES for field in ((name, _MEASURE_BITS), (f"{name}_measured", _ONE_BITS))),
)
"""Name and bits of each figure in the vector; the bits are a multiple of LIMB_BITS."""


@dataclass(frozen=True)
class VectorLayout:
    """Places of each value and figure of a round in a device's vector.

    Attributes:
        schema: Schema of the travelling tensors, without moments.
        terms: Terms of the round, checked.

    Raises:
        WireError: The terms are impossible, or their grid is not of this schema.

    Example:
        >>> schema = Schema((TensorSpec("w", (3, 4), "float32", "weight"),))
        >>> grid = np.float32(0.5).tobytes()
        >>> terms = SecureTerms("half", 8, 32, bits=8, keep=1, seed=bytes(16), clip=1.0, weight_cap=600, grid=grid)
        >>> layout = VectorLayout(schema, terms)
        >>> layout.top, layout.num_values, layout.dtype
        (3, 12, dtype('uint8'))
    """

    schema: Schema
    terms: SecureTerms

    def __post_init__(self) -> None:
        check_terms(self.terms, f"masked-u{self.terms.bits}")
        ranges, tensors = len(self.terms.grid) // 4, len(travelling(self.schema))
        if ranges != tensors:
            raise WireError(f"the grid has {ranges} ranges for {tensors} floating-point tensors")

    @cached_property
    def specs(self) -> tuple[TensorSpec, ...]:
        """Tensors with values in the vector, by name."""
        return travelling(self.schema)

    @cached_property
    def ranges(self) -> tuple[float, ...]:
        """Range of the values of each tensor: greater values are cut off."""
        return read_grid(self.terms.grid)

    @property
    def top(self) -> int:
        """Greatest code of one device."""
        return highest_code(self.terms.bits, self.terms.group_max)

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """Type of an element."""
        return element_type(self.terms.bits)

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Number of values of each tensor."""
        return tuple(math.prod(spec.shape) for spec in self.specs)

    @property
    def num_values(self) -> int:
        """Elements that are values of tensors."""
        return sum(self.counts)

    @cached_property
    def figures(self) -> tuple[tuple[str, int], ...]:
        """Name and bits of all figures, with one spread for each tensor."""
        return (*FIGURES, *((f"spread {spec.name}", _RATIO_BITS) for spec in self.specs))

    @cached_property
    def num_limbs(self) -> int:
        """Elements that are limbs."""
        return sum(bits // LIMB_BITS for _, bits in self.figures)

    @property
    def size(self) -> int:
        """Elements of the vector."""
        return self.num_values + self.num_limbs

    @property
    def nbytes(self) -> int:
        """Bytes of the vector."""
        return self.size * self.dtype.itemsize


def element_type(bits: int) -> np.dtype[np.unsignedinteger]:
    """Return the type of an element of 8 or 16 bits, little-endian."""
    return np.dtype("<u1" if bits == 8 else "<u2")


def travelling(schema: Schema) -> tuple[TensorSpec, ...]:
    """Return the tensors of a schema whose values are in the vector: those of floating-point numbers."""
    return tuple(spec for spec in schema.specs if np.dtype(spec.dtype).kind == "f")


def to_limbs(value: int, bits: int) -> list[int]:
    """Return a figure as limbs, least significant first; a figure beyond its bits becomes the greatest one.

    Example:
        >>> to_limbs(27, bits=6), from_limbs([3, 2, 1])
        ([3, 2, 1], 27)
    """
    value = max(0, min(value, 2**bits - 1))
    return [value >> shift & 3 for shift in range(0, bits, LIMB_BITS)]


def from_limbs(limbs: list[int]) -> int:
    """Return the figure of limbs, or of sums of limbs."""
    return sum(limb << LIMB_BITS * place for place, limb in enumerate(limbs))
