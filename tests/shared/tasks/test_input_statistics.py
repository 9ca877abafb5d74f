"""Statistics of inputs: right, bounded in size, and enough to distinguish raw rows from scaled ones."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedpatch.shared.tasks.input_statistics import differences, statistics_of
from fedpatch.shared.tasks.model_metadata import MAX_FEATURES, InputStatistics
from tests.shared.prepared_task import prepare, rows

RNG = np.random.default_rng(3)


@given(arrays(np.float32, st.tuples(st.integers(1, 40), st.integers(1, 5)), elements=st.floats(-1e4, 1e4, width=32)))
def test_statistics_of_flat_inputs_are_those_of_each_feature(x):
    found = statistics_of(x)
    exact = x.astype(np.float64)
    np.testing.assert_allclose(found.mean, exact.mean(axis=0), rtol=1e-5, atol=1e-3)
    np.testing.assert_allclose(found.std, exact.std(axis=0), rtol=1e-5, atol=1e-2)
    np.testing.assert_allclose(found.min, x.min(axis=0), rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(found.max, x.max(axis=0), rtol=1e-5, atol=1e-9)
    assert found.examples == len(x)
    assert differences(x, found) == []


@pytest.mark.parametrize("shape", [(MAX_FEATURES + 1,), (3, 8, 8)])
def test_statistics_of_images_are_one_number_each(shape):
    found = statistics_of(RNG.random((5, *shape), dtype=np.float32))
    assert [len(one) for one in (found.mean, found.std, found.min, found.max)] == [1] * 4
    assert len(msgspec.json.encode(statistics_of(RNG.random((5, MAX_FEATURES))))) < 20_000


@pytest.mark.parametrize("count", [1, 40])
def test_statistics_distinguish_raw_from_scaled_rows(count):
    raw, _ = rows(200)
    scaled = prepare(raw)
    known = statistics_of(scaled)
    (words,) = differences(raw[:count], known)
    assert "values lie outside of those that the model was trained on: feature 0 from" in words
    assert differences(scaled[:count], known) == []
    assert differences(prepare(rows(count, seed=9)[0]), known) == []
    assert differences(scaled[:count], statistics_of(raw)) != []


def test_statistics_distinguish_pixels_up_to_255_from_those_up_to_1():
    pixels = RNG.integers(0, 256, (30, 1, 20, 20)).astype(np.float32)
    assert "values from 0 to 255, trained on" in differences(pixels, statistics_of(pixels / 255))[0]
    (words,) = differences(pixels[:1] / 255, statistics_of(pixels))
    assert "differ far less from each other" in words


def test_a_value_in_one_feature_that_was_constant_in_training_is_named():
    x = RNG.normal(size=(50, 3))
    x[:, 1] = 4.0
    other = x.copy()
    other[:, 1] = 5.0
    (words,) = differences(other, statistics_of(x))
    assert "feature 1 from 5 to 5, trained on 4 to 4" in words


def test_a_few_odd_rows_among_many_are_no_difference():
    x = RNG.normal(size=(300, 2))
    known = msgspec.json.decode(msgspec.json.encode(statistics_of(x)), type=InputStatistics)
    new = RNG.normal(size=(100, 2))
    new[0] = 50.0
    assert differences(new, known) == []
