"""`Task.prepare`: applied in the same way everywhere, and recognised by its outputs."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.shared.errors import DataError, UsageError
from fedpatch.shared.tasks.model_metadata import PROBE_VALUES, Preparation
from fedpatch.shared.tasks.prepare import preparation_of, prepared, probe_inputs, require_same_prepare
from tests.shared.prepared_task import MEAN, SCALE, TASK

RAW = np.array([[20.0, 1000.0, 300.0], [25.0, np.nan, 500.0]], np.float32)


def test_prepare_gets_float32_and_gives_float32():
    seen = []

    def spying(raw):
        seen.append(raw.dtype)
        return raw.astype(np.float64)

    assert prepared(replace(TASK, prepare=spying), RAW.astype(np.float64), "x").dtype == np.float32
    assert seen == [np.float32]


def test_a_prepare_that_changes_its_argument_leaves_the_data_alone():
    def changing(raw):
        raw[:] = 0
        return raw

    before = RAW.copy()
    prepared(replace(TASK, prepare=changing), RAW, "x")
    np.testing.assert_array_equal(RAW, before)


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (lambda raw: raw[:1], r"made float32 of shape \(1, 3\) of train_x, which has 2 rows"),
        (lambda raw: np.array(["a", "b"]), "made <U1 of shape"),
        (lambda raw: np.ma.masked_less(raw, np.inf), "left values of train_x masked"),
        (lambda raw: raw[:, 7], "failed with train_x of shape .* IndexError"),
    ],
)
def test_a_prepare_that_gives_no_rows_of_numbers_is_named(function, problem):
    with pytest.raises(DataError, match=problem):
        prepared(replace(TASK, prepare=function), RAW, "train_x")


def test_the_same_prepare_is_recognised_after_a_journey_through_json():
    known = preparation_of(TASK, (3,))
    assert known is not None and len(known.probe) <= PROBE_VALUES
    known = msgspec.json.decode(msgspec.json.encode(known), type=Preparation)
    require_same_prepare(replace(TASK, prepare=lambda raw: np.nan_to_num((raw - MEAN) / SCALE, nan=0.0)), known)
    for other in (
        lambda raw: raw,
        lambda raw: (raw - MEAN) / (1.01 * SCALE),
        lambda raw: (raw - MEAN)[:, :2] / SCALE[:2],
    ):
        with pytest.raises(UsageError, match="is not the one that the model was trained with"):
            require_same_prepare(replace(TASK, prepare=other), known)
    with pytest.raises(UsageError, match="the task has no prepare now"):
        require_same_prepare(replace(TASK, prepare=None), known)


def test_a_prepare_that_does_not_take_made_up_inputs_is_believed():
    def picky(raw):
        raise ValueError("no temperature is 1000")

    known = preparation_of(replace(TASK, prepare=picky), (3,))
    assert known == Preparation(raw_shape=(3,))
    require_same_prepare(TASK, known)


def test_a_task_without_prepare_has_no_preparation():
    assert preparation_of(replace(TASK, prepare=None), (3,)) is None


@given(st.lists(st.integers(1, 6), min_size=1, max_size=3), st.floats(0.01, 100), st.floats(-100, 100))
def test_any_other_scale_or_offset_is_noticed(shape, scale, offset):
    task = replace(TASK, prepare=lambda raw: raw * np.float32(scale) + np.float32(offset))
    known = preparation_of(task, tuple(shape))
    assert known is not None
    require_same_prepare(task, known)
    with pytest.raises(UsageError):
        require_same_prepare(
            replace(task, prepare=lambda raw: raw * np.float32(1.05 * scale) + np.float32(offset)), known
        )
    assert probe_inputs(tuple(shape)).shape[1:] == tuple(shape)
