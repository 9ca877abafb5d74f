"""Quantisation: numbers in few bits. Decoding gives the same bits on every machine.

There are three formats, each a pair of pure functions between a flat array and bytes.

- bf16: the upper half of a float32, rounded to nearest even. All upper bytes come before all lower ones, for each kind alone
  compresses better.
- Codes: integers times a scale for each block, rounded at random so that the expected value is exact (Alistarh et al. 2017,
  QSGD, section 3).
- Levels: non-negative values on a grid of eight levels per octave. They are for second moments, a third of which would be
  zero in fp16.

Decoding uses only IEEE sums, products and `ldexp` of literal numbers. It uses no logarithm, because the last bit of a
logarithm depends on the machine.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedpatch.shared.tensors.arrays import Array

Rng = np.random.Generator

INT8_TOP = 127
INT4_TOP = 7
# Relative error of a division that rounding towards zero must tolerate.
_WHOLE = 1e-6
LEVELS_PER_OCTAVE = 8
HIGHEST_CODE = 255
"""Code of the highest level of a tensor. Code 1 is the level 254 below and all lower ones, code 0 is zero."""

# 2 ** (i / 8) for i = 0 .. 8.
_OCTAVE = np.array(
    [
        1.0,
        1.0905077326652577,
        1.189207115002721,
        1.2968395546510096,
        1.4142135623730951,
        1.5422108254079407,
        1.681792830507429,
        1.8340080864093424,
        2.0,
    ]
)
_HALFWAY = (_OCTAVE[:-1] + _OCTAVE[1:]) / 2


# --- bf16 -----------------------------------------------------------------------------------------


def to_bf16(values: Array) -> bytes:
    """Return two bytes per value: all upper bytes, then all lower ones. `values` are finite."""
    words = values.astype(np.float32).view(np.uint32)
    halves = ((words + np.uint32(0x7FFF) + ((words >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype("<u2")
    return halves.view(np.uint8).reshape(-1, 2)[:, ::-1].T.tobytes()


def from_bf16(data: memoryview) -> Array:
    """Return the float32 values of `data`, one for each two bytes."""
    planes = np.frombuffer(data, np.uint8).reshape(2, -1)
    halves = np.ascontiguousarray(planes[::-1].T).view("<u2").reshape(-1)
    return (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)


# --- codes and scales -----------------------------------------------------------------------------


def to_codes(values: Array, top: int, block: int, rng: Rng | None, coarse: float = 0.0) -> tuple[Array, Array]:
    """Quantise values to integers times a scale for each block.

    A scale is as small as the greatest value of its block allows, but at least `coarse` times the block's root mean square.
    Where a few values are far greater than the rest, most codes are then 0, 1 or -1, which compress to a quarter of their
    bytes.

    Args:
        values: Finite values of shape (n,), in magnitude at most shared.tensors.encodings.greatest.
        top: Greatest code, at most 127.
        block: Values in a block; 0: all values are one block.
        rng: Random numbers for unbiased rounding: the expected value of `scale * code` is the value. None: round towards zero.
        coarse: Lower bound of a scale, in units of the root mean square of its block.

    Returns:
        Scales (float32, one per block), and codes (int8, shape (n,), from -top to top).
    """
    blocks = _in_blocks(values, block)
    highest = np.abs(blocks).max(axis=1, initial=0).astype(np.float64)
    if coarse:
        count = np.minimum(values.size - np.arange(len(blocks)) * blocks.shape[1], blocks.shape[1])
        square = np.einsum("ij,ij->i", blocks, blocks, dtype=np.float64)
        highest = np.maximum(highest, top * coarse * np.sqrt(square / count))
    scales = (highest / top).astype(np.float32)
    # A scale that was rounded down would clip the greatest value.
    scales = np.where(scales * np.float64(top) < highest, np.nextafter(scales, np.float32(np.inf)), scales)
    steps = blocks / np.where(scales, scales, 1)[:, None].astype(blocks.dtype)
    if rng is None:
        steps *= 1 + _WHOLE  # the greatest value is a whole number of steps, which the division may have missed
        np.trunc(steps, out=steps)
    else:
        steps += rng.random(steps.shape, np.float32)
        np.floor(steps, out=steps)
    codes = np.minimum(steps, top).astype(np.int8)  # the sum of 127 and almost 1 is rounded to 128
    return scales, codes.reshape(-1)[: values.size]


def from_codes(scales: Array, codes: Array, block: int, dtype: np.dtype[Any]) -> Array:
    """Decode the result of `to_codes`.

    Args:
        scales: Any float32 values, one per block.
        codes: Codes, int8, shape (n,).
        block: Values in a block; 0: all values are one block.
        dtype: The dtype of the result.

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
    return np.append(values, np.zeros(-values.size % block, values.dtype)).reshape(-1, block)


def to_nibbles(codes: Array) -> bytes:
    """Return two codes (-8 to 7) per byte, the first in the lower half."""
    halves = codes.view(np.uint8) & 15
    if len(halves) % 2:
        halves = np.append(halves, np.uint8(0))
    return (halves[0::2] | (halves[1::2] << 4)).tobytes()


def from_nibbles(data: memoryview, size: int) -> Array:
    """Return `size` codes (int8) from half as many bytes."""
    packed = np.frombuffer(data, np.int8)
    codes = np.empty(2 * len(packed), np.int8)
    np.left_shift(packed, 4, out=codes[0::2])
    codes[0::2] >>= 4
    np.right_shift(packed, 4, out=codes[1::2])
    return codes[:size]


# --- levels ---------------------------------------------------------------------------------------


def to_levels(values: Array, base: Array, rng: Rng) -> tuple[int, Array]:
    """Quantise non-negative values to levels, and return them as differences to the levels of a base.

    The expected value is exact. A positive value below the lowest level that has a code becomes that level, not zero: a
    second moment of zero would let Adam take a step of any size.

    Args:
        values: Finite values of shape (n,), at least 0 and at most shared.tensors.encodings.greatest.
        base: Values of the base, shape (n,).
        rng: Random numbers for unbiased rounding.

    Returns:
        The highest level, and the codes less the base's codes under the same highest level, modulo 256 (uint8, shape (n,)).
    """
    mantissa, place, octave = _parts(values)
    share = (mantissa - _OCTAVE[place]) / (_OCTAVE[place + 1] - _OCTAVE[place])
    levels = octave + place + (rng.random(values.shape, np.float32) < share)
    positive = values > 0
    top = int(levels[positive].max(initial=-32768))
    return top, _codes_of(levels, positive, top) - _base_codes(base, top)


def from_levels(top: int, codes: Array, base: Array, dtype: np.dtype[Any]) -> Array:
    """Decode the result of `to_levels`.

    Args:
        top: The highest level, any signed 16-bit number.
        codes: Any uint8 values, shape (n,).
        base: Values of the base, shape (n,).
        dtype: The dtype of the result.

    Returns:
        Values of shape (n,), at least 0; they may be infinite.
    """
    codes = codes + _base_codes(base, top)
    # A table of all 256 codes is cheaper than a computation for each value.
    levels = np.arange(256, dtype=np.int32) + np.int32(top - HIGHEST_CODE)
    with np.errstate(over="ignore"):
        table = np.ldexp(_OCTAVE[levels % LEVELS_PER_OCTAVE], levels // LEVELS_PER_OCTAVE).astype(dtype)
    table[0] = 0
    return np.asarray(table[codes])


def _base_codes(base: Array, top: int) -> Array:
    positive = np.isfinite(base) & (base > 0)
    mantissa, place, octave = _parts(np.where(positive, base, 0))
    return _codes_of(octave + place + (mantissa >= _HALFWAY[place]), positive, top)


def _codes_of(levels: Array, positive: Array, top: int) -> Array:
    return np.where(positive, np.clip(levels + np.int32(HIGHEST_CODE - top), 1, HIGHEST_CODE), 0).astype(np.uint8)


def _parts(values: Array) -> tuple[Array, Array, Array]:
    """Return the mantissa (1 to below 2), the level within the octave at or below it, and the octave's first level."""
    mantissa, exponent = np.frexp(values)
    mantissa = np.maximum(2 * mantissa.astype(np.float64), 1)  # 1 for a zero, too
    # 2 ** x lies below its chord, by less than one level, so the chord gives the right level or the one below.
    place = ((mantissa - 1) * LEVELS_PER_OCTAVE).astype(np.int32)
    place += mantissa >= _OCTAVE[place + 1]
    return mantissa, place, LEVELS_PER_OCTAVE * (exponent - 1)
