"""Gaussian noise from random bytes, and the mean of clipped updates, in which the noise hides each device.

The arithmetic is exact where differential privacy needs it. Clipped changes are rounded towards zero to multiples of a grid,
2^-20 of the noise's standard deviation or finer; the noise is rounded to the same grid. A float64 sum of such multiples has no
rounding error, so the order of the updates changes no bit, and the lowest bits of the result do not reveal the unrounded noise
(Mironov 2012, "On Significance of the Least Significant Bits for Differential Privacy").
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import numpy as np

from fedpatch.coordinator.aggregation.privacy_policy import PrivacyPolicy
from fedpatch.coordinator.aggregation.weighted_mean import stored
from fedpatch.shared.tensors.arrays import Array, Schema, Tensors

_GRID_BITS = 20
_BYTES_PER_PAIR = 16
_LESS = 1 - 1e-12  # the product with the factor may round up


def random_bytes_for(values: int) -> int:
    """Return the number of random bytes that `normals` needs for this number of values."""
    return -(-values // 2) * _BYTES_PER_PAIR


def normals(data: bytes, values: int) -> Array:
    """Return standard normal values from uniform random bytes (Box and Muller 1958).

    Args:
        data: `random_bytes_for(values)` random bytes.

    Returns:
        A float64 vector of length `values`, the same for the same bytes. No value is beyond 8.6.

    Raises:
        ValueError: There are more or fewer bytes.

    Example:
        >>> normals(bytes(16), 1).round(2)
        array([8.57])
    """
    if len(data) != random_bytes_for(values):
        raise ValueError(f"{len(data)} random bytes do not make {values} values; give {random_bytes_for(values)}")
    words = (np.frombuffer(data, "<u8") >> np.uint64(11)).reshape(-1, 2)
    radius = np.sqrt(-2.0 * np.log((words[:, 0].astype(np.float64) + 1.0) * 2.0**-53))
    angle = 2.0 * math.pi * (words[:, 1].astype(np.float64) * 2.0**-53)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).reshape(-1)[:values]


def values_of(schema: Schema) -> int:
    """Return the number of values of all tensors of the schema, which is the length of the noise."""
    return sum(math.prod(spec.shape) for spec in schema.specs)


def private_mean(
    updates: Iterable[Tensors], noise: Array, *, schema: Schema, base: Tensors, policy: PrivacyPolicy, denominator: int
) -> dict[str, Array]:
    """Return the global model plus the noised mean of the clipped changes (McMahan et al. 2018, Algorithm 1, DP-FedAvg).

    Each change counts alike, and is clipped to the L2 norm `policy.clip` over all values together. The sum is divided by
    `denominator`, for any number of updates: a mean over the devices that reported would need noise on that number too.

    Args:
        updates: The tensors of each update, in any order; one at a time is in memory.
        noise: Standard normal values (`normals`), `values_of(schema)` of them.
        schema: Names, shapes and dtypes of the tensors, all trained.
        base: The global model that the updates were trained on.
        denominator: Devices that the round was meant for.

    Returns:
        The next global model by name, in the dtypes of the schema. Noise without any update is a valid result.

    Raises:
        ValueError: The noise has another length.
    """
    if noise.shape != (values_of(schema),):
        raise ValueError(f"noise of shape {noise.shape} does not fit {values_of(schema)} values")
    deviation = policy.noise_multiplier * policy.clip
    grid = 2.0 ** (math.floor(math.log2(deviation)) - _GRID_BITS)
    origin = _flat(base, schema)
    total = np.rint(noise * (deviation / grid))
    for update in updates:
        with np.errstate(over="ignore"):
            change = _flat(update, schema) - origin
            norm = math.sqrt(float(np.dot(change, change)))
        # An infinite norm has the factor 0, and 0 times an infinite change is NaN.
        if math.isfinite(norm):
            total += np.trunc(change * (min(1.0, policy.clip / norm * _LESS if norm > 0 else 1.0) / grid))
    return _cut(origin + total * (grid / denominator), schema)


def _flat(tensors: Mapping[str, Array], schema: Schema) -> Array:
    """Return all tensors as one float64 vector."""
    return np.concatenate([np.zeros(0), *(tensors[spec.name].reshape(-1) for spec in schema.specs)])


def _cut(vector: Array, schema: Schema) -> dict[str, Array]:
    """Undo `_flat`, in the dtypes of the schema."""
    tensors, start = {}, 0
    for spec in schema.specs:
        end = start + math.prod(spec.shape)
        tensors[spec.name] = stored(vector[start:end].reshape(spec.shape), spec)
        start = end
    return tensors
