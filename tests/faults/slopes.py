"""The growth of a quantity with the rounds, and its uncertainty: least squares over the means of blocks of samples.

Consecutive samples are not independent, so a fit to all samples would report a far too small uncertainty of the slope.
The mean of a block is nearly independent of the mean of the next block.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

BLOCKS = 12
WARM_UP = 0.25
"""Share of the first rounds that the fit leaves out: caches and arenas fill once."""
SIGNIFICANT = 2.0
"""Standard errors."""


@dataclass(frozen=True)
class Slope:
    """Growth per 100 rounds, its standard error, and the mean of the last block, all in the samples' unit."""

    per_100_rounds: float
    standard_error: float
    last: float

    def exceeds(self, bound: float, errors: float = SIGNIFICANT) -> bool:
        """Return whether the growth is above a bound by at least `errors` standard errors, so not by chance."""
        return self.per_100_rounds - errors * self.standard_error > bound


def slope(rounds: Sequence[float], values: Sequence[float]) -> Slope:
    """Return the slope of `values` over `rounds`; ValueError if there are too few samples after the warm-up."""
    x, y = np.asarray(rounds, np.float64), np.asarray(values, np.float64)
    kept = x >= x.min() + WARM_UP * (x.max() - x.min()) if len(x) else np.zeros(0, bool)
    if kept.sum() < BLOCKS:
        raise ValueError(f"{kept.sum()} samples after the warm-up are too few for {BLOCKS} blocks")
    means = [(part_x.mean(), part_y.mean()) for part_x, part_y in _blocks(x[kept], y[kept])]
    x, y = np.asarray(means).T
    spread = x - x.mean()
    gradient = float(spread @ y / (spread @ spread))
    residuals = y - y.mean() - gradient * spread
    error = math.sqrt(residuals @ residuals / (BLOCKS - 2) / (spread @ spread))
    return Slope(100 * gradient, 100 * error, float(y[-1]))


def _blocks(x: np.ndarray, y: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    return list(zip(np.array_split(x, BLOCKS), np.array_split(y, BLOCKS), strict=True))
