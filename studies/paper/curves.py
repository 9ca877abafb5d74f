"""Curves of the paper's figures: means with their confidence, smoothing, positions of local steps, and the legend."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Two-sided 95 % quantiles of Student's t, by degrees of freedom from 1.
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
_Z95 = 1.959964


def mean_and_confidence(curves: Sequence[Sequence[float]]) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the mean of n curves of the same length, and half the width of its 95 % confidence interval (Student's t).

    For one curve the width is None.
    """
    values = np.asarray(curves, dtype=np.float64)
    mean: np.ndarray = values.mean(axis=0)
    if len(values) < 2:
        return mean, None
    half: np.ndarray = _student_95(len(values) - 1) * values.std(axis=0, ddof=1) / math.sqrt(len(values))
    return mean, half


def _student_95(freedom: int) -> float:
    """Return the two-sided 95 % quantile of Student's t to 0.001; beyond the table by Abramowitz and Stegun, 26.7.5."""
    if freedom <= len(_T95):
        return _T95[freedom - 1]
    z = _Z95
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def smooth(values: Sequence[float] | np.ndarray, width: int) -> np.ndarray:
    """Return the mean over `width` values around each value; at the ends over fewer values. The length stays."""
    series = np.asarray(values, dtype=np.float64)
    width = max(1, min(width, len(series)))
    sums = np.concatenate([[0.0], np.cumsum(series)])
    first = np.maximum(np.arange(len(series)) - (width - 1) // 2, 0)
    last = np.minimum(np.arange(len(series)) + width // 2, len(series) - 1) + 1
    averaged: np.ndarray = (sums[last] - sums[first]) / (last - first)
    return averaged


def step_positions(count: int, steps_per_round: int) -> np.ndarray:
    """Return the position, in local steps, of each of `count` values; every round also has a value before its first step.

    The value after aggregation and the value after the last step of the previous round have the same position.
    """
    per_round = steps_per_round + 1
    index = np.arange(count)
    places: np.ndarray = index // per_round * steps_per_round + index % per_round
    return places


def legend_above(figure: Figure, lines: Mapping[str, Any]) -> None:
    """Draw one legend for all panels, in a row above them."""
    if lines:
        figure.legend(lines.values(), lines.keys(), loc="outside upper center", ncols=len(lines))
