"""A run waits for devices that are loading their task."""

from __future__ import annotations

from fedpatch.coordinator.cohort.unresponsive_devices import STARTING_S
from fedpatch.coordinator.rounds.known_devices import Fleet
from fedpatch.coordinator.rounds.run_effects import EndRun, PublishModel
from fedpatch.coordinator.rounds.run_events import DevicePresence, TimePassed
from fedpatch.coordinator.rounds.run_records import RoundRecord
from fedpatch.shared.wire.messages import TaskCapability
from tests.coordinator.engines import engine
from tests.support.specs import TASK, gone, there

OTHER = (TaskCapability("faces", "11" * 32, 10), TaskCapability("gaits", "22" * 32, 10))


def starting(boot: str = "b1"):
    """Presence of a device that is loading its task."""
    return there(boot, tasks=())


class TestFleet:
    def test_device_without_tasks_is_starting_and_cannot_be_asked(self):
        fleet = Fleet(TASK)
        fleet.update("a", fleet.relevant(starting()))
        assert (fleet.starting, fleet.is_starting("a"), fleet.present, fleet.eligible()) == (1, True, 0, [])
        fleet.update("a", fleet.relevant(there()))
        assert (fleet.starting, fleet.is_starting("a"), fleet.present) == (0, False, 1)

    def test_device_with_other_tasks_is_not_starting(self):
        fleet = Fleet(TASK)
        state = fleet.relevant(there(tasks=OTHER))
        fleet.update("a", state)
        assert (fleet.starting, fleet.present, state.tasks) == (0, 0, OTHER[:1])

    def test_offline_or_held_device_is_not_starting(self):
        fleet = Fleet(TASK)
        for device in "ab":
            fleet.update(device, starting())
        fleet.update("a", gone())
        fleet.hold({"b": "drained"})
        assert fleet.starting == 0

    def test_evicted_device_is_not_starting(self):
        fleet = Fleet(TASK, most=1)
        fleet.update("a", starting())
        fleet.update("a", gone())
        fleet.update("b", starting())
        assert (fleet.starting, fleet.evicted) == (1, ["a"])


class TestWaiting:
    def test_run_waits_longer_while_devices_are_starting(self):
        made = engine(devices=10, wait_s=60.0)
        for number in range(10):
            made.handle(DevicePresence(f"pi-{number}", starting()), 30.0)
        assert made.next_deadline() == 60.0 + STARTING_S
        assert made.handle(TimePassed(), 61.0) == []
        for number in range(9):
            assert made.handle(DevicePresence(f"pi-{number}", there()), 200.0 + number) == []
        assert made.handle(DevicePresence("pi-9", there()), 300.0) == [PublishModel(1)]

    def test_run_that_ends_without_devices_counts_those_that_are_starting(self):
        made = engine(devices=3, wait_s=60.0)
        made.handle(DevicePresence("a", there()), 1.0)
        made.handle(DevicePresence("b", starting()), 1.0)
        assert made.handle(TimePassed(), 60.0 + STARTING_S - 1) == []
        [finish] = made.handle(TimePassed(), 60.0 + STARTING_S)
        assert isinstance(finish, EndRun)
        assert "1 of 3 devices came within 60 s, and 1 more are still starting 300 s later" in finish.detail
        assert "--wait-s" in finish.detail

    def test_run_ends_when_too_few_devices_came_and_none_is_starting(self):
        made = engine(devices=2, wait_s=60.0)
        made.handle(DevicePresence("a", starting()), 1.0)
        assert made.handle(TimePassed(), 70.0) == []
        [finish] = made.handle(DevicePresence("a", there()), 80.0)
        assert isinstance(finish, EndRun)

    def test_resumed_run_waits_for_devices_that_are_starting(self):
        made = engine([RoundRecord(1, "aggregated", 2, 2, 0, 2)], epoch=2, devices=2, wait_s=60.0)
        made.handle(DevicePresence("a", there()), 1.0)
        made.handle(DevicePresence("b", starting()), 1.0)
        assert made.handle(TimePassed(), 100.0) == []
        assert made.handle(DevicePresence("b", there()), 120.0) == [PublishModel(2)]
