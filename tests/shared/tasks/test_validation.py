"""The validation part: which examples are held out, and that they stay held out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedpatch.shared.errors import DataError, UsageError
from fedpatch.shared.tasks.task import DeviceData
from fedpatch.shared.tasks.validation_split import (
    MIN_VALIDATION_EXAMPLES,
    split_for,
    validation_mask,
    with_validation,
)
from tests.device_agent.toy_tasks import TOY

SHARES = st.floats(0.05, 0.5)
COUNTS = st.integers(1, 300)


def _inputs(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 3)).astype(np.float32)


def _data(count: int, classes: int = 3) -> DeviceData:
    """Targets are the numbers of the examples, modulo `classes`."""
    x = _inputs(count)
    return DeviceData(x, np.arange(count) % classes, _inputs(7, 1), np.arange(7) % classes)


def _split(data: DeviceData, share: float, *, ordered: bool = False) -> tuple[DeviceData, np.ndarray, np.ndarray]:
    """The data with a validation part, and that part's inputs and targets."""
    split = with_validation(data, share, ordered=ordered)
    assert split.val_x is not None and split.val_y is not None
    return split, split.val_x, split.val_y


def _rows(*parts: np.ndarray | None) -> list[tuple[float, ...]]:
    return [tuple(row) for part in parts if part is not None for row in part.tolist()]


@given(COUNTS, SHARES, st.booleans())
def test_a_split_shares_out_every_example_once_and_keeps_order_targets_and_test_data(count, share, ordered):
    """Training and validation data, merged by targets, are the original training data, except examples set aside."""
    data = replace(_data(count), train_y=np.arange(count))
    split, val_x, val_y = _split(data, share, ordered=ordered)
    targets = np.concatenate([split.train_y, val_y])
    aside = validation_mask(data.train_x, share, ordered=ordered)
    aside &= aside.sum() < MIN_VALIDATION_EXAMPLES
    assert sorted([*targets.tolist(), *np.flatnonzero(aside).tolist()]) == list(range(count))
    assert np.array_equal(np.concatenate([split.train_x, val_x]), data.train_x[targets])
    for part in (split.train_y, val_y):
        assert np.array_equal(part, np.sort(part))
    assert split.test_x is data.test_x and split.test_y is data.test_y
    assert val_x.dtype == split.train_x.dtype and val_x.shape[1:] == split.train_x.shape[1:]


@given(COUNTS, SHARES, st.booleans())
@example(49, 0.1, False)
def test_validation_part_has_enough_examples_or_none(count, share, ordered):
    _, val_x, _ = _split(_data(count), share, ordered=ordered)
    assert len(val_x) == 0 or len(val_x) >= MIN_VALIDATION_EXAMPLES


@given(COUNTS, SHARES, st.randoms(use_true_random=False))
def test_an_unordered_split_depends_on_the_example_alone(count, share, random):
    """Order and other examples do not matter: an example held out of many is held out of fewer, and the reverse."""
    inputs = _inputs(count)
    held_out = dict(zip(_rows(inputs), validation_mask(inputs, share), strict=True))
    chosen = inputs[random.sample(range(count), random.randint(1, count))]
    for row, out in zip(_rows(chosen), validation_mask(chosen, share), strict=True):
        assert out == held_out[row] or not any(validation_mask(chosen, share))


@given(st.lists(st.integers(1, 80), min_size=2, max_size=6), SHARES, st.booleans())
@example([49, 3], 0.1, True)
@example([49, 11], 0.1, False)
def test_growing_data_hold_out_nothing_that_was_trained_on(growth, share, ordered):
    """This holds once an example is left to train on. An ordered validation part moves with time; others only grow."""
    inputs = _inputs(sum(growth))
    trained: set[tuple[float, ...]] = set()
    before: set[tuple[float, ...]] = set()
    for count in np.cumsum(growth):
        now = inputs[:count]
        if not ordered and _all_would_be_held_out(now, inputs, share):
            continue
        split, val_x, _ = _split(replace(_data(count), train_x=now), share, ordered=ordered)
        held_out = set(_rows(val_x))
        assert not held_out & trained
        assert ordered or before <= held_out
        trained |= set(_rows(split.train_x))
        before = held_out


def _all_would_be_held_out(some: np.ndarray, of: np.ndarray, share: float) -> bool:
    """Whether the hash holds out all of the first examples, which happens if there are one or two."""
    return bool(validation_mask(of, share)[: len(some)].all())


def test_few_examples_that_are_held_out_are_neither_trained_on_nor_chosen_by():
    for ordered in (False, True):
        data = _data(40)
        mask = validation_mask(data.train_x, 0.1, ordered=ordered)
        split, val_x, _ = _split(data, 0.1, ordered=ordered)
        assert mask.any() and len(val_x) == 0
        assert np.array_equal(split.train_x, data.train_x[~mask])


@given(COUNTS, SHARES)
def test_an_ordered_split_holds_out_the_last_examples(count, share):
    mask = validation_mask(_inputs(count), share, ordered=True)
    expected = int(count * share)
    assert mask.sum() == expected
    assert not mask[: count - expected].any()


def test_the_held_out_share_is_about_what_was_asked():
    assert validation_mask(_inputs(10_000), 0.1).mean() == pytest.approx(0.1, abs=0.01)
    assert validation_mask(_inputs(10_000), 0.5).mean() == pytest.approx(0.5, abs=0.02)


def test_the_split_is_the_same_in_every_version():
    """With another hash, a device would choose its model on examples that it has trained on."""
    assert np.flatnonzero(validation_mask(np.arange(60.0).reshape(-1, 1), 0.1)).tolist() == [1, 6, 15, 19, 38]


@pytest.mark.parametrize(
    ("count", "trained", "validated"), [(1, 1, 0), (9, 9, 0), (10, 9, 0), (49, 45, 0), (50, 45, 5)]
)
def test_of_tiny_data_the_last_tenth_is_left_for_later(count, trained, validated):
    """A tenth of fewer than fifty examples is fewer than five: too few to choose a model."""
    split, val_x, _ = _split(_data(count), 0.1, ordered=True)
    assert (len(split.train_x), val_x.shape) == (trained, (validated, 3))


@pytest.mark.parametrize("ordered", [False, True])
def test_data_of_one_class_are_split_like_others(ordered):
    split, _, val_y = _split(_data(200, classes=1), 0.1, ordered=ordered)
    assert 10 <= len(val_y) <= 30
    assert set(split.train_y.tolist()) == set(val_y.tolist()) == {0}


def test_equal_inputs_share_a_side():
    """A copy of a training example in the validation part would measure nothing."""
    inputs = np.repeat(_inputs(100), 2, axis=0)
    mask = validation_mask(inputs, 0.1)
    assert mask.any() and np.array_equal(mask[::2], mask[1::2])


@pytest.mark.parametrize("value", [5.0, 6.0])
def test_inputs_that_are_all_equal_leave_something_to_train_on(value):
    split = with_validation(replace(_data(100), train_x=np.full((100, 3), value)), 0.5)
    assert len(split.train_x) == 100


def test_lists_are_split_like_arrays():
    data = _data(100)
    lists = replace(data, train_x=data.train_x.tolist(), train_y=data.train_y.tolist())
    for ordered in (False, True):
        split, val_x, val_y = _split(lists, 0.1, ordered=ordered)
        assert len(split.train_x) + len(val_x) == 100 and len(val_x) == len(val_y)


def test_the_tasks_own_validation_part_is_left_alone():
    """This includes an empty part, which means that there is none."""
    own = replace(_data(100), val_x=_inputs(4, 2), val_y=np.zeros(4))
    none = replace(own, val_x=_inputs(0), val_y=np.zeros(0))
    assert split_for(TOY, own) is own
    assert split_for(TOY, none) is none


def test_share_and_order_are_the_tasks():
    data = _data(100)
    assert np.array_equal(
        split_for(replace(TOY, validation_share=0.1), data).train_x, with_validation(data, 0.1).train_x
    )
    by_time = split_for(replace(TOY, ordered=True, validation_share=0.2), data)
    assert np.array_equal(by_time.train_x, data.train_x[:80])
    assert len(split_for(replace(TOY, validation_share=0.0), data).train_x) == 100


@pytest.mark.parametrize("share", [-0.1, 0.6, float("nan")])
def test_a_share_that_cannot_be_is_refused(share):
    with pytest.raises(UsageError, match=r"'toy': validation_share is .*; it must be from 0 to 0\.5"):
        replace(TOY, validation_share=share)


@pytest.mark.parametrize(
    ("val_x", "val_y", "words"),
    [
        (np.zeros((3, 3)), np.zeros(2), "validation data has 3 inputs but 2 targets"),
        (np.zeros((3, 3)), None, "validation data has val_x but no val_y"),
        (None, np.zeros(3), "validation data has val_y but no val_x"),
    ],
)
def test_a_validation_part_without_its_targets_is_refused(val_x, val_y, words):
    with pytest.raises(DataError, match=words):
        replace(_data(10), val_x=val_x, val_y=val_y)
