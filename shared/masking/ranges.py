"""Ranges of a round's grid and the clip, as they follow from the sums of the round before.

A range should cut few values off and waste few of its codes: it is RANGE_SPREADS times the root mean square of the tensor's
values, which the sum of the devices' vectors contains. If the operator sets no clip, it is CLIP_NORMS times the mean norm.
Following a quantile by sums alone is the idea of Andrew et al. 2021, Differentially Private Learning with Adaptive Clipping.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from fedpatch.shared.masking.group_sum import SummedReport
from fedpatch.shared.masking.vector_layout import travelling
from fedpatch.shared.tensors.arrays import Schema, Tensors

RANGE_SPREADS = 4.0
CLIP_NORMS = 2.0
MAX_CHANGE = 8.0
"""A range changes by at most this factor in one round, so that no single device drives it to 0 or to infinity."""

_LEAST_RANGE, _MOST_RANGE = 1e-8, 1e8


def first_ranges(schema: Schema, model: Tensors) -> tuple[float, ...]:
    """Return the ranges of a run's first round: the root mean square of the values themselves, as far as they are finite.

    Args:
        schema: Schema of the travelling tensors.
    """
    return tuple(_first_range(model[spec.name]) for spec in travelling(schema))


def next_ranges(ranges: Sequence[float], report: SummedReport) -> tuple[float, ...]:
    """Return the ranges of the next round.

    Args:
        ranges: Ranges of this round.
        report: Figures of this round.
    """
    factors = (min(max(RANGE_SPREADS * spread, 1 / MAX_CHANGE), MAX_CHANGE) for spread in report.spreads)
    return tuple(_within(scale * factor) for scale, factor in zip(ranges, factors, strict=True))


def first_clip(schema: Schema, ranges: Sequence[float]) -> float:
    """Return the clip of a run's first round: the norm of a step that reaches every range."""
    sizes = [
        (math.prod(spec.shape), scale) for spec, scale in zip(travelling(schema), ranges, strict=True) if spec.trainable
    ]
    return max(math.sqrt(sum(size * scale**2 for size, scale in sizes)), _LEAST_RANGE)


def next_clip(clip: float, report: SummedReport) -> float:
    """Return the clip of the next round."""
    return _within(clip * min(max(CLIP_NORMS * report.norm, 1 / MAX_CHANGE), MAX_CHANGE))


def _first_range(values: np.ndarray[tuple[int, ...], np.dtype[np.floating]]) -> float:
    finite = values[np.isfinite(values)]
    spread = math.sqrt(float(np.mean(np.square(finite, dtype=np.float64)))) if finite.size else 0.0
    return _within(spread or 1.0)


def _within(value: float) -> float:
    """The value within its limits as float32; the bits are the same on both sides."""
    return float(np.float32(min(max(value, _LEAST_RANGE), _MOST_RANGE)))
