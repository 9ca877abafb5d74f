"""Levels: non-negative values as eighths of an octave, written as differences to the levels of a base."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedpatch.shared.tensors.arrays import Array

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


def to_levels(values: Array, base: Array, rng: np.random.Generator) -> tuple[int, Array]:
    """Quantise non-negative values to levels, and return them as differences to the levels of a base.

    The expected value is exact. A positive value below the lowest level that has a code becomes that level, not zero: a
    second moment of zero would let Adam take a step of any size.

    Args:
        values: Finite values of shape (n,), at least 0 and at most `greatest`.
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
