"""The device that a new one replaces in a full fleet."""

from __future__ import annotations

from fedpatch.coordinator.rounds.known_devices import Fleet
from tests.support.specs import TASK, gone, there


def test_full_fleet_evicts_the_longest_gone_idle_device():
    fleet = Fleet(TASK, 3)
    for device in "abc":
        assert fleet.update(device, there())
    assert not fleet.update("d", there())
    for device in "ba":
        fleet.update(device, gone())
    fleet.works("b")
    assert fleet.update("d", there())
    assert (sorted(fleet.members), fleet.evicted) == (["b", "c", "d"], ["a"])
    assert not fleet.update("e", there())
    assert fleet.eligible() == ["c", "d"]
