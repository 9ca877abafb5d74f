"""Splits and shards: complete, repeatable, and without the leak that each of them prevents."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.shared.errors import DataError, UsageError
from fedpatch.shared.tasks.examples import from_arrays, windows
from fedpatch.shared.tasks.splits import (
    block_split,
    dirichlet_shards,
    equal_shards,
    group_shards,
    group_split,
    label_shards,
    random_split,
    stratified_split,
    time_split,
)

SHARES = st.floats(0.05, 0.95)


@given(st.integers(2, 300), SHARES, st.integers(0, 5))
def test_a_random_split_has_both_parts_in_the_share_that_was_asked(count, share, seed):
    test = random_split(count, share, seed)
    assert len(test) == count and 1 <= test.sum() < count
    assert abs(test.sum() - count * share) <= 1
    np.testing.assert_array_equal(test, random_split(count, share, seed))


@given(st.lists(st.integers(0, 4), min_size=4, max_size=200), SHARES)
def test_a_stratified_split_has_every_class_of_two_in_both_parts(labels, share):
    """So every tested class was trained on."""
    found = np.array(labels)
    if all(np.bincount(found) < 2):
        return
    test = stratified_split(found, share)
    for label in np.unique(found):
        members = test[found == label]
        assert (members.any() and not members.all()) if len(members) > 1 else not members.any()


WHOLE_NUMBERS = st.sampled_from([np.int8, np.uint8, np.int64, np.uint32, np.uint64])


@given(st.lists(st.integers(0, 50), min_size=2, max_size=100), SHARES, st.integers(0, 200), WHOLE_NUMBERS)
def test_a_time_split_tests_on_what_comes_after_training(times, share, gap, kind):
    when = np.array(times, kind)
    try:
        train, test = time_split(when, share, gap)
    except DataError:
        return
    assert not (train & test).any() and train.any() and test.any()
    assert when[train].max() < when[test].min()
    assert not gap or int(when[test].min()) - int(when[train].max()) > gap


@given(st.integers(1, 300), st.integers(1, 20), st.integers(2, 6), st.integers(0, 5), st.text(max_size=4))
def test_a_block_split_keeps_neighbours_of_test_examples_out_of_training(count, block, every, gap, name):
    train, test = block_split(count, block, every, gap, name)
    assert not (train & test).any()
    places = np.flatnonzero(test)
    for place in np.flatnonzero(train):
        assert not len(places) or np.abs(places - place).min() > gap
    more_train, more_test = block_split(count + 57, block, every, gap, name)
    np.testing.assert_array_equal(more_train[:count], train)
    np.testing.assert_array_equal(more_test[:count], test)


def test_a_block_split_tests_on_one_block_in_so_many():
    masks = {name: block_split(1000, 10, 5, 2, name) for name in ("a", "b", "c", "d", "e", "f")}
    assert {int(test.sum()) for _, test in masks.values()} == {200}
    assert len({test.tobytes() for _, test in masks.values()}) > 1


def test_neighbours_leak_through_a_random_split_and_not_through_blocks():
    """A model that copies the label of the nearest training reading scores well on the random split only."""
    rng = np.random.default_rng(5)
    values = np.cumsum(rng.normal(size=2000))
    labels = np.repeat(rng.integers(0, 2, 50), 40)  # each state lasts for forty readings and is otherwise random

    def nearest(train, test):
        known = np.flatnonzero(train)
        found = [known[np.abs(known - place).argmin()] for place in np.flatnonzero(test)]
        return float((labels[found] == labels[test]).mean())

    drawn = random_split(len(values))
    assert nearest(~drawn, drawn) > 0.95
    assert nearest(*block_split(len(values), 80, 5, 40)) < 0.75


@given(st.lists(st.sampled_from("abcdef"), min_size=2, max_size=100), SHARES)
def test_a_group_split_keeps_each_group_in_one_part(groups, share):
    found = np.array(groups)
    if len(set(groups)) < 2:
        with pytest.raises(DataError, match="needs two"):
            group_split(groups, share)
        return
    test = group_split(groups, share)
    assert not set(found[test]) & set(found[~test])
    assert test.any() and not test.all()


@given(st.integers(1, 100), st.integers(1, 20), st.integers(0, 3))
def test_equal_shards_give_each_example_to_one_device(count, devices, seed):
    if devices > count:
        with pytest.raises(DataError, match="cannot be shared"):
            equal_shards(count, devices, seed)
        return
    shards = equal_shards(count, devices, seed)
    assert sorted(np.concatenate(shards).tolist()) == list(range(count))
    assert max(map(len, shards)) - min(map(len, shards)) <= 1


@given(st.lists(st.integers(0, 9), min_size=20, max_size=200), st.integers(1, 10))
def test_label_shards_give_each_example_to_one_device(labels, devices):
    shards = label_shards(labels, devices)
    assert sorted(np.concatenate(shards).tolist()) == list(range(len(labels)))
    assert len(shards) == devices


@given(st.lists(st.integers(0, 3), min_size=40, max_size=80), st.integers(1, 4), st.sampled_from([0.3, 1.0, 100.0]))
def test_dirichlet_shards_give_each_example_to_one_device_and_each_device_the_least(labels, devices, alpha):
    try:
        shards = dirichlet_shards(labels, devices, alpha, least=3)
    except DataError:
        return
    assert sorted(np.concatenate(shards).tolist()) == list(range(len(labels)))
    assert min(len(shard) for shard in shards) >= 3


def test_dirichlet_shards_mix_classes_evenly_with_a_large_alpha_and_unevenly_with_a_small_one():
    labels = np.repeat(np.arange(4), 500)
    even, uneven = (
        max(np.bincount(labels[shard], minlength=4).max() / len(shard) for shard in dirichlet_shards(labels, 5, alpha))
        for alpha in (1000.0, 0.1)
    )
    assert even < 0.3
    assert uneven > 0.7


def test_impossible_dirichlet_shards_are_an_error():
    with pytest.raises(DataError, match="at least 5"):
        dirichlet_shards([0, 1, 2], 2)
    with pytest.raises(UsageError, match="above 0"):
        dirichlet_shards([0] * 50, 2, alpha=0.0)


def test_label_shards_give_a_device_few_classes():
    """Two shards of a sorted data set have two classes if each class is as long as a shard."""
    labels = np.repeat(np.arange(10), 20)
    assert all(len(np.unique(labels[one])) <= 2 for one in label_shards(labels, 5))


@given(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=60), st.integers(1, 6))
def test_group_shards_give_each_group_to_one_device(groups, devices):
    if devices > len(set(groups)):
        with pytest.raises(DataError, match="cannot be shared"):
            group_shards(groups, devices)
        return
    owners = [set(np.array(groups)[one]) for one in group_shards(groups, devices)]
    assert sum(map(len, owners)) == len(set(groups)) and all(owners)


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0, float("nan")])
def test_a_share_that_leaves_nothing_is_refused(share):
    with pytest.raises(UsageError, match="must be above 0 and below 1"):
        random_split(10, share)


def test_too_few_examples_are_refused():
    with pytest.raises(DataError, match="cannot be split"):
        random_split(1)
    with pytest.raises(DataError, match="0 examples cannot be split"):
        time_split([])
    with pytest.raises(DataError, match="a gap of 100 leaves no training example"):
        time_split(range(10), gap=100)
    with pytest.raises(UsageError, match="use a block of 1 or more"):
        block_split(10, 0)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: random_split([1, 2, 3]), "give the examples, or their number"),  # type: ignore[arg-type]
        (lambda: random_split(np.zeros((9, 2))), "give the examples, or their number"),  # type: ignore[arg-type]
        (lambda: block_split([1, 2, 3], 2), "give the examples, or their number"),  # type: ignore[arg-type]
        (lambda: block_split(30, 2.5), "must be integers"),  # type: ignore[arg-type]
        (lambda: stratified_split(["a", None, "b", "a"]), "a class is missing"),  # type: ignore[arg-type]
        (lambda: stratified_split([1.0, math.nan, 0.0]), "a class is missing"),
        (lambda: group_split(["ann", None, "bob"]), "a group is missing"),
        (lambda: group_split(pd.Series(["ann", pd.NA, "bob"])), "a group is missing"),
        (lambda: group_split(["ann", math.nan, "bob"]), "a group is missing"),
        (lambda: group_split(pd.Series(["ann", 7, "bob"])), "group names are of several kinds"),
        (lambda: group_split([["ann"], ["bob", "eve"]]), "are no list of one value for each example"),
        (lambda: group_shards(["ann", None, "bob"], 2), "a group is missing"),
        (lambda: time_split([1.0, math.nan, 2.0]), "a time is missing"),
        (lambda: time_split(["1", "2", "10"]), "the times are texts"),
        (lambda: windows(from_arrays(np.zeros((9, 1)), np.zeros(9)), 2.0), "must be integers"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_number_class_group_or_time_is_an_error_of_ours(call, words):
    with pytest.raises((DataError, UsageError), match=words):
        call()
