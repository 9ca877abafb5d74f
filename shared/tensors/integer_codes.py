"""Values as integers of 8 bits times a scale for each block."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedpatch.shared.tensors.arrays import Array

TOP = 127
"""Greatest code."""

# Relative error of a division that rounding towards zero must tolerate.
_WHOLE = 1e-6


def to_codes(values: Array, block: int, rng: np.random.Generator | None, coarse: float = 0.0) -> tuple[Array, Array]:
    """Quantise values to integers times a scale for each block.

    A scale is as small as the greatest value of its block allows, but at least `coarse` times the block's root mean square.
    Where a few values are far greater than the rest, most codes are then 0, 1 or -1, which compress to a quarter of their
    bytes.

    Args:
        values: Finite values of shape (n,), in magnitude at most `greatest`.
        block: Values in a block; 0: all values are one block.
        rng: Random numbers for unbiased rounding: the expected value of `scale * code` is the value. None: round towards zero.
        coarse: Lower bound of a scale, in units of the root mean square of its block.

    Returns:
        Scales (float32, one per block), and codes (int8, shape (n,), from -TOP to TOP).
    """
    blocks = _in_blocks(values, block)
    highest = np.abs(blocks).max(axis=1).astype(np.float64)
    if coarse:
        count = np.minimum(values.size - np.arange(len(blocks)) * blocks.shape[1], blocks.shape[1])
        square = np.einsum("ij,ij->i", blocks, blocks, dtype=np.float64)
        highest = np.maximum(highest, TOP * coarse * np.sqrt(square / count))
    scales = (highest / TOP).astype(np.float32)
    # A scale that was rounded down would clip the greatest value.
    scales = np.where(scales * np.float64(TOP) < highest, np.nextafter(scales, np.float32(np.inf)), scales)
    steps = blocks / np.where(scales, scales, 1)[:, None].astype(blocks.dtype)
    if rng is None:
        steps *= 1 + _WHOLE  # the greatest value is a whole number of steps, which the division may have missed
    else:
        steps += rng.random(steps.shape, np.float32)
        np.floor(steps, out=steps)
    codes = np.minimum(steps, TOP).astype(np.int8)  # towards zero; the sum of 127 and almost 1 is rounded to 128
    return scales, codes.reshape(-1)[: values.size]


def from_codes(scales: Array, codes: Array, block: int, dtype: np.dtype[Any]) -> Array:
    """Decode the result of `to_codes`.

    Args:
        scales: Any float32 values, one per block.
        codes: Codes, int8, shape (n,).
        block: Values in a block; 0: all values are one block.

    Returns:
        Scale times code, shape (n,). Values may be infinite or NaN, if scales are.
    """
    blocks = _in_blocks(codes, block).astype(dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        blocks *= scales[:, None]
    return blocks.reshape(-1)[: codes.size]


def _in_blocks(values: Array, block: int) -> Array:
    """Return `values` with shape (blocks, block), the last block padded with zeros. With `block` 0 all values are one block."""
    if not block:
        return values.reshape(1, -1) if values.size else values.reshape(0, 1)
    return np.pad(values, (0, -values.size % block)).reshape(-1, block)
