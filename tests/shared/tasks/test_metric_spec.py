"""The metric that a task declares."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.shared.errors import UsageError
from fedpatch.shared.tasks.metric_spec import MetricTerms, metric_terms
from fedpatch.shared.wire.field_types import MAX_MEASURE

MAE = metric_terms("MAE", "min", None)
FINITE = st.floats(-1e9, 1e9)


def test_an_accuracy_is_a_fraction_and_anything_else_is_not():
    assert (MetricTerms(), metric_terms("accuracy", "max", None)) == (MetricTerms("accuracy", "max", 0.0, 1.0),) * 2
    assert (MAE.least, MAE.most) == (-MAX_MEASURE, MAX_MEASURE)
    assert [one.range_words for one in (MetricTerms(), MAE, MetricTerms("R2", "max", -5, 1))] == [
        "a fraction from 0 to 1",
        "a number from -1e+12 to 1e+12",
        "a number from -5 to 1",
    ]
    assert (MetricTerms().label, MAE.label) == ("UA", "MAE")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 2 * MAX_MEASURE])
def test_no_metric_allows_what_is_no_number(value):
    assert not MAE.allows(value) and not MetricTerms().allows(value)


def test_the_limits_are_allowed():
    assert [MetricTerms().allows(value) for value in (-0.1, 0.0, 1.0, 1.1)] == [False, True, True, False]


@given(st.lists(FINITE, min_size=1), FINITE)
def test_the_worst_reaches_a_target_only_where_all_do(values, target):
    for terms in (MetricTerms(), MAE):
        worst = terms.worst(values)
        assert worst is not None and worst in values
        assert terms.reached(worst, target) == all(terms.reached(value, target) for value in values)
    assert MAE.worst([]) is None


@given(st.lists(FINITE, min_size=1))
def test_the_worst_tenth_is_the_percentile_that_numpy_gives(values):
    for terms, fraction in ((MetricTerms(), 0.1), (MAE, 0.9)):
        assert terms.worst_tenth(values) == pytest.approx(np.quantile(values, fraction), rel=1e-9, abs=1e-3)
    assert MAE.worst_tenth([]) is None


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        (("", "max", None), "metric name ''"),
        (("a\nb", "max", None), "metric name"),
        (("x" * 25, "max", None), "1 to 24 printable"),
        (("MAE", "less", None), "must be 'max' or 'min'"),
        (("F1", "max", (1.0, 0.0)), "lower limit first"),
        (("F1", "max", (0.0, math.nan)), "is not a range"),
    ],
)
def test_invalid_metric_terms_are_refused(terms, words):
    with pytest.raises(UsageError, match=words):
        metric_terms(*terms)
