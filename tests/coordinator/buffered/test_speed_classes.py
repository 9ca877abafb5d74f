"""Speed classes: the share of each fifth of the fleet in the weights of a version."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.coordinator.buffered.speed_classes import CLASSES, SpeedClasses

TIMES = st.dictionaries(st.sampled_from("abcdefghijkl"), st.floats(0.1, 100.0), min_size=CLASSES)


def speeds_of(train_s: dict[str, float]) -> SpeedClasses:
    speeds = SpeedClasses()
    for device, one in train_s.items():
        speeds.note(device, one)
    return speeds


def test_fifths_are_in_the_order_of_training_times_and_devices_without_weight_count_nothing():
    speeds = speeds_of({"a": 50.0, "b": 40.0, "c": 30.0, "d": 20.0, "e": 10.0})
    assert speeds.shares({"a": 1.0, "e": 2.0}) == (0.6667, 0.0, 0.0, 0.0, 0.3333)


def test_weights_of_a_fifth_are_added():
    speeds = speeds_of({f"pi-{number}": float(number) for number in range(10)})
    assert speeds.shares({"pi-0": 1.0, "pi-1": 2.0, "pi-4": 1.0}) == (0.75, 0.0, 0.25, 0.0, 0.0)


def test_equal_times_are_in_the_order_of_the_ids():
    speeds = speeds_of(dict.fromkeys("edcba", 1.0))
    assert speeds.shares({"a": 1.0}) == (1.0, 0.0, 0.0, 0.0, 0.0)


def test_last_training_time_of_a_device_counts():
    speeds = speeds_of({"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0, "e": 5.0})
    speeds.note("a", 9.0)
    assert speeds.shares({"a": 1.0}) == (0.0, 0.0, 0.0, 0.0, 1.0)


@pytest.mark.parametrize(("devices", "weights"), [("abcd", {"a": 1.0}), ("abcde", {}), ("abcde", {"a": 0.0})])
def test_fewer_devices_than_classes_and_no_weight_give_no_shares(devices, weights):
    assert speeds_of(dict.fromkeys(devices, 1.0)).shares(weights) == ()


@given(TIMES, st.data())
def test_shares_of_any_fleet_sum_to_one(train_s, data):
    weights = data.draw(st.dictionaries(st.sampled_from(sorted(train_s)), st.floats(0.1, 10.0), min_size=1))
    shares = speeds_of(train_s).shares(weights)
    assert len(shares) == CLASSES
    assert sum(shares) == pytest.approx(1.0, abs=CLASSES * 5e-5)
