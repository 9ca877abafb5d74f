"""Skellam noise from a secret seed: a device's share of the noise on the sum of its group.

The difference of two independent Poisson numbers of mean v / 2 has the variance v, and probabilities that fall from k - 1 to k
by the ratio r(k) = I_k(v) / I_{k-1}(v) of modified Bessel functions (Skellam 1946). The ratios follow backwards from

    r(k) = 1 / (2 k / v + r(k + 1))

(Abramowitz and Stegun 1964, 9.6.26) without cancellation. A table of tails turns uniform numbers of 63 bits into magnitudes; a
further bit is the sign. Probabilities are correct to a relative error of 1e-12; no value is beyond nine standard deviations.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from fedpatch.shared.masking.keys import keystream
from fedpatch.shared.privacy.skellam import SkellamNoise
from fedpatch.shared.tensors.arrays import Array

_BYTES = 8
_UNIFORM_BITS = 63
_REACH = 13.0
"""Standard deviations that the table covers; a number of 63 bits reaches at most 9.2."""


def skellam_values(noise: SkellamNoise, size: int) -> Array:
    """Return a device's noise, int64 of shape (size,); the same seed and variance give the same values.

    Example:
        >>> skellam_values(SkellamNoise(bytes(32), variance=9.0), 6)
        array([-5,  3,  4, -2, -5,  2])
    """
    words = np.frombuffer(keystream(noise.seed, _BYTES * size), "<u8")
    tails = _tails(noise.variance)
    uniform = (words & np.uint64(2**_UNIFORM_BITS - 1)).astype(np.int64)
    magnitudes = len(tails) - np.searchsorted(tails, uniform, side="right")
    signed: Array = np.where(words >> np.uint64(_UNIFORM_BITS), -magnitudes, magnitudes)
    return signed


@lru_cache(maxsize=4)
def _tails(variance: float) -> Array:
    """Return 2^63 times the probability of a magnitude above K - 1, ..., 1, 0, which ascends."""
    reach = math.ceil(_REACH * math.sqrt(variance)) + 40
    ratios, ratio = np.empty(reach), 0.0
    for place in range(2 * reach, 0, -1):
        ratio = 1.0 / (2.0 * place / variance + ratio)
        if place <= reach:
            ratios[place - 1] = ratio
    falls = np.cumprod(ratios)  # probability of k = 1, 2, ... over that of 0
    above = np.cumsum(falls[::-1])
    tails: Array = np.floor(2 * above / (1 + 2 * above[-1]) * 2.0**_UNIFORM_BITS).astype(np.int64)
    return tails
