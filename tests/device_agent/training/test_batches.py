"""The endless stream of batches."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.device_agent.training.batches import attempt_seed, batch_indices, stream_seed, update_seed

NUMBERS = st.integers(1, 40)
SEEDS = st.integers(0, 2**64 - 1)


@given(n=NUMBERS, batch_size=NUMBERS, passes=st.integers(1, 4), seed=SEEDS)
def test_each_pass_takes_each_example_once(n, batch_size, passes, seed):
    """The stream, cut into pieces of n, is a sequence of permutations."""
    size = min(batch_size, n)
    stream = np.concatenate(list(batch_indices(n, batch_size, 0, -(-passes * n // size), seed)))
    for number in range(passes):
        assert sorted(stream[number * n : (number + 1) * n]) == list(range(n))


@given(n=NUMBERS, batch_size=NUMBERS, first=st.integers(0, 100), count=st.integers(0, 20), seed=SEEDS)
def test_to_continue_is_not_to_have_stopped(n, batch_size, first, count, seed):
    """Batches from `first` on are the same, whether the earlier ones were taken now or in another round."""
    whole = list(batch_indices(n, batch_size, 0, first + count, seed))
    rest = list(batch_indices(n, batch_size, first, count, seed))
    assert len(rest) == count
    assert all(np.array_equal(one, other) for one, other in zip(whole[first:], rest, strict=True))


@given(n=NUMBERS, batch_size=NUMBERS, first=st.integers(0, 100), count=st.integers(1, 20), seed=SEEDS)
def test_attempt_shuffles_the_examples_of_a_round_within_each_pass(n, batch_size, first, count, seed):
    """So passes stay whole over the rounds, whatever attempts they have."""
    size = min(batch_size, n)
    plain = np.concatenate(list(batch_indices(n, batch_size, first, count, seed)))
    mixed = np.concatenate(list(batch_indices(n, batch_size, first, count, seed, b"attempt")))
    ends = [0, *range(n - first * size % n, count * size, n), count * size]
    for begin, end in pairwise(ends):
        assert sorted(plain[begin:end]) == sorted(mixed[begin:end])


def test_attempts_have_batches_and_rounding_of_their_own():
    one, other = (np.concatenate(list(batch_indices(50, 5, 0, 5, 9, attempt))) for attempt in (b"1", b"2"))
    assert not np.array_equal(one, other)
    assert len({attempt_seed(9, attempt) for attempt in (b"", b"1", b"2")}) == 3
    assert attempt_seed(9, b"") == 9


def test_passes_and_devices_have_orders_of_their_own():
    first, second = batch_indices(50, 50, 0, 2, stream_seed(0, "ann"))
    (other,) = batch_indices(50, 50, 0, 1, stream_seed(0, "bob"))
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, other)


def test_the_stream_is_the_documented_one():
    """Pass p is numpy's permutation under the seed [stream_seed, p], so others can repeat a run."""
    expected = np.concatenate([np.random.default_rng([9, number]).permutation(7) for number in range(3)])
    found = np.concatenate(list(batch_indices(7, 3, 0, 7, 9)))
    np.testing.assert_array_equal(found, expected)


def test_the_stream_seed_never_changes():
    """Literal values: a device whose software is updated during a run continues where it was."""
    assert stream_seed(0, "pi-1") == 0xF9BF75B9160B909C
    assert stream_seed(1, "pi-1") != stream_seed(0, "pi-1") != stream_seed(0, "pi-2")


def test_an_update_is_rounded_by_seed_device_and_place():
    """A literal value too. Another run, device or round has another rounding; the same round has the same."""
    assert update_seed(0, "pi-1", 10) == 0x24C1818D4DEC178B
    others = {
        update_seed(1, "pi-1", 10),
        update_seed(0, "pi-2", 10),
        update_seed(0, "pi-1", 20),
        stream_seed(0, "pi-1"),
    }
    assert len(others | {update_seed(0, "pi-1", 10)}) == 5


@pytest.mark.parametrize(("n", "batch_size"), [(0, 5), (5, 0)])
def test_no_batch_can_be_made_of_nothing(n, batch_size):
    with pytest.raises(ValueError, match="at least 1"):
        next(batch_indices(n, batch_size, 0, 1, 0))
