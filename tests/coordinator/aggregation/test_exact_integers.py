"""Differences of 64-bit integers, and integers plus a mean of differences."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedpatch.coordinator.aggregation.exact_integers import advanced, difference, has_large

INT64 = st.integers(-(2**63), 2**63 - 1)


@example(start=-127, end=2**60 + 127)  # both rounded before the subtraction: 2**60
@given(start=INT64, end=INT64)
def test_difference_within_64_bits_is_rounded_once_and_a_longer_one_has_its_sign_and_size(start, end):
    [found] = difference(np.array([end]), np.array([start]))
    exact = end - start
    if -(2**63) <= exact < 2**63:
        assert found == float(exact)
    else:
        assert abs(found - float(exact)) <= 2**-52 * abs(exact)


@given(start=INT64, end=INT64)
def test_integer_advanced_by_a_difference_of_up_to_53_bits_is_exact_and_never_wraps(start, end):
    [found] = advanced(np.array([start]), difference(np.array([end]), np.array([start])))
    assert found == end if abs(end - start) <= 2**53 else abs(int(found) - end) <= 2**12


@given(start=INT64, change=st.floats(-1e30, 1e30).map(np.trunc))
def test_integer_advanced_beyond_its_range_stays_at_the_limit(start, change):
    [found] = advanced(np.array([start]), np.array([change]))
    exact = min(max(start + int(change), -(2**63)), 2**63 - 1)
    assert abs(int(found) - exact) <= 2**12


@pytest.mark.parametrize(
    ("values", "large"),
    [
        ([0, 1, -1], False),
        ([2**52, -(2**52)], False),
        ([0, 2**52 + 1], True),
        ([-(2**52) - 1, 0], True),
        ([], False),
    ],
)
def test_integers_are_large_from_the_size_whose_differences_float64_rounds(values, large):
    assert has_large(np.array(values, np.int64)) is large
    assert not has_large(np.array(values, np.float64))
