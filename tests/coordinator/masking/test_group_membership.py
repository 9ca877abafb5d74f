"""The groups of a run: they stay for all rounds, as far as the devices allow."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.coordinator.masking.masked_groups import RunGroups, draw_groups

SIZES = {"size": 8, "least": 4}


def names(count, prefix="pi"):
    return [f"{prefix}-{number:02}" for number in range(count)]


def groups_of(count=16):
    groups = RunGroups(3)
    groups.join(names(count), **SIZES)
    return groups


def of_round(groups, able, number=1, most=8):
    return groups.of_round(able, number, most=most, **SIZES)


@given(absent=st.lists(st.sets(st.sampled_from(names(16)), max_size=3), min_size=2, max_size=4))
def test_devices_are_in_the_same_groups_in_all_rounds_whoever_is_missing(absent):
    groups = groups_of()
    whole = of_round(groups, names(16))
    for number, missing in enumerate(absent, 1):
        present = [[one for one in group if one not in missing] for group in whole]
        assert of_round(groups, set(names(16)) - missing, number) == present


def test_first_groups_of_a_run_are_those_that_its_first_round_would_draw():
    drawn = draw_groups(names(16), 3, 1, **SIZES)
    assert RunGroups(3).join(names(16), **SIZES) == [(number, one) for number in (0, 1) for one in drawn[number]]


def test_devices_without_a_group_are_drawn_into_groups_of_the_size_for_one_round():
    groups = RunGroups(3)
    assert [len(one) for one in groups.of_round(names(8), 1, size=4, least=2, most=8)] == [4, 4]
    assert groups.of_round(names(8), 5, size=4, least=2, most=8) == draw_groups(names(8), 3, 5, size=4, least=2)


def test_devices_without_a_group_beyond_the_greatest_size_are_in_no_group():
    """Seven devices are too few for two groups of four."""
    assert [len(one) for one in RunGroups(3).of_round(names(7), 1, size=4, least=4, most=5)] == [5]


def test_devices_that_join_later_are_a_new_group_once_they_are_enough():
    groups, late = groups_of(), names(5, "late")
    before = of_round(groups, names(16))
    assert groups.join([*names(16), *late[:3]], **SIZES) == []
    added = groups.join([*names(16), *late], **SIZES)
    assert sorted(added) == [(2, device) for device in late]
    assert of_round(groups, [*names(16), *late]) == [*before, late]


def test_devices_too_few_for_a_group_are_guests_of_the_smallest_group_for_one_round():
    groups = groups_of()
    first, second = of_round(groups, names(16))
    able = [*first[1:], *second, "late"]
    assert of_round(groups, able) == [sorted([*first[1:], "late"]), second]
    assert of_round(groups, names(16)) == [first, second]
    assert of_round(groups, [*first, *second, "late"], most=8) == [first, second], "no room"


def test_rest_of_a_group_below_its_least_size_is_a_group_with_others_for_one_round():
    groups = groups_of()
    first, second = of_round(groups, names(16))
    assert of_round(groups, [*first[:4], *second]) == [first[:4], second], "of the least size"
    assert of_round(groups, [*first[:3], *second, "late"]) == [second, sorted([*first[:3], "late"])]
    assert of_round(groups, [*first[:3], *second], most=11) == [sorted([*first[:3], *second])]
    assert of_round(groups, [*first[:2], *second[:3]]) == [sorted([*first[:2], *second[:3]])]
    assert of_round(groups, [*first[:2], second[0]]) == []


@given(count=st.integers(1, 16), seed=st.integers(0, 99))
def test_whole_groups_are_sampled_in_the_order_of_the_draw(count, seed):
    groups = groups_of()
    order = [*names(16), "relay"]
    random.Random(seed).shuffle(order)
    drawn = groups.whole(order, count)
    assert count <= len(drawn) < count + 8
    for group in of_round(groups, names(16)):
        assert set(group) <= set(drawn) or not set(group) & set(drawn)
    assert groups.whole(order, 17) != ()
    assert set(groups.whole(order, 17)) == set(order)


def test_device_without_a_group_is_sampled_alone():
    assert groups_of().whole(["relay-1", "relay-2", *names(16)], 1) == ("relay-1",)


def test_next_process_has_the_groups_that_were_saved():
    groups = RunGroups(3)
    saved = groups.join(names(16), **SIZES)
    again = RunGroups(3, saved)
    assert again.join(names(16), **SIZES) == []
    assert of_round(again, names(16)) == of_round(groups, names(16))


@pytest.mark.parametrize(("count", "rounds"), [(20, 19), (200, 34)])
def test_sums_of_redrawn_groups_have_one_solution_after_the_rounds_of_the_page_and_those_of_a_run_have_none(
    count, rounds
):
    """A value that is the same in each update of a device is then known from the sums."""
    sizes, devices, solved = {"size": 32 if count > 32 else 10, "least": 8}, names(count), []
    for drawn in (rounds - 1, rounds):
        redrawn = [draw_groups(devices, 3, number, **sizes) for number in range(drawn)]
        solved.append(rank(devices, redrawn) == count)
    assert solved == [False, True]
    groups = RunGroups(3)
    groups.join(devices, **sizes)
    of_run = [groups.of_round(devices, number, most=64, **sizes) for number in range(2 * rounds)]
    assert rank(devices, of_run) == len(of_run[0]) < count


def rank(devices, rounds):
    """Return how many independent equations the sums of all groups are."""
    rows = [[one in group for one in devices] for groups in rounds for group in groups]
    return np.linalg.matrix_rank(np.array(rows, float))
