"""Laws of the groups of a masked round."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.coordinator.masking.masked_groups import draw_groups, group_sizes, largest_group

SIZES = st.integers(2, 64).flatmap(lambda size: st.tuples(st.just(size), st.integers(2, size)))


def devices(count: int) -> list[str]:
    return [f"pi-{number:03}" for number in range(count)]


@given(st.integers(0, 300), SIZES, st.integers(0, 2**53), st.integers(1, 1000))
def test_groups_are_a_partition_of_equal_sizes_within_the_limits(count, sizes, seed, number):
    size, least = sizes
    groups = draw_groups(devices(count), seed, number, size=size, least=least)
    if count < least:
        assert groups == []
        return
    assert sorted(device for group in groups for device in group) == devices(count)
    lengths = [len(group) for group in groups]
    assert max(lengths) - min(lengths) <= 1
    assert least <= min(lengths)
    assert max(lengths) <= largest_group(size, least)
    assert all(group == sorted(group) for group in groups)


@given(SIZES)
def test_largest_group_is_the_greatest_size_that_occurs(sizes):
    size, least = sizes
    found = {length for count in range(least, 3 * size) for length in group_sizes(count, size=size, least=least)}
    assert max(found) == largest_group(size, least)


@pytest.mark.parametrize("least", [2, 8])
def test_so_many_devices_as_the_least_group_are_one_group(least):
    assert draw_groups(devices(least), 0, 1, size=least, least=least) == [devices(least)]


@given(st.integers(0, 100), st.integers(2, 20), st.data())
def test_no_group_is_larger_than_the_largest_one_and_as_few_devices_as_need_be_are_left_out(count, least, data):
    """The grid of a site's sums is made for groups up to the size of the parent's largest group."""
    most = data.draw(st.integers(least, 40))
    groups = draw_groups(devices(count), 1, 1, size=most, least=least, most=most)
    assert all(least <= len(group) <= most for group in groups)
    assert sum(map(len, groups)) == min(count, most * (count // least))


@given(st.permutations(devices(20)), st.integers(0, 100))
def test_groups_depend_on_the_set_of_devices_only(shuffled, seed):
    assert draw_groups(shuffled, seed, 1, size=8, least=4) == draw_groups(devices(20), seed, 1, size=8, least=4)


def test_groups_differ_between_rounds_and_seeds():
    drawn = [draw_groups(devices(32), seed, number, size=8, least=8) for seed in range(3) for number in range(1, 4)]
    assert len({str(groups) for groups in drawn}) == len(drawn)


def test_two_devices_share_a_group_as_often_as_by_chance():
    """With two groups of eight the probability is 7 / 15; the test draws 2,000 rounds."""
    together = Counter(
        any({"pi-000", "pi-001"} <= set(group) for group in draw_groups(devices(16), 1, number, size=8, least=8))
        for number in range(2000)
    )
    assert together[True] / 2000 == pytest.approx(7 / 15, abs=0.04)


@pytest.mark.parametrize(("size", "least"), [(8, 9), (8, 1), (8, 0)])
def test_impossible_sizes_raise_value_error(size, least):
    with pytest.raises(ValueError, match=str(least)):
        draw_groups(devices(20), 0, 1, size=size, least=least)
