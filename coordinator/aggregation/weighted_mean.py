"""The mean of updates, weighted by their numbers of examples.

GlobalModelUpdate and GlobalOptimUpdate "average" of the paper's Table 1: the sum over the round's clients of
n_k / n * M_k. Updates are added one at a time, so that memory is one model for any number of devices.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fedpatch.coordinator.aggregation.exact_integers import LargeIntegers
from fedpatch.coordinator.aggregation.update_norms import DOT_BLOCK
from fedpatch.shared.tensors.arrays import Array, Schema, Tensors, TensorSpec
from fedpatch.shared.tensors.common_update_checks import check_num_examples

# Values that are added at a time: they stay in the processor's cache between the three steps of a sum.
_BLOCK = 65_536


class WeightedSum:
    """Running sum of tensors in float64, each times its weight. Memory is one model.

    Args:
        shapes: Shapes of the tensors by name.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.weight = 0.0
        self.sums = {name: np.zeros(shape) for name, shape in shapes.items()}
        self._weighted = np.empty(min(_BLOCK, max((total.size for total in self.sums.values()), default=0)))

    def add(self, tensors: Tensors, weight: float) -> None:
        """Add the tensors of the sum's names, times `weight`."""
        for name, total in self.sums.items():
            values, sums = tensors[name].reshape(-1), total.reshape(-1)
            for start in range(0, len(values), _BLOCK):
                part, into = values[start : start + _BLOCK], sums[start : start + _BLOCK]
                weighted = self._weighted[: len(part)]
                np.multiply(part, weight, out=weighted, dtype=np.float64)
                into += weighted
        self.weight += weight

    def add_measured(self, tensors: Tensors, weight: float, origins: Tensors) -> dict[str, float]:
        """Add tensors as `add` does, and measure them in the same pass, which casts each value to float64 once.

        Args:
            tensors: Tensors of the sum's names.
            origins: Tensors by name from which distances are measured.

        Returns:
            The squared L2 distance from each of `origins` by name, equal to `squared_distance` to the last bit.
        """
        found = {}
        with np.errstate(over="ignore"):
            for name, total in self.sums.items():
                origin = origins[name].reshape(-1) if name in origins else None
                squared = self._add_tensor(total.reshape(-1), tensors[name].reshape(-1), weight, origin)
                if origin is not None:
                    found[name] = squared
        self.weight += weight
        return found

    def _add_tensor(self, sums: Array, values: Array, weight: float, origin: Array | None) -> float:
        squared = 0.0
        for start in range(0, len(values), DOT_BLOCK):
            block = slice(start, start + DOT_BLOCK)
            into = sums[block]
            wide = self._weighted[: len(into)]
            np.copyto(wide, values[block])
            if origin is not None:
                change = np.subtract(wide, origin[block])
                squared += float(np.dot(change, change))
            wide *= weight
            into += wide
        return squared


class WeightedMean:
    """Running mean of updates in float64, weighted by their numbers of examples.

    The order of the updates changes the last bits only. For equal bits, add them in a fixed order.

    Args:
        schema: Names, shapes and dtypes of the updates.
        base: The global model, by whose large integers those of the updates are measured.

    Example:
        >>> schema = Schema((TensorSpec("w", (1,), "float32", "weight"),))
        >>> mean = WeightedMean(schema)
        >>> mean.add({"w": np.array([1.0], np.float32)}, num_examples=1)
        >>> mean.add({"w": np.array([4.0], np.float32)}, num_examples=2)
        >>> mean.result()["w"]
        array([3.], dtype=float32)
    """

    def __init__(self, schema: Schema, base: Tensors | None = None) -> None:
        self.schema = schema
        self.num_updates = 0
        self._sum = WeightedSum({spec.name: spec.shape for spec in schema.specs})
        self._integers = LargeIntegers(base or {}, schema if base else Schema(()))

    @property
    def weight(self) -> float:
        """The examples of all updates."""
        return self._sum.weight

    def add(self, tensors: Tensors, num_examples: int, factor: float = 1.0) -> None:
        """Add one update.

        Args:
            num_examples: The examples that it weighs.
            factor: Factor of that weight.

        Raises:
            SchemaMismatch, UpdateRefused: The update does not fit; the mean is unchanged.
        """
        self._check(tensors, num_examples)
        self._sum.add(self._integers.differences(tensors), num_examples * factor)

    def add_measured(
        self, tensors: Tensors, num_examples: int, factor: float = 1.0, *, origins: Tensors
    ) -> dict[str, float]:
        """Add an update as `add` does; return the squared L2 distances from `origins` by name (`WeightedSum.add_measured`).

        Args:
            num_examples: The examples that it weighs.
            factor: Factor of that weight.
            origins: Tensors by name from which distances are measured, without tensors of large integers.

        Raises:
            SchemaMismatch, UpdateRefused: As `add`.
        """
        self._check(tensors, num_examples)
        return self._sum.add_measured(self._integers.differences(tensors), num_examples * factor, origins)

    def _check(self, tensors: Tensors, num_examples: int) -> None:
        check_num_examples(num_examples)
        self.schema.check(tensors)
        self.num_updates += 1

    def result(self) -> dict[str, Array]:
        """Return the mean of all updates in the schema's dtypes, integers rounded; raise ValueError if there is none."""
        if not self.weight:
            raise ValueError("the mean of no updates is undefined")
        means = {spec.name: self._sum.sums[spec.name] / self.weight for spec in self.schema.specs}
        return {spec.name: stored(means[spec.name], spec) for spec in self.schema.specs} | self._integers.advanced(
            means
        )


def stored(mean: Array, spec: TensorSpec) -> Array:
    """Return a mean in float64 in the dtype of `spec`, integers rounded."""
    if np.dtype(spec.dtype).kind != "f":
        # The greatest int64 becomes 2**63 in float64, which would overflow to the least int64.
        mean = np.minimum(np.rint(mean), np.nextafter(2.0**63, 0))
    return np.asarray(mean).astype(spec.dtype)
