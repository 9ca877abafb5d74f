"""Updates of earlier bases, moved to the present model, so that one mean combines them with fresh updates.

- Trained tensors: the present model plus the change that the device made, present + (update - base).
- Counters and other integers: likewise, so that they advance by the steps of the device, within the range of their dtype.
- Moments, running statistics and booleans: the device's own values. The first two are averages of gradients and of
  activations, not positions; differences of two such averages may leave their range (a variance below 0, a first moment too
  large for the second).

Their weight is the weight of a fresh update times (1 + staleness)^-p (coordinator.buffered.staleness_weight).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedpatch.shared.tensors.arrays import Array, Schema, Tensors


@dataclass(frozen=True)
class Staleness:
    """The age of an update.

    Attributes:
        versions: Versions that the model has advanced since its base.
        factor: Factor of its weight, above 0; above 1 where the power is negative.
        base: The tensors of its base.
    """

    versions: int
    factor: float
    base: Tensors


def rebase(update: Tensors, base: Tensors, present: Tensors, schema: Schema) -> Mapping[str, Array]:
    """Return an update as if it had been trained from the present model.

    Args:
        base: The model that it was trained from.
        schema: Names, shapes and dtypes of all three.

    Returns:
        New tensors. If the base equals the present model to the last bit, they equal the update within rounding.
    """
    moved: dict[str, Array] = {}
    for spec in schema.specs:
        value = update[spec.name]
        if spec.trainable:
            change = np.subtract(value, base[spec.name], dtype=np.float64)
            moved[spec.name] = np.asarray(present[spec.name] + change, spec.dtype)
        elif np.dtype(spec.dtype).kind in "iu":
            moved[spec.name] = _advanced(value, base[spec.name], present[spec.name])
        elif spec.name.endswith(":step"):
            moved[spec.name] = np.asarray(present[spec.name] + (value - base[spec.name]), spec.dtype)
        else:
            moved[spec.name] = value
    return moved


def _advanced(value: Array, base: Array, present: Array) -> Array:
    limits = np.iinfo(value.dtype)
    change = np.subtract(value, base, dtype=np.int64)
    return np.asarray(np.clip(present + change, limits.min, limits.max), value.dtype)
