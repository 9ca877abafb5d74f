"""Norms of an update's change, one for each part of a model.

- The weights, that is all trained tensors, have one norm together.
- Statistics of batch norm have a norm per tensor, since the variance of one layer has no relation to the mean of another.
- A moment is measured from its value after the same steps without gradients (norm_pace.Pace), so that
  a bound limits the device's gradients.
- The control variate of SCAFFOLD has a norm of its own.
- Counters (step counts of moments, `num_batches_tracked`) have a norm per tensor.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping

import numpy as np

from fedpatch.coordinator.aggregation.exact_integers import difference, has_large
from fedpatch.shared.tensors.arrays import TRAINABLE, Array, Schema, Tensors, TensorSpec
from fedpatch.shared.wire.plan_terms import CONTROL

Part = str
"""A part of a model with a norm of its own: "weights" (all trained tensors), "exp_avg", "exp_avg_sq", "control", "stats NAME"
for each tensor that is tracked and not trained, "count NAME" for each counter (a moment's steps, a layer's batches)."""

_BATCHES = "num_batches_tracked"
DOT_BLOCK = 8192
"""Values in a block, whose change fits into the processor's cache. From 10,000 values on, OpenBLAS divides a product of two
vectors between threads, which takes ten times the processor's time."""


def norm(tensors: Tensors, base: Tensors, schema: Schema, part: Part = "weights") -> float:
    """Return the L2 norm of an update's change of one part of the model.

    Args:
        tensors: The update.
        base: The global model that it was trained on.
        schema: Names, shapes and dtypes of both.

    Returns:
        The norm; 0 for a part that the schema does not have, infinity where the sum of squares exceeds float64.
    """
    return norms(tensors, base, schema, {part}).get(part, 0.0)


def norms(tensors: Tensors, base: Tensors, schema: Schema, parts: Container[Part] | None = None) -> dict[Part, float]:
    """Return the L2 norm of an update's change by part.

    Args:
        tensors: The update.
        base: The global model that it was trained on.
        schema: Names, shapes and dtypes of both.
        parts: The parts to measure; all of the schema's if left out.
    """
    measured = [spec for spec in schema.specs if (part := part_of(spec)) and (parts is None or part in parts)]
    found = {spec.name: squared_distance(tensors[spec.name], base[spec.name]) for spec in measured}
    return norms_of(found, schema)


def norms_of(squares: Mapping[str, float], schema: Schema) -> dict[Part, float]:
    """Return the L2 norm by part.

    Args:
        squares: The squared L2 distance by tensor; tensors that are missing here, or have no part, are left out.
        schema: The tensors in the order in which squares are added.
    """
    sums: dict[Part, float] = {}
    for spec in schema.specs:
        if spec.name in squares and (part := part_of(spec)):
            sums[part] = sums.get(part, 0.0) + squares[spec.name]
    return {part: math.sqrt(sums[part]) for part in sorted(sums)}


def measured_from(base: Tensors, schema: Schema) -> dict[str, Array]:
    """Return the tensors of the global model from which norms are measured, in float64.

    Moments have origins of their own, and tensors of large integers are measured apart (`exact_squares`).
    """
    return {
        spec.name: base[spec.name].astype(np.float64)
        for spec in schema.specs
        if spec.role != "moment" and part_of(spec) and not has_large(base[spec.name])
    }


def exact_squares(tensors: Tensors, base: Tensors, schema: Schema) -> dict[str, float]:
    """Return the squared L2 distance by name for the tensors in which the global model has large integers.

    Args:
        tensors: The update.
        base: The global model.
    """
    names = (name for name in schema.names if has_large(base[name]))
    return {name: squared_distance(tensors[name], base[name]) for name in names}


def squared_distance(end: Array, start: Array) -> float:
    """Return the squared L2 distance of two tensors of one shape, in float64; infinity beyond the range of float64."""
    ends, starts, total = end.reshape(-1), start.reshape(-1), 0.0
    with np.errstate(over="ignore"):
        for first in range(0, len(ends), DOT_BLOCK):
            block = slice(first, first + DOT_BLOCK)
            change = difference(ends[block], starts[block])
            total += float(np.dot(change, change))
    return total


def squared_norm(change: Array) -> float:
    """Return the squared L2 norm of a float64 tensor; for a change, equal to `squared_distance` to the last bit."""
    flat = change.reshape(-1)
    with np.errstate(over="ignore"):
        blocks = (flat[first : first + DOT_BLOCK] for first in range(0, len(flat), DOT_BLOCK))
        return sum((float(np.dot(block, block)) for block in blocks), 0.0)


def weights_norm(base: Tensors, schema: Schema) -> float:
    """Return the L2 norm of all trained tensors."""
    return math.sqrt(
        sum(float(np.sum(np.square(base[spec.name], dtype=np.float64))) for spec in schema.specs if spec.trainable)
    )


def part_of(spec: TensorSpec) -> Part:
    """The part of a tensor; "" for a tensor without a norm."""
    if spec.role in TRAINABLE:
        return "weights"
    if spec.role != "moment":
        if np.dtype(spec.dtype).kind == "b":
            return ""
        return f"{'count' if spec.name.endswith(_BATCHES) else 'stats'} {spec.name}"
    moment = spec.name.rpartition(":")[2]
    return moment if moment in ("exp_avg", "exp_avg_sq", CONTROL) else f"count {spec.name}"


def bounded_alone(part: Part) -> bool:
    """Return whether a part has a bound of its own, which the other parts do not share: statistics and counters."""
    return part.startswith(("stats ", "count "))


def counts(part: Part) -> bool:
    """Return whether the part is a counter."""
    return part.startswith("count ")
