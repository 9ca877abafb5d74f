"""The arrays of a device against its task's declaration: casts, and errors for all other differences."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedpatch.shared.errors import DataError
from fedpatch.shared.task_checks.data_checks import checked, fit, load_checked
from fedpatch.shared.tasks.examples import from_arrays
from fedpatch.shared.tasks.splits import block_split
from fedpatch.shared.tasks.task import DeviceData, Task
from tests.shared.prepared_task import MEAN, SCALE, TASK

HOLDER = "device pi-7"
PLAIN = replace(TASK, prepare=None)


def _data(**changed: Any) -> DeviceData:
    x = np.arange(30, dtype=np.float32).reshape(10, 3)
    y = np.arange(10, dtype=np.int64) % 2
    return DeviceData(**{"train_x": x[:8], "train_y": y[:8], "test_x": x[8:], "test_y": y[8:], **changed})


def _problem(data: DeviceData, task: Task = PLAIN) -> str:
    with pytest.raises(DataError) as caught:
        checked(task, data, HOLDER)
    return str(caught.value)


@given(arrays(np.float64, (8, 3), elements=st.floats(-1e30, 1e30)))
def test_float64_inputs_are_cast_to_the_dtype_of_the_model(x):
    before = x.copy()
    fitted = fit(PLAIN, _data(train_x=x), HOLDER)
    assert fitted.data.train_x.dtype == np.float32
    np.testing.assert_array_equal(fitted.data.train_x, before.astype(np.float32))
    np.testing.assert_array_equal(x, before)
    assert fitted.casts == ("train_x of device pi-7 is float64 and is cast to float32",)


def test_data_that_fit_are_passed_on_as_they_are():
    data = _data()
    fitted = checked(PLAIN, data, HOLDER)
    assert fitted.data is data and fitted.casts == ()


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.float32, np.float64, bool])
def test_class_numbers_of_any_dtype_become_int64(dtype):
    """The loss of torch accepts no other dtype."""
    fitted = checked(PLAIN, _data(train_y=np.array([0, 1] * 4, dtype)), HOLDER)
    assert fitted.data.train_y.dtype == np.int64
    assert fitted.data.train_y.tolist() == [0, 1] * 4


def test_float64_targets_of_a_regression_become_float32():
    task = replace(PLAIN, class_names=())
    assert checked(task, _data(train_y=np.linspace(0, 1, 8)), HOLDER).data.train_y.dtype == np.float32


def test_a_model_in_double_precision_gets_its_own_dtype():
    """The model's dtype is used only if the task does not declare its input."""
    data = _data(train_x=np.zeros((8, 3)), test_x=np.zeros((2, 3)))
    silent = replace(PLAIN, input_shape=())
    assert fit(silent, data, HOLDER, lambda: "float64").data.train_x.dtype == np.float64
    assert fit(PLAIN, data, HOLDER, lambda: "float64").data.train_x.dtype == np.float32


def test_numbers_of_words_stay_integers_unless_the_task_declares_its_input():
    """An embedding needs int64; a model for uint8 images needs float32."""
    silent = replace(PLAIN, input_shape=())
    tokens = _data(train_x=np.zeros((8, 3), np.int64), test_x=np.zeros((2, 3), np.int64))
    pixels = _data(train_x=np.zeros((8, 3), np.uint8), test_x=np.zeros((2, 3), np.uint8))
    assert checked(silent, tokens, HOLDER).data.train_x.dtype == np.int64
    assert checked(PLAIN, tokens, HOLDER).data.train_x.dtype == np.float32
    assert checked(silent, pixels, HOLDER).data.train_x.dtype == np.float32


@pytest.mark.parametrize(("value", "word"), [(np.nan, "NaN"), (np.inf, "inf"), (-np.inf, "inf")])
@pytest.mark.parametrize("field", ["train_x", "test_x"])
def test_a_value_that_is_not_finite_is_named_with_its_row(field, value, word):
    data = _data()
    x = getattr(data, field).copy()
    x[1, 2] = x[-1, 0] = value
    text = _problem(replace(data, **{field: x}))
    rest = ", and in 1 more" if len(x) > 2 else ""
    assert f"{field} of device pi-7 holds {word} in row 1" in text
    assert rest in text and "remove or fill it" in text


def test_a_missing_value_is_named_with_file_and_line():
    with pytest.raises(DataError) as caught:
        load_checked(PLAIN, "nan", Path(), HOLDER)
    assert str(caught.value) == (
        "train_x of device pi-7 holds NaN in row 12 (file readings.csv, line 13); "
        "remove or fill it (a task's `prepare` can)"
    )


def test_an_origin_that_fails_costs_only_the_place():
    """`origin` is the user's code, and only a message depends on it."""

    def broken(field: str, row: int) -> str:
        raise IndexError(row)

    x = np.full((8, 3), np.nan, np.float32)
    assert "holds NaN in row 0, and in 7 more;" in _problem(_data(train_x=x, origin=broken))


def test_a_missing_value_that_prepare_fills_is_no_problem():
    assert np.isfinite(load_checked(TASK, "nan", Path(), HOLDER).data.train_x).all()


def test_validation_data_are_checked_too():
    with_validation = _data(val_x=np.full((2, 3), np.nan, np.float32), val_y=np.zeros(2, np.int64))
    assert "val_x of device pi-7 holds NaN in row 0" in _problem(with_validation)


@pytest.mark.parametrize("label", [2, -1, 255])
def test_a_label_out_of_range_is_named_with_its_row(label):
    y = np.zeros(8, np.int64)
    y[5] = label
    text = _problem(_data(train_y=y))
    assert f"train_y of device pi-7 holds label {label} in row 5; there are 2 classes" in text
    assert "number the 2 classes from 0 to 1" in text


def test_a_label_that_is_no_whole_number_is_named():
    assert "holds 0.5 in row 2, which is no class number" in _problem(
        _data(train_y=np.array([0, 1, 0.5, 0, 1, 0, 1, 0]))
    )


def test_labels_in_a_column_are_named_with_the_way_out():
    y = np.zeros((8, 1), np.int64)
    text = _problem(_data(train_y=y, test_y=np.zeros((2, 1), np.int64)))
    assert (
        "train_y of device pi-7 has shape (8, 1); give one class number for each example, with `train_y[:, 0]`" in text
    )


def test_inputs_of_another_shape_than_declared_are_named_with_both():
    """If the number of values is right, the message also contains the reshape."""
    image = _data(train_x=np.zeros((8, 3, 1), np.float32), test_x=np.zeros((2, 3, 1), np.float32))
    assert "has examples of shape (3, 1), task 'prepared' declares input_shape (3,)" in _problem(image)
    assert "x.reshape(len(x), 3)" in _problem(image)
    assert "test_x of device pi-7 has examples of shape (2,), train_x of shape (3,)" in _problem(
        _data(test_x=np.zeros((2, 2), np.float32))
    )


def test_words_among_the_numbers_are_named_with_row_and_value():
    with pytest.raises(DataError, match=r"is of dtype object \(row 3 \(file readings.csv, line 4\) holds \['warm', "):
        load_checked(PLAIN, "words", Path(), HOLDER)


def test_a_number_beyond_the_new_dtype_is_named():
    x = np.zeros((8, 3))
    x[4, 1] = 1e300
    assert "is float64 and holds 1e+300 in row 4, which float32 cannot hold" in _problem(_data(train_x=x))


def test_prepare_makes_the_inputs_of_every_part():
    fitted = load_checked(TASK, "good", Path(), HOLDER)
    raw = TASK.load_data("good", Path())
    np.testing.assert_allclose(fitted.data.train_x, (raw.train_x - MEAN) / SCALE, rtol=1e-5)
    np.testing.assert_allclose(fitted.data.test_x, (raw.test_x - MEAN) / SCALE, rtol=1e-5)
    assert fitted.raw_shape == (3,)


def test_data_problems_are_reported_together():
    bad = np.full(8, 9, np.int64)
    nan = np.full((8, 2), np.nan, np.float32)
    text = _problem(_data(train_x=nan, train_y=bad))
    assert "declares input_shape (3,)" in text and "holds NaN in row 0" in text and "Problems beside these: 1" in text


@pytest.mark.parametrize("task", [PLAIN, TASK], ids=["plain", "with prepare"])
@pytest.mark.parametrize("val_x", [np.empty((0, 3), np.float32), np.array([])], ids=["shaped", "bare"])
def test_empty_validation_part_of_any_shape_passes(val_x, task):
    """`numpy.array([])` has no shape of an example."""
    found = checked(task, _data(val_x=val_x, val_y=np.array([])), HOLDER).data.val_x
    assert found is not None and len(found) == 0


def test_reading_without_a_value_costs_its_example_where_no_prepare_fills_it(caplog):
    """An empty cell of a file that a logger wrote must not cost a round."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3))
    x[[7, 30], 1] = np.nan
    found = from_arrays(x, np.arange(60) % 2, name="monday.csv")
    data = found.device_data(*block_split(found, 10))
    fitted = checked(PLAIN, data, HOLDER)
    parts = (fitted.data.train_x, fitted.data.test_x)
    assert sum(map(len, parts)) == 58 and all(np.isfinite(one).all() for one in parts)
    assert len(fitted.data.train_y) == len(fitted.data.train_x) and fitted.data.readings is not None
    assert len(fitted.data.readings) == len(fitted.data.train_x)
    assert fitted.data.origin is not None and data.origin is not None
    rows = [int(fitted.data.origin("train_x", row).rsplit(" ", 1)[1]) for row in range(len(fitted.data.train_x))]
    np.testing.assert_allclose(fitted.data.train_x, x[rows], rtol=1e-6)
    assert "examples with a missing input: 2, left out; the first: row 7 (monday.csv, row 7) of train_x" in caplog.text
    assert len(checked(replace(PLAIN, prepare=np.nan_to_num), data, HOLDER).data.train_x) + len(data.test_x) == 60


def test_part_of_readings_that_all_lack_a_value_is_refused():
    found = from_arrays(np.full((20, 3), np.nan), np.arange(20) % 2)
    data = found.device_data(*block_split(found, 4), allow_constant=True, keep_copies=True)
    assert "holds NaN in row 0 (arrays, row" in _problem(data)
