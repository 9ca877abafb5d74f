"""Ranges of a grid and clips: how far they change in one round, and their limits."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedpatch.shared.masking.group_sum import SummedReport
from fedpatch.shared.masking.ranges import first_clip, first_ranges, next_clip, next_ranges
from fedpatch.shared.masking.vector_layout import BINS, MEASURES
from fedpatch.shared.tensors.arrays import Schema, TensorSpec

SCHEMA = Schema(
    (
        TensorSpec("fc.weight", (2, 8), "float32", "weight"),
        TensorSpec("bn.running_mean", (8,), "float32", "stats"),
        TensorSpec("bn.num_batches_tracked", (), "int64", "stats"),
    )
)


def report_of(spreads: tuple[float, ...] = (), norm: float = 0.5) -> SummedReport:
    """Figures of a round."""
    nothing = dict.fromkeys(MEASURES)
    return SummedReport(
        1, 1, 1, nothing, dict.fromkeys(MEASURES, 0), 0, 0, (0,) * BINS, clipped_values=0, norm=norm, spreads=spreads
    )


@pytest.mark.parametrize(
    ("spread", "factor"), [(0.0, 1 / 8), (1 / 32, 1 / 8), (0.05, 0.2), (0.25, 1.0), (2.0, 8.0), (100.0, 8.0)]
)
def test_range_is_four_times_the_spread_and_changes_at_most_eightfold(spread, factor):
    assert next_ranges((0.5, 4.0), report_of((spread, 0.25))) == pytest.approx((0.5 * factor, 4.0))


@pytest.mark.parametrize(
    ("norm", "factor"), [(0.0, 1 / 8), (1 / 16, 1 / 8), (0.1, 0.2), (0.5, 1.0), (4.0, 8.0), (100.0, 8.0)]
)
def test_clip_is_twice_the_mean_norm_and_changes_at_most_eightfold(norm, factor):
    assert next_clip(3.0, report_of(norm=norm)) == pytest.approx(3.0 * factor)


def test_range_and_clip_are_float32_from_1e_8_to_1e8():
    assert next_ranges((1e-8, 1e8), report_of((0.0, 1.0))) == (float(np.float32(1e-8)), 1e8)
    assert next_clip(1e-8, report_of(norm=0.0)) == float(np.float32(1e-8))
    assert next_clip(1e8, report_of(norm=1.0)) == 1e8
    assert next_clip(0.1, report_of(norm=0.5)) == float(np.float32(0.1))


def test_first_range_is_the_root_mean_square_and_one_for_a_tensor_of_zeros_or_none():
    specs = (TensorSpec("empty", (0,), "float32", "weight"), *SCHEMA.specs)
    model = {"fc.weight": np.tile(np.array([3, -4], "f4"), (2, 4)), "bn.running_mean": np.zeros(8, "f4")}
    model |= {"empty": np.zeros(0, "f4"), "bn.num_batches_tracked": np.array(9)}
    assert first_ranges(Schema(specs), model) == pytest.approx((1.0, 1.0, math.sqrt(12.5)))


def test_first_range_of_large_values_in_half_precision_is_finite():
    schema = Schema((TensorSpec("w", (4,), "float16", "weight"),))
    assert first_ranges(schema, {"w": np.full(4, 60_000, "f2")}) == pytest.approx((60_000,), rel=1e-3)


@pytest.mark.parametrize("value", [-np.inf, np.inf, np.nan])
def test_first_range_of_values_that_are_not_finite_is_that_of_the_others(value):
    schema = Schema((TensorSpec("mask", (4,), "float32", "buffer"), TensorSpec("none", (2,), "float32", "buffer")))
    model = {"mask": np.array([3, -3, value, value], "f4"), "none": np.full(2, value, "f4")}
    assert first_ranges(schema, model) == (3.0, 1.0)


def test_first_clip_is_the_norm_of_a_step_of_trained_values_that_reaches_every_range():
    assert first_clip(SCHEMA, (7.0, 0.5)) == pytest.approx(0.5 * math.sqrt(16))


def test_first_clip_without_trained_values_is_above_zero():
    statistics = SCHEMA.subset(["bn.running_mean"])
    assert first_clip(statistics, (1.0,)) == pytest.approx(1e-8)


def test_another_number_of_ranges_raises_value_error():
    with pytest.raises(ValueError, match="zip"):
        next_ranges((1.0,), report_of((0.1, 0.1)))
    with pytest.raises(ValueError, match="zip"):
        first_clip(SCHEMA, (1.0,))
