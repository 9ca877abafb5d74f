"""Differences and means of integers beyond 2^53, which float64 does not distinguish: a time in nanoseconds, a hash.

A mean in float64 of such values would never advance by one. It is therefore the value of the global model plus the mean of the
differences to it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedpatch.shared.tensors.arrays import Array, Schema, Tensors

_EXACT = 2**52
"""Integers up to twice this size, and so their differences, are exact in float64."""


def has_large(array: Array) -> bool:
    """Return whether an array of 64-bit integers has a value that may be rounded in float64."""
    return array.dtype == np.int64 and bool(((array > _EXACT) | (array < -_EXACT)).any())


def difference(end: Array, start: Array) -> Array:
    """Return end - start in float64; for integers it is rounded once, after the subtraction.

    Example:
        >>> difference(np.array([2**60 + 1]), np.array([2**60]))
        array([1.])
    """
    if end.dtype != np.int64 or start.dtype != np.int64:
        return np.subtract(end, start, dtype=np.float64)
    wrapped = np.subtract(end, start)
    overflowed = ((end ^ start) & (end ^ wrapped)) < 0
    return np.where(overflowed, np.subtract(end, start, dtype=np.float64), wrapped.astype(np.float64))


def advanced(start: Array, change: Array) -> Array:
    """Return 64-bit integers plus a change in whole numbers of float64, within the range of the integers."""
    half = np.trunc(change / 2)  # a change may have 65 bits
    return _saturated_sum(_saturated_sum(start, half), change - half)


def _saturated_sum(start: Array, change: Array) -> Array:
    limits, most = np.iinfo(np.int64), np.nextafter(2.0**63, 0)
    steps = np.clip(change, -most, most).astype(np.int64)
    wrapped = np.add(start, steps)
    overflowed = ((start ^ wrapped) & (steps ^ wrapped)) < 0
    return np.where(overflowed, np.where(steps > 0, limits.max, limits.min), wrapped)


class LargeIntegers:
    """The tensors of large integers of a global model: in a mean each counts as its difference to the model.

    Args:
        base: The global model.
        schema: Names, shapes and dtypes of model and updates.
    """

    def __init__(self, base: Tensors, schema: Schema) -> None:
        self.base = {spec.name: base[spec.name] for spec in schema.specs if has_large(base[spec.name])}

    def differences(self, tensors: Tensors) -> Tensors:
        """Return an update with the differences of its large integers, in float64."""
        if not self.base:
            return tensors
        return {**tensors, **{name: difference(tensors[name], start) for name, start in self.base.items()}}

    def advanced(self, means: Mapping[str, Array]) -> dict[str, Array]:
        """Return the large integers of the next model, from the means of the differences."""
        return {name: advanced(start, np.rint(means[name])) for name, start in self.base.items()}
