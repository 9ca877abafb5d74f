"""Numbers in few bits, and back to the same bits on every machine.

Three ways, each a pair of pure functions between a flat array and bytes. bf16: the upper half of a float32, rounded to
nearest even, all upper bytes before all lower ones, since each kind alone compresses better. Codes: integers times a scale
for each block, rounded at random, so that the mean of many roundings is the value (Alistarh et al. 2017, QSGD, section 3).
Levels: values that are never negative, on a grid of eight levels an octave, for second moments, of which a third would be
zero in fp16. The way back takes nothing but IEEE sums, products and `ldexp` of literal numbers: no logarithm, whose last bit
depends on the machine.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedpatch.shared.tensors.arrays import Array

Rng = np.random.Generator

INT8_TOP = 127
INT4_TOP = 7
_WHOLE = 1e-6
LEVELS_PER_OCTAVE = 8
HIGHEST_CODE = 255
"""Of a level: it stands for the highest level of its tensor, 1 for the one 254 below and for all that are lower, 0 for zero."""

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


def wide(dtype: Any) -> np.dtype[Any]:
    """What values of `dtype` are computed in: float32, or float64 where they are that already."""
    return np.result_type(dtype, np.float32)


def greatest(dtype: Any) -> float:
    """Values up to this can be written in any way here: no rounding and no sum of two comes near an infinity."""
    return min(float(np.finfo(dtype).max), float(np.finfo(np.float32).max)) / 4


# --- bf16 -----------------------------------------------------------------------------------------


def to_bf16(values: Array) -> bytes:
    """Two bytes a value: all upper ones, then all lower ones. `values` are finite and at most `greatest`."""
    words = values.astype(np.float32).view(np.uint32)
    halves = ((words + np.uint32(0x7FFF) + ((words >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype("<u2")
    return halves.view(np.uint8).reshape(-1, 2)[:, ::-1].T.tobytes()


def from_bf16(data: memoryview) -> Array:
    """float32, half as many as there are bytes."""
    planes = np.frombuffer(data, np.uint8).reshape(2, -1)
    halves = np.ascontiguousarray(planes[::-1].T).view("<u2").reshape(-1)
    return (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)


# --- codes and scales -----------------------------------------------------------------------------


def block_count(size: int, block: int) -> int:
    """Blocks of `block` values that hold `size` values; 0: all are one block."""
    return -(-size // block) if block else min(size, 1)


def to_codes(values: Array, top: int, block: int, rng: Rng | None, coarse: float = 0.0) -> tuple[Array, Array]:
    """Scales (float32, one a block) and codes (int8, -top to top) of finite values, at most `greatest`.

    The mean of `scale * code` over all that `rng` may draw is the value; without `rng` it is rounded towards zero. A scale is
    as small as the greatest value allows, but no smaller than `coarse` times the root mean square of its block: where a few
    values are far greater than the rest, most codes are then 0, 1 or -1, which compress to a quarter of their bytes.
    """
    blocks = _in_blocks(values, block)
    highest = np.abs(blocks).max(axis=1, initial=0).astype(np.float64)
    if coarse:
        count = np.minimum(values.size - np.arange(len(blocks)) * blocks.shape[1], blocks.shape[1])
        square = np.einsum("ij,ij->i", blocks, blocks, dtype=np.float64)
        highest = np.maximum(highest, top * coarse * np.sqrt(square / np.maximum(count, 1)))
    scales = (highest / top).astype(np.float32)
    # Rounded down, a scale would cut off the greatest value.
    scales = np.where(scales * np.float64(top) < highest, np.nextafter(scales, np.float32(np.inf)), scales)
    steps = blocks / np.where(scales, scales, 1)[:, None].astype(blocks.dtype)
    if rng is None:
        steps *= 1 + _WHOLE  # the greatest value is a whole number of steps, whatever the division has made of it
        np.trunc(steps, out=steps)
    else:
        steps += rng.random(steps.shape, np.float32)
        np.floor(steps, out=steps)
    codes = np.clip(steps, -top, top).astype(np.int8)
    return scales, codes.reshape(-1)[: values.size]


def from_codes(scales: Array, codes: Array, block: int, dtype: np.dtype[Any]) -> Array:
    """Undo `to_codes`: scale times code in `dtype`, whatever the scales are."""
    blocks = _in_blocks(codes, block).astype(dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        blocks *= scales[:, None].astype(dtype)
    return blocks.reshape(-1)[: codes.size]


def _in_blocks(values: Array, block: int) -> Array:
    """Shape (blocks, block), the last one filled up with zeros."""
    rows = block_count(values.size, block)
    if not block or not rows:
        return values.reshape(rows, -1) if rows else values.reshape(0, 1)
    missing = rows * block - values.size
    return (np.append(values, np.zeros(missing, values.dtype)) if missing else values).reshape(rows, block)


def to_nibbles(codes: Array) -> bytes:
    """Two codes (-8 to 7) a byte, the first in the lower half."""
    halves = codes.view(np.uint8) & 15
    if len(halves) % 2:
        halves = np.append(halves, np.uint8(0))
    return (halves[0::2] | (halves[1::2] << 4)).tobytes()


def from_nibbles(data: memoryview, size: int) -> Array:
    """`size` codes from half as many bytes."""
    packed = np.frombuffer(data, np.int8)
    codes = np.empty(2 * len(packed), np.int8)
    np.left_shift(packed, 4, out=codes[0::2])
    codes[0::2] >>= 4
    np.right_shift(packed, 4, out=codes[1::2])
    return codes[:size]


# --- levels ---------------------------------------------------------------------------------------


def to_levels(values: Array, base: Array, rng: Rng) -> tuple[int, Array]:
    """The highest level, and codes (uint8) less those of `base` under the same highest level, modulo 256.

    `values` are finite, at least 0 and at most `greatest`. The mean over all that `rng` may draw is the value, or the lowest
    level that there is a code for, where the value is below that but not zero: a second moment that became zero would
    make a step of any size.
    """
    mantissa, place, octave = _parts(values)
    share = (mantissa - _OCTAVE[place]) / (_OCTAVE[place + 1] - _OCTAVE[place])
    levels = octave + place + (rng.random(values.shape, np.float32) < share)
    some = values > 0
    top = int(levels[some].max(initial=-32768))
    return top, _codes_of(levels, some, top) - _base_codes(base, top)


def from_levels(top: int, codes: Array, base: Array, dtype: np.dtype[Any]) -> Array:
    """Undo `to_levels`, whatever the codes and `top` (a signed 16-bit number) are."""
    codes = codes + _base_codes(base, top)
    # One value for each code: there are only 256.
    levels = np.arange(256, dtype=np.int32) + np.int32(top - HIGHEST_CODE)
    with np.errstate(over="ignore", under="ignore"):
        table = np.ldexp(_OCTAVE[levels % LEVELS_PER_OCTAVE], levels // LEVELS_PER_OCTAVE).astype(dtype)
    table[0] = 0
    return np.asarray(table[codes])


def _base_codes(base: Array, top: int) -> Array:
    some = np.isfinite(base) & (base > 0)
    mantissa, place, octave = _parts(np.where(some, base, 0))
    return _codes_of(octave + place + (mantissa >= _HALFWAY[place]), some, top)


def _codes_of(levels: Array, some: Array, top: int) -> Array:
    return np.where(some, np.clip(levels + np.int32(HIGHEST_CODE - top), 1, HIGHEST_CODE), 0).astype(np.uint8)


def _parts(values: Array) -> tuple[Array, Array, Array]:
    """Of positive values: mantissa from 1 to below 2, the level of the octave at or below it, the octave's first level."""
    mantissa, exponent = np.frexp(values)
    mantissa = np.maximum(2 * mantissa.astype(np.float64), 1)  # 1 for a zero, too
    # A power of two lies below its chord, by less than one level: the chord gives the level or the one before it.
    place = ((mantissa - 1) * LEVELS_PER_OCTAVE).astype(np.int32)
    place += mantissa >= _OCTAVE[place + 1]
    return mantissa, place, LEVELS_PER_OCTAVE * (exponent - 1)
