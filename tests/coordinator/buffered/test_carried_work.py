"""Carried work: its weight, its age, and signs of life of its device."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedpatch.coordinator.buffered.carried_work import CarriedDevices, CarriedWork
from fedpatch.coordinator.buffered.staleness_weight import CarryPolicy

WORK = CarriedWork(3, 1, version=2, base="ab", encoding="fp32")


@pytest.mark.parametrize(
    ("staleness", "power", "factor"), [(0, 0.5, 1.0), (3, 0.5, 0.5), (1, 2.0, 0.25), (5, 0.0, 1.0)]
)
def test_weight_falls_with_the_power_of_the_versions(staleness, power, factor):
    assert CarryPolicy(8, power).factor(staleness) == pytest.approx(factor)


def test_work_is_that_of_its_own_round_only():
    carried = CarriedDevices({"a": WORK})
    assert carried.of("a", 3) == WORK
    assert carried.of("a", 4) is None
    assert carried.of("b", 3) is None


@pytest.mark.parametrize(("epoch", "expected"), [(None, 1), (0, 0), (7, 7)])
def test_sign_of_a_device_sets_what_it_says_alone(epoch, expected):
    carried = CarriedDevices({"a": WORK})
    carried.note("a", busy=False, epoch=epoch)
    assert carried.works == {"a": replace(WORK, busy=False, epoch=expected)}
    assert carried.busy == set()


def test_work_expires_when_its_base_is_older_than_allowed():
    young = replace(WORK, version=3)
    carried = CarriedDevices({"old": WORK, "young": young})
    assert carried.expire(version=6, max_staleness=3) == {"old": WORK}
    assert carried.works == {"young": young}


def test_added_work_replaces_that_of_the_same_device_and_is_taken_once():
    carried = CarriedDevices({"a": WORK})
    carried.add({"a": replace(WORK, round=4), "b": WORK})
    assert carried.take("a").round == 4
    assert set(carried.works) == {"b"}
