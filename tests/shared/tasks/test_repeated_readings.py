"""Readings without times that stand several times in a device's files: each counts once, so that no split shares them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.shared.tasks.examples import Examples, ReadingsFormat, from_frame, read, read_csv, windows
from fedpatch.shared.tasks.splits import block_split
from fedpatch.shared.tasks.validation_split import with_validation
from tests.support.examples import examples

CLASSES = ["off", "on"]


def lines(values: np.ndarray) -> str:
    return "v,w,mode\n" + "".join(f"{one},{one % 7},{CLASSES[int(one) // 20 % 2]}\n" for one in values.tolist())


def read_logs(folder, logs: list[np.ndarray], *, joined: bool) -> Examples:
    """Read logs from a file each, or from one file into which they were joined."""
    if joined:
        (folder / "all.csv").write_text("".join(map(lines, logs)))
    else:
        for number, one in enumerate(logs):
            (folder / f"{number}.csv").write_text(lines(one))
    return read_csv(folder, ["v", "w"], "mode", CLASSES)


@examples(60)
@given(
    st.lists(st.tuples(st.integers(60, 120), st.integers(8, 59)), min_size=2, max_size=5),
    st.booleans(),
    st.booleans(),
    st.integers(1, 12),
    st.sampled_from([0.0, 0.2]),
)
def test_reading_of_logs_that_overlap_counts_once_and_is_in_one_part(
    tmp_path_factory, logs, joined, part, length, share
):
    """Each log has some new readings, and repeats the last ones of the log before; a `part` of a log may be a log too."""
    ends = np.cumsum([new for new, _ in logs])
    cut = [
        np.arange(end - new - (again if end > new else 0), end) for end, (new, again) in zip(ends, logs, strict=True)
    ]
    if part:
        cut.append(cut[0][10:22])
    values = [one * 7919 % 10007 for one in cut]  # all differ, and none counts like a clock
    found = read_logs(tmp_path_factory.mktemp("logs"), values, joined=joined)
    assert sorted(found.x[:, 0].tolist()) == np.unique(np.concatenate(values)).tolist()
    cut_out = windows(found, length, max(1, length // 2))
    data = with_validation(cut_out.device_data(*block_split(cut_out, 25, 2), allow_constant=True), share)
    trained = set(np.asarray(data.train_x)[:, 0].ravel().tolist())
    for other in (data.val_x, data.test_x):
        assert other is not None and not trained & set(np.asarray(other)[:, 0].ravel().tolist())


def test_end_of_a_joined_file_that_is_partly_in_two_earlier_logs_counts_once(tmp_path):
    values = np.arange(120) * 7919 % 10007
    found = read_logs(tmp_path, [values[:60], values[14:], values[10:22]], joined=True)
    assert found.x[:, 0].tolist() == values.tolist()


def test_overlap_of_three_readings_between_two_files_counts_once(tmp_path):
    found = read_logs(tmp_path, [np.arange(40), np.arange(37, 80)], joined=False)
    assert found.x[:, 0].tolist() == list(range(80))
    assert found.notes == ("readings that stand several times in 0.csv, 1.csv: 3, counted once",)


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize(
    "values", [np.full(60, 21.0), np.repeat([20, 21], 30), np.arange(60) % 10], ids=["rests", "coarse", "periodic"]
)
def test_equal_readings_of_a_sensor_that_rests_or_repeats_itself_are_readings_of_their_own(tmp_path, values, joined):
    found = read_logs(tmp_path, [values, np.append(5, values[::-1])], joined=joined)
    assert len(found) == 121 and found.notes == ()


def dwelling(count: int, seed: int = 0) -> np.ndarray:
    """Return states of a machine that stays in each of three for a while, in turn."""
    return np.cumsum(np.random.default_rng(seed).random(count) < 0.4) % 3


@pytest.mark.parametrize(
    "values", [dwelling(2000), np.random.default_rng(1).integers(0, 3, 2000)], ids=["in turn", "by chance"]
)
def test_readings_of_a_sensor_with_few_values_are_readings_of_their_own(tmp_path, values):
    found = read_logs(tmp_path, [values], joined=True)
    assert len(found) == 2000 and found.notes == ()


def test_short_files_of_a_sensor_with_few_values_are_parts_of_others_by_chance(tmp_path):
    """Whole copies are left out before."""
    logs = [dwelling(10, seed) for seed in range(60)]
    found = read_logs(tmp_path, logs, joined=False)
    assert len(found) == 10 * len(np.unique(logs, axis=0))


def test_long_overlap_of_files_of_a_sensor_with_few_values_counts_once(tmp_path):
    values = dwelling(400)
    found = read_logs(tmp_path, [values[:250], values[190:]], joined=False)
    assert found.x[:, 0].tolist() == values.tolist()


@pytest.mark.parametrize(("begin", "end"), [(110, 300), (110, 150), (120, 300), (125, 300), (150, 300)])
def test_overlap_in_which_the_sensor_rests_counts_once(tmp_path, begin, end):
    values = np.arange(300) * 7919 % 10007
    values[120:135] = values[196:204] = 7
    found = read_logs(tmp_path, [values[:200], values[begin:end]], joined=True)
    assert found.x[:, 0].tolist() == values[: max(200, end)].tolist()


def test_reading_for_a_prediction_has_an_answer_also_if_it_came_before(tmp_path):
    rows = np.concatenate([np.arange(40), np.arange(20, 60)]) * 7919 % 10007
    (tmp_path / "rows.csv").write_text(lines(rows))
    form = ReadingsFormat(["v", "w"], "mode", CLASSES)
    assert len(read(tmp_path, form)) == 60
    assert read(tmp_path, form, for_prediction=True).x[:, 0].tolist() == rows.tolist()
    assert len(from_frame(pd.DataFrame({"v": rows}), ["v"], None)) == 80
