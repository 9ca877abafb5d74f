"""The law of windows and splits: no test or validation example shares a reading with a training example, or copies one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedpatch.shared.errors import DataError, UsageError
from fedpatch.shared.tasks.examples import Examples, from_arrays, windows
from fedpatch.shared.tasks.splits import block_split, group_split, random_split, stratified_split, time_split
from fedpatch.shared.tasks.task import DeviceData
from fedpatch.shared.tasks.validation_split import with_validation
from tests.support.examples import examples

SPLITS = {
    "blocks": lambda found, number: block_split(found, 24, 3, number % 3, str(number)),
    "blocks of windows": lambda found, number: block_split(len(found), 4, 3, 0, str(number)),
    "time": lambda found, number: time_split(found, 0.3, float(number % 3)),
    "groups": lambda found, number: (group_split(found, 0.3, number),),
    "random": lambda found, number: (random_split(len(found), 0.3, number),),
    "by class": lambda found, number: (stratified_split(found.y, 0.3, number),),
    "own masks": lambda found, number: (np.random.default_rng(number).permutation(len(found)) < len(found) // 3,),
}


def readings(lengths: list[int], *, coarse: bool, gap: bool, seed: int = 0) -> Examples:
    """Readings of several files. Each value of the first input identifies its reading, unless values are coarse."""
    count = sum(lengths)
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 2, count) if coarse else np.arange(count)
    times = np.arange(count) + (np.arange(count) >= count // 2) * (50 if gap else 0)
    found = from_arrays(
        np.stack([values, values], 1),
        np.arange(count) // 7 % 2,
        times=times,
        groups=[f"p{i // 20 % 3}" for i in range(count)],
    )
    source = np.repeat(np.arange(len(lengths)), lengths)
    return Examples(
        **{**{name: getattr(found, name) for name in ("x", "y", "row", "times", "group", "groups")}, "source": source},
        sources=tuple(f"{i}.csv" for i in range(len(lengths))),
    )


def rows(part: np.ndarray | None) -> set[bytes]:
    return {one.tobytes() for one in (() if part is None else np.asarray(part))}


def check(data: DeviceData, *, coarse: bool) -> None:
    trained, values = rows(data.train_x), set(np.asarray(data.train_x).ravel().tolist())
    for part in (data.val_x, data.test_x):
        assert not trained & rows(part)
        if not coarse and part is not None:
            assert not values & set(np.asarray(part).ravel().tolist())


@examples(400)
@given(
    st.lists(st.integers(3, 150), min_size=1, max_size=3),
    st.integers(0, 9),
    st.integers(1, 9),
    st.sampled_from(sorted(SPLITS)),
    st.integers(0, 20),
    st.sampled_from([None, 0, 1]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from([0.0, 0.1, 0.25, 0.5]),
)
def test_no_combination_of_windows_and_splits_leaks(
    lengths, length, stride, split, number, balance_seed, ordered, coarse, gap, share
):
    """Length 0: single readings."""
    series = readings(lengths, coarse=coarse, gap=gap)
    try:
        found = windows(series, length, stride, mixed="drop" if number % 2 else "last") if length else series
        data = found.device_data(*SPLITS[split](found, number), balance_seed=balance_seed, allow_constant=True)
    except DataError:
        return
    check(with_validation(data, share, ordered=ordered), coarse=coarse)


@examples(60)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 60)), min_size=2, max_size=5),
    st.integers(1, 6),
    st.integers(1, 6),
    st.booleans(),
    st.booleans(),
)
@example([(0, 1), (2, 1)], 4, 2, False, False)
def test_nothing_that_was_trained_on_becomes_test_or_validation_data_when_files_grow(
    growth, length, stride, ordered, balanced
):
    """Three files, in any order of growth; a reading keeps its value."""
    lengths = [40, 30, 35]
    trained: set[float] = set()
    for file, more in growth:
        lengths[file] += more
        parts = [np.arange(count) + 1000 * number for number, count in enumerate(lengths)]
        values, source = np.concatenate(parts), np.repeat(np.arange(3), lengths)
        plain = from_arrays(values[:, None], values // 5 % 2, times=values)
        series = Examples(plain.x, plain.y, ("a", "b", "c"), source, plain.row, times=plain.times)
        found = windows(series, length, stride)
        data = found.device_data(*block_split(found, 12), balance_seed=0 if balanced else None, allow_constant=True)
        split = with_validation(data, 0.2, ordered=ordered)
        for part in (split.val_x, split.test_x):
            assert part is not None and not trained & set(np.asarray(part).ravel().tolist())
        trained |= set(np.asarray(split.train_x).ravel().tolist())


def test_documented_example_keeps_most_windows_and_has_all_parts():
    series = replace(readings([2000, 1000], coarse=False, gap=False), group=None)
    found = windows(series, 50, 25)
    data = with_validation(found.device_data(*block_split(found, 500), allow_constant=True), 0.1)
    assert data.val_x is not None and len(data.val_x) >= 5
    assert len(data.train_x) + len(data.val_x) + len(data.test_x) > 0.8 * len(found)


def test_random_split_of_windows_that_overlap_is_refused_with_the_remedy():
    found = windows(readings([60], coarse=False, gap=False), 10, 5)
    for split in (random_split, stratified_split):
        with pytest.raises(DataError, match=r"windows overlap, .* use block_split or time_split"):
            split(found)
    apart = windows(readings([60], coarse=False, gap=False), 10, 10)
    assert random_split(apart).sum() == 1


def test_masks_know_their_part_in_any_order_and_masks_without_a_name_are_refused():
    found = readings([60], coarse=False, gap=False)
    train, test = block_split(found, 6)
    one, two = found.device_data(train, test), found.device_data(test, train)
    assert np.array_equal(one.train_x, two.train_x) and len(one.train_x) > len(one.test_x)
    assert np.array_equal(found.device_data(train=np.array(train), test=np.array(test)).test_x, one.test_x)
    with pytest.raises(UsageError, match="could be swapped; give them by name"):
        found.device_data(np.array(train), np.array(test))
    with pytest.raises(UsageError, match="two masks of the test examples"):
        found.device_data(test, test)
    with pytest.raises(UsageError, match="no mask of the test examples"):
        found.device_data(train)
    with pytest.raises(UsageError, match=r"has 48 of 60 examples, more than half, .* give it by name: train="):
        found.device_data(~test)
    assert np.array_equal(found.device_data(test=~test).test_x, one.train_x)
    with pytest.raises(UsageError, match="in the training and in the test mask"):
        found.device_data(train=train | test, test=test)


@pytest.mark.parametrize("mask", [[3, 4], np.zeros(59, bool), np.zeros(60)], ids=["positions", "short", "numbers"])
def test_what_is_no_mask_of_the_examples_is_refused(mask):
    with pytest.raises(UsageError, match="it must have True or False for each of the 60"):
        readings([60], coarse=False, gap=False).device_data(mask)


def test_copies_are_kept_where_equal_values_are_readings_of_their_own():
    found = readings([200], coarse=True, gap=False)
    with pytest.raises(
        DataError, match=r"no test example; .*with the values of a training example: 40 of 40, left out \(keep_copies"
    ):
        found.device_data(*block_split(found, 10))
    data = with_validation(found.device_data(*block_split(found, 10), keep_copies=True), 0.1, ordered=True)
    assert len(data.test_x) == 40 and data.val_x is not None and len(data.val_x) == 16


def test_example_that_differs_by_the_sign_of_a_zero_or_the_bits_of_a_nan_is_a_copy():
    """Loggers write "-0.0" for a small value below zero, and processors compute several NaNs."""
    other_nan = np.array(np.nan, np.float32)
    other_nan.view(np.uint32)[...] |= 1
    values = np.array([[0.0, 1.0], [1.0, np.nan]] * 10, np.float32)
    values[16::2, 0], values[17::2, 1] = -0.0, other_nan
    found = from_arrays(values, np.arange(20) % 2)
    with pytest.raises(DataError, match="with the values of a training example: 4 of 4, left out"):
        found.device_data(np.arange(20) >= 16)
    data = DeviceData(values, found.y, values[:1] + 9, found.y[:1], readings=found.readings)
    split = with_validation(data, 0.2, ordered=True)
    assert split.val_x is not None and len(split.val_x) == 0


@examples(60)
@given(st.lists(st.integers(1, 5), min_size=2, max_size=60), st.integers(1, 5), st.integers(1, 3), st.integers(1, 4))
def test_no_window_crosses_a_gap_in_time_another_group_or_the_way_back(steps, length, stride, limit):
    times = np.cumsum(steps)
    series = from_arrays(
        np.arange(len(steps))[:, None], np.zeros(len(steps), int), times=times, groups=[str(one // 40) for one in times]
    )
    try:
        found = windows(series, length, stride, max_gap=limit)
    except DataError:
        return
    assert found.begins is not None and found.times is not None
    for one, begin, end in zip(found.x, found.begins, found.times, strict=True):
        inside = one[0].astype(int)
        assert (np.diff(inside) == 1).all() and (begin, end) == (times[inside[0]], times[inside[-1]])
        assert (np.diff(times[inside]) <= limit).all() and len({times[i] // 40 for i in inside}) == 1


def test_missing_readings_are_a_gap_by_their_times_by_a_clock_or_by_their_lines():
    kept = np.array([*range(20), *range(50, 70)])
    timed = from_arrays(np.sin(kept)[:, None], kept, times=kept)
    clock = from_arrays(np.stack([np.sin(kept), kept], 1), kept)
    lines = from_arrays(np.sin(np.arange(70))[:, None], np.arange(70)).take(kept)
    for series in (timed, clock, lines):
        found = windows(series, 10)
        assert len(found) == 22 and not set(range(20, 59)) & set(found.y.tolist())


def test_readings_whose_newest_is_first_have_the_remedy():
    """Exports of data bases often are in this order."""
    series = from_arrays(np.arange(30)[:, None], np.zeros(30), times=np.arange(30)[::-1])
    with pytest.raises(DataError, match="their times run backwards: sort them by time"):
        windows(series, 10)
    with pytest.raises(DataError, match="max_gap sets the longest step"):
        windows(from_arrays(np.arange(9)[:, None], np.zeros(9), times=np.arange(9)), 10)


def test_window_in_which_the_class_changes_has_its_last_class_or_is_left_out():
    series = from_arrays(np.arange(12)[:, None], [0] * 6 + [1] * 6, times=np.arange(12))
    last, drop = windows(series, 4), windows(series, 4, mixed="drop")
    assert last.y.tolist() == [0, 0, 0, 1, 1, 1, 1, 1, 1]
    assert last.notes == ("windows in which the class changes: 3 of 9, with the class of their last reading",)
    assert drop.y.tolist() == [0, 0, 0, 1, 1, 1]


def test_block_that_holds_no_window_is_a_usage_error():
    with pytest.raises(UsageError, match="a block of 9 readings holds no window of 10"):
        block_split(windows(readings([60], coarse=False, gap=False), 10), 9)


def test_examples_without_times_or_groups_are_refused_by_the_splits_that_need_them():
    plain = from_arrays(np.arange(9)[:, None], np.zeros(9, int))
    with pytest.raises(UsageError, match=r"no groups; name the column with group="):
        group_split(plain)
    assert time_split(plain)[1].tolist() == [False] * 7 + [True] * 2
    files = replace(plain, source=np.arange(9) // 5, sources=("a", "b"))
    with pytest.raises(UsageError, match="no times, and come from several files"):
        time_split(files)
