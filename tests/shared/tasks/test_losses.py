"""The mean of losses."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.shared.tasks.losses import mean_loss


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_mean_of_finite_losses_is_between_the_least_and_the_greatest(losses: list[float]):
    slack = 1e-15 * max(map(abs, losses))
    assert min(losses) - slack <= mean_loss(losses) <= max(losses) + slack


@pytest.mark.parametrize(
    ("losses", "mean"), [([1.7e308] * 3, 1.7e308), ([-1.7e308] * 7, -1.7e308), ([1.5e308, 1.5e308, -1.5e308], 5e307)]
)
def test_losses_whose_sum_exceeds_a_float_have_a_mean(losses: list[float], mean: float):
    assert math.isclose(mean_loss(losses), mean)
