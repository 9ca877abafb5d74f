"""Clipping: an update beyond its bound is moved back along the straight line to the global model of its round.

All functions depend on the updates as a set. The order of their arrival and the order of their names do not matter.

Within its bound an update is used unchanged, to the last bit. Properties that hold on the whole line stay true (second moments
are not negative, first moments are no greater than the second moments allow). For that reason first and second moments are
clipped by the same factor, and by the factor of the weights if the weights are beyond their bound. Weights within their bound
stay. Each tensor of statistics is clipped alone. If any part of an update is clipped, its control variate (SCAFFOLD) counts as
unchanged. The device keeps its previous one, so that the server's control variate stays the mean of the devices' control
variates.

`update_norms` has the parts and their norms, `reference_norms` and `norm_limits` the bounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fedpatch.coordinator.aggregation.exact_integers import difference
from fedpatch.coordinator.aggregation.update_norms import Part, bounded_alone, norms, part_of
from fedpatch.shared.tensors.arrays import Array, Schema, Tensors, TensorSpec
from fedpatch.shared.wire.plan_terms import CONTROL


def clip(
    tensors: Tensors,
    base: Tensors,
    schema: Schema,
    limits: Mapping[Part, float],
    found: Mapping[Part, float] | None = None,
) -> Clipped | None:
    """Clip an update so that no part's norm is beyond its limit.

    Args:
        tensors: The update.
        base: The model from which its norms are measured (`Pace.origin`).
        schema: Names, shapes and dtypes of both.
        limits: The greatest norm by part (`limits_of`).
        found: The `norms` of all parts, if they are known.

    Returns:
        The clipped update; None for an update within all limits.
    """
    found = norms(tensors, base, schema, limits) if found is None else found
    # A little less, since the products below may round up.
    factors = {
        part: limits[part] / value * (1 - 1e-12) for part, value in found.items() if value > limits.get(part, math.inf)
    }
    if not factors:
        return None
    together = factors.get("weights", 1.0)
    both = min(together, factors.get("exp_avg", together), factors.get("exp_avg_sq", together))

    def factor(spec: TensorSpec) -> float:
        part = part_of(spec)
        if part == "weights":
            return together
        if part == CONTROL:
            return 0.0
        if not bounded_alone(part):
            return both
        # Integers do not follow the weights: no value lies between two of them.
        alone = factors.get(part, 1.0)
        return min(alone, together) if np.dtype(spec.dtype).kind == "f" else alone

    pulled = {spec.name: interpolate_toward(tensors[spec.name], base[spec.name], factor(spec)) for spec in schema.specs}
    return Clipped(pulled, {part: found[part] / limits[part] if limits[part] else math.inf for part in factors})


@dataclass(frozen=True)
class Clipped:
    """A clipped update.

    Attributes:
        tensors: The tensors that are aggregated.
        times: The norm as a multiple of its limit, by part that was beyond its limit.
    """

    tensors: dict[str, Array]
    times: dict[Part, float]


def interpolate_toward(end: Array, start: Array, factor: float) -> Array:
    """Return start + factor * (end - start), rounded towards `start` so that no change grows.

    Args:
        end: The tensor of the update.
        start: The tensor of the global model, of the same shape and dtype.
        factor: From 0 to 1.
    """
    if end.dtype.kind not in "fiu" or factor == 1.0:
        return end
    if end.dtype.kind != "f":
        way = np.trunc(factor * difference(end, start))
        return np.asarray(start + way.astype(np.int64), end.dtype)
    origin = start.astype(np.float64)
    # An infinite norm has the factor 0, and 0 times an infinite change is NaN.
    exact = origin + (factor * (end - origin) if factor > 0 else 0.0)
    moved = np.asarray(exact, end.dtype)
    too_far = np.abs(moved.astype(np.float64) - origin) > np.abs(exact - origin)
    return np.where(too_far, np.nextafter(moved, start), moved)
