"""The share of devices that gain over learning alone, and by how much."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.shared.tasks.gains import gain_figures, gain_of, gain_words
from fedpatch.shared.tasks.metric_spec import MetricTerms

values = st.floats(0, 1)


@given(st.lists(st.floats(-1, 1), min_size=1))
def test_gain_figures_equal_those_of_numpy(gains):
    found = gain_figures(gains)
    assert found["gain"] == pytest.approx(np.mean(gains), abs=1e-12)
    assert found["gain_median"] == statistics.median(gains)
    assert found["gain_p10"] == pytest.approx(np.quantile(gains, 0.1), abs=1e-12)
    assert found["gaining"] == np.mean([gain > 0 for gain in gains])
    assert found["losing"] == np.mean([gain < 0 for gain in gains])


@given(values, values)
def test_gain_changes_its_sign_with_the_goal_of_the_metric(value, alone):
    assert gain_of(value, alone, MetricTerms()) == -gain_of(value, alone, MetricTerms("mse", "min"))


def test_gain_of_user_accuracy_is_in_points():
    assert (gain_words(-0.0123, "UA"), gain_words(-0.0123, "mse")) == ("-1.2 points", "-0.0123")


@pytest.mark.parametrize(
    ("gain", "words"),
    [
        (1.5e-8, "0 points"), (-1.5e-8, "0 points"), (0.0, "0 points"), (-0.0083, "-0.8 points"),
        (-0.25, "-25 points"), (0.123, "+12.3 points"), (1.0, "+100 points"),
    ],
)  # fmt: skip
def test_points_have_one_decimal_and_rounding_error_has_no_sign(gain, words):
    assert gain_words(gain, "UA") == words


@given(st.floats(-1, 1))
def test_points_never_have_an_exponent(gain):
    assert "e" not in gain_words(gain, "UA")
