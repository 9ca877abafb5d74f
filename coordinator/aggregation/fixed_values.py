"""Values of the global model that never change because they are not finite, such as the minus infinity of a causal mask.

No mean, norm or difference of such values is a number. They are zero while a round is aggregated, and are put back afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedpatch.shared.tensors.arrays import Array, Schema, Tensors
from fedpatch.shared.tensors.common_update_checks import untrained


@dataclass(frozen=True)
class FixedValues:
    """The places of such values.

    Attributes:
        places: True at each such value, by name of a tensor that has any.
        base: The global model.

    Example:
        >>> from fedpatch.shared.tensors.arrays import TensorSpec
        >>> schema = Schema((TensorSpec("mask", (2,), "float32", "buffer"),))
        >>> fixed = FixedValues.of({"mask": np.array([0.0, -np.inf], np.float32)}, schema)
        >>> fixed.without({"mask": np.array([0.5, -np.inf], np.float32)})["mask"]
        array([0.5, 0. ], dtype=float32)
        >>> fixed.restored({"mask": np.array([0.5, 0.0], np.float32)})["mask"]
        array([ 0.5, -inf], dtype=float32)
    """

    places: Mapping[str, Array]
    base: Tensors

    @classmethod
    def of(cls, base: Tensors, schema: Schema) -> FixedValues:
        """Find the values of a global model that are not trained and not finite."""
        floats = {name: array for name, array in untrained(base, schema).items() if array.dtype.kind == "f"}
        wrong = {name: ~np.isfinite(array) for name, array in floats.items()}
        return cls({name: places for name, places in wrong.items() if places.any()}, base)

    def without(self, tensors: Tensors) -> Tensors:
        """Return tensors with zeros at the places."""
        if not self.places:
            return tensors
        zeros = {name: np.where(places, 0, tensors[name]) for name, places in self.places.items()}
        return {**tensors, **{name: array.astype(tensors[name].dtype) for name, array in zeros.items()}}

    def restored(self, tensors: dict[str, Array]) -> dict[str, Array]:
        """Return tensors with the values of the global model at the places."""
        return tensors | {
            name: np.where(places, self.base[name], tensors[name]) for name, places in self.places.items()
        }
