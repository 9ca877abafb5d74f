"""What may enter the aggregate, and the aggregate: a mean weighted by the number of examples.

GlobalModelUpdate and GlobalOptimUpdate "average" of the paper's Table 1: the sum over the round's clients of
n_k / n * M_k. Updates are folded in one at a time, so memory is one model however many devices report.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

from fedpatch.shared.errors import SchemaMismatch, UpdateRefused
from fedpatch.shared.tensors.arrays import (
    Array,
    Schema,
    Tensors,
    TensorSpec,
    base_name,
    listing,
    never_negative,
    require_finite,
)
from fedpatch.shared.wire.reason_codes import RefuseReason

# So many values at a time, which stay in the cache between the three steps of a sum and need no memory of their own.
_BLOCK = 65_536


def check_update(tensors: Tensors, schema: Schema, private_names: Collection[str], num_examples: int) -> None:
    """Raise UpdateRefused, with a RefuseReason, unless an update may be folded in.

    `schema` is that of what travels. Private names come first, so that a device which gives away what it should keep
    hears of that and of nothing else.
    """
    check_private(tensors, private_names)
    try:
        schema.check(tensors)
    except SchemaMismatch as error:
        raise UpdateRefused(RefuseReason.SCHEMA_MISMATCH, str(error)) from error
    require_finite(tensors)
    for spec in schema.specs:
        if never_negative(spec) and (tensors[spec.name] < 0).any():
            raise UpdateRefused(RefuseReason.OUT_OF_RANGE, f"{spec.name} has a negative value, which it never can")
    _check_num_examples(num_examples)


def check_private(names: Iterable[str], private_names: Collection[str]) -> None:
    """Raise UpdateRefused("private_value") if one of `names`, or the parameter of such a moment, is private."""
    private = [name for name in names if name in private_names or base_name(name) in private_names]
    if private:
        raise UpdateRefused(
            RefuseReason.PRIVATE_VALUE, f"{listing(private)} must stay on the device; its patch policy is another one"
        )


class WeightedMean:
    """Running mean of updates in float64, weighted by `num_examples`.

    The order of updates changes nothing but the last bits; who needs the very same bits folds in a fixed order.
    """

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.num_updates = 0
        self.num_examples = 0
        self._sums = {spec.name: np.zeros(spec.shape, np.float64) for spec in schema.specs}
        self._weighted = np.empty(min(_BLOCK, max((total.size for total in self._sums.values()), default=0)))

    def add(self, tensors: Tensors, num_examples: int) -> None:
        """Fold in one update. Raises SchemaMismatch or UpdateRefused, with nothing changed, if it does not fit."""
        _check_num_examples(num_examples)
        self.schema.check(tensors)
        for name, total in self._sums.items():
            values, sums = tensors[name].reshape(-1), total.reshape(-1)
            for start in range(0, len(values), _BLOCK):
                part, into = values[start : start + _BLOCK], sums[start : start + _BLOCK]
                weighted = self._weighted[: len(part)]
                np.copyto(weighted, part)
                weighted *= num_examples
                into += weighted
        self.num_updates += 1
        self.num_examples += num_examples

    def result(self) -> dict[str, Array]:
        """Mean of all updates so far in the schema's dtypes, integers rounded. Raises ValueError if there is none."""
        if not self.num_updates:
            raise ValueError("the mean of no updates is undefined; close the round without an aggregate instead")
        return {spec.name: stored(self._sums[spec.name] / self.num_examples, spec) for spec in self.schema.specs}


def stored(mean: Array, spec: TensorSpec) -> Array:
    """A mean in float64 as a tensor of the schema: in its dtype, integers rounded."""
    if np.dtype(spec.dtype).kind != "f":
        # The greatest int64 becomes 2**63 in float64, which would wrap round to the least.
        mean = np.minimum(np.rint(mean), np.nextafter(2.0**63, 0))
    return np.asarray(mean, np.float64).astype(spec.dtype)


def _check_num_examples(num_examples: int) -> None:
    if num_examples < 1:
        raise UpdateRefused(RefuseReason.OUT_OF_RANGE, f"trained on {num_examples} examples; at least 1 is needed")
