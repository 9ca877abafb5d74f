"""A model that differs from another one by a hair, so that its values have a digest of their own.

A device masks one update from the values of a model, whatever run or round asks for it
(device_agent.masking.masking_state_machine). So a coordinator moves a base that it has published before: after a failed
round, at each start, and after each return to an older state. The difference is that of rounding, some steps of float32, and
hides nothing: the sums of two such bases differ about as the sums of one.
"""

from __future__ import annotations

import hashlib
import math
from itertools import accumulate

import numpy as np

from fedpatch.shared.masking.vector_layout import travelling
from fedpatch.shared.tensors.arrays import Array, Schema, Tensors

MOVED_VALUES = 256
"""Values that move: sixteen of them give 2^64 bases."""
MOST_STEPS = 8
"""Greatest distance of a value, in steps of its type. Whole models of masked runs travel without loss."""


def moved(tensors: Tensors, schema: Schema, salt: bytes) -> dict[str, Array]:
    """Return the tensors with a few trained values moved by 1 to MOST_STEPS steps of their type; equal salts move alike.

    Args:
        tensors: The model by name.
        schema: Schema of the tensors that travel.
        salt: Any bytes, which may be public.

    Example:
        >>> from fedpatch.shared.tensors.arrays import TensorSpec
        >>> schema = Schema((TensorSpec("w", (2,), "float32", "weight"),))
        >>> moved({"w": np.ones(2, np.float32)}, schema, b"1")["w"] - np.float32(1)
        array([-4.7683716e-07,  4.7683716e-07], dtype=float32)
    """
    rng = np.random.default_rng(list(hashlib.sha256(salt).digest()))
    specs = [spec for spec in travelling(schema) if spec.trainable]
    sizes = [math.prod(spec.shape) for spec in specs]
    places = np.sort(rng.choice(sum(sizes), min(MOVED_VALUES, sum(sizes)), replace=False))
    steps = rng.integers(1, MOST_STEPS + 1, len(places)) * rng.choice((-1, 1), len(places))
    result = dict(tensors)
    for spec, size, end in zip(specs, sizes, accumulate(sizes), strict=True):
        begin = end - size
        chosen = (places >= begin) & (places < end)
        if chosen.any():
            flat = np.array(tensors[spec.name]).reshape(-1)
            flat[places[chosen] - begin] = _stepped(flat[places[chosen] - begin], steps[chosen])
            result[spec.name] = flat.reshape(spec.shape)
    return result


def _stepped(values: Array, steps: Array) -> Array:
    """Return values some steps away, in float64.

    A value near 0 moves by steps of the least normal number, which no unit flushes to 0.
    """
    least = np.finfo(values.dtype).tiny
    found: Array = values + steps * np.maximum(np.spacing(np.abs(values)), least)
    return found
