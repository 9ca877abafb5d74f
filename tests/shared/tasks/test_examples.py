"""Examples of a device from files, frames and data sets: checked, cut and split, with file and line of each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.shared.errors import DataError, UsageError
from fedpatch.shared.tasks.examples import Examples, from_dataset, from_frame, read_csv, windows

CLASSES = ["rest", "walk"]


def written(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.csv").write_text(text, "utf-8")
    return folder


def series(*lengths: int, channels: int = 2) -> Examples:
    """Files of these lengths; each value identifies its reading."""
    count = sum(lengths)
    source = np.repeat(np.arange(len(lengths)), lengths)
    x = np.arange(count, dtype=np.float32)[:, None] + np.linspace(0, 0.5, channels, dtype=np.float32)
    row = np.concatenate([np.arange(length) for length in lengths])
    return Examples(x, np.arange(count), tuple(f"{i}.csv" for i in range(len(lengths))), source, row)


def test_folder_is_read_in_the_order_of_names_with_file_and_line_of_each_example(tmp_path):
    found = read_csv(
        written(tmp_path, b="x,y,state\n3,4,walk\n", a="y,state,x\n2,rest,1\n6,walk,5\n"), ["x", "y"], "state", CLASSES
    )
    assert found.x.tolist() == [[1, 2], [5, 6], [3, 4]]
    assert found.y.tolist() == [0, 1, 1]
    assert [found.place(index) for index in range(3)] == ["a.csv, line 2", "a.csv, line 3", "b.csv, line 2"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x,state\n1,rest\n-inf,walk\n", r"a\.csv, line 3, column x: '-inf' is not a finite number"),
        ("x,state\n1,rest\n1e99,walk\n", r"a\.csv, line 3, column x: '1e99' is not a finite number"),
        ("x,state\n1,rest\nwarm,walk\n", r"a\.csv, line 3, column x: 'warm' is no number"),
        ("x,state\n1\n", r"a\.csv, line 2: too few columns"),
        (
            "x,state\n1,rest\n1,walk,5,rest\n",
            r"a\.csv, line 3: too many columns, 4 instead of 2; .* a comma in a number",
        ),
        ("x,state\n1,run\n", r"a\.csv, line 2, column state: 'run' is none of the classes rest, walk"),
        ("z,state\n1,run\n", r"a\.csv: no column x; there is z, state"),
        ("", r"a\.csv: holds no complete line yet"),
        ("x,state", r"a\.csv: holds no complete line yet; end its line with a line break"),
        ("x,state\n", "no examples"),
    ],
)
def test_bad_csv_is_a_data_error_that_names_file_line_and_column(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        read_csv(written(tmp_path, a=text), ["x"], "state", CLASSES)


def test_folder_without_files_and_absent_file_are_data_errors(tmp_path):
    with pytest.raises(DataError, match=r"no \*\.csv file"):
        read_csv(tmp_path, ["x"], "state")
    with pytest.raises(DataError, match="cannot be read"):
        read_csv(tmp_path / "absent.csv", ["x"], "state")


def test_frame_gives_the_same_examples_as_the_file(tmp_path):
    file = written(tmp_path, a="x,state\n0.5,rest\n0.7,walk\n") / "a.csv"
    one, two = read_csv(file, ["x"], "state", CLASSES), from_frame(pd.read_csv(file), ["x"], "state", CLASSES)
    assert np.array_equal(one.x, two.x)
    assert np.array_equal(one.y, two.y)
    assert two.place(1) == "frame, row 1"
    with pytest.raises(DataError, match=r"frame, row 0, column x: b'1' \(bytes\) is no number"):
        from_frame(pd.DataFrame({"x": [b"1"], "state": ["rest"]}), ["x"], "state", CLASSES)


def test_empty_cells_after_the_last_column_are_left_out(tmp_path):
    """Spreadsheets write them."""
    found = read_csv(written(tmp_path, a="x,state\n1,rest,, \n2,walk,\n"), ["x"], "state", CLASSES)
    assert found.x.tolist() == [[1.0], [2.0]]


def test_targets_without_classes_are_numbers(tmp_path):
    found = read_csv(written(tmp_path, a="x,load\n1,0.25\n"), ["x"], "load")
    assert found.y.dtype == np.float32
    assert found.y.tolist() == [0.25]


def test_pairs_and_mappings_of_a_data_set_are_the_same_examples():
    pairs = [(np.full((1, 2, 2), i), i % 2) for i in range(4)]
    mappings = [{"image": x, "label": y} for x, y in pairs]
    one, two = from_dataset(pairs, [3, 1]), from_dataset(mappings, [3, 1], keys=("image", "label"))
    assert one.x.shape == (2, 1, 2, 2)
    assert np.array_equal(one.x, two.x)
    assert one.y.tolist() == two.y.tolist() == [1, 1]
    assert one.place(0) == "data set, item 3"


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([([0.0], 0), ([0.0, 1.0], 1)], r"item 1: shape \(2,\), others have \(1,\)"),
        ([([np.inf], 0)], "item 0: a value is not a finite number"),
        ([{"image": [0.0]}], "item 0: input and class are not there"),
        ([{"image": [0.0], "label": 1}], "item 0: input and class are not there; give `keys`"),
        ([], "no items are chosen"),
    ],
)
def test_bad_item_of_a_data_set_is_a_data_error_that_names_it(items, message):
    with pytest.raises(DataError, match=message):
        from_dataset(items)


@given(st.lists(st.integers(1, 12), min_size=1, max_size=4), st.integers(1, 6), st.integers(1, 6))
def test_windows_hold_consecutive_readings_of_one_file_each_stride(lengths, length, stride):
    readings = series(*lengths)
    expected = sum(max(0, (count - length) // stride + 1) for count in lengths)
    if expected == 0:
        with pytest.raises(DataError, match="a window needs"):
            windows(readings, length, stride)
        return
    cut = windows(readings, length, stride)
    assert cut.x.shape == (expected, 2, length)
    assert (np.diff(cut.x, axis=2) == 1).all()
    for index in range(expected):
        last = cut.y[index]
        assert cut.x[index, 0, -1] == last
        assert cut.place(index) == readings.place(last)
        assert readings.source[last - length + 1] == readings.source[last]


def test_window_ends_with_its_file_also_where_the_next_one_begins_with_damaged_lines():
    """Their numbers go on as if both were one file."""
    both = series(4, 8).take([*range(4), *range(8, 12)])
    assert both.first.tolist() == list(range(8))
    assert windows(both, 3).y.tolist() == [2, 3, 10, 11]


def test_window_of_no_length_is_a_usage_error():
    with pytest.raises(UsageError, match="at least 1"):
        windows(series(5), 0)


def test_device_data_know_where_each_example_came_from():
    readings, test = series(4, 4), np.arange(8) >= 6
    data = readings.device_data(test)
    assert data.origin is not None
    assert (len(data.train_x), len(data.test_x)) == (6, 2)
    assert data.origin("train_x", 5) == "1.csv, line 1"
    assert data.origin("test_y", 0) == "1.csv, line 2"


def test_balanced_training_data_have_as_many_examples_of_each_class_and_the_test_data_stay():
    labels = np.array([0] * 8 + [1] * 2 + [2] * 4)
    readings = Examples(
        np.random.default_rng(0).normal(size=(14, 2)).astype(np.float32), labels, ("a",), labels * 0, np.arange(14)
    )
    test = np.zeros(14, bool)
    test[[0, 8, 10]] = True
    data = readings.device_data(test, balance_seed=1)
    assert np.bincount(data.train_y).tolist() == [7, 7, 7]
    assert data.test_y.tolist() == [0, 1, 2]


def test_too_few_examples_are_a_data_error():
    with pytest.raises(DataError, match=r"0\.csv: 4 examples; a device needs at least 5"):
        series(4).device_data(np.array([True, False, False, False]))


def test_constant_channel_is_a_data_error_unless_it_is_allowed():
    readings = series(8)
    readings.x[:, 1] = 2.0
    test = np.arange(8) >= 6
    with pytest.raises(DataError, match=r"0\.csv: input 1 has the value 2 in all training examples"):
        readings.device_data(test)
    assert len(readings.device_data(test, allow_constant=True).train_x) == 6
    with pytest.raises(DataError, match="input 1"):
        windows(readings, 2).device_data(np.arange(7) >= 5)
