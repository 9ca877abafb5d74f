"""Devices that say that they are starting are waited for, and named."""

from __future__ import annotations

import io

from fedpatch.coordinator.cohort.unresponsive_devices import STARTING_S
from fedpatch.coordinator.observability.live_view import PlainView
from fedpatch.coordinator.observability.snapshot import Snapshot, snapshot_of, status_of, take_snapshot
from fedpatch.coordinator.rounds.known_devices import Fleet
from fedpatch.coordinator.rounds.run_effects import EndRun, PublishModel
from fedpatch.coordinator.rounds.run_records import RoundRecord
from fedpatch.shared.wire.codec import decode, encode
from fedpatch.shared.wire.messages import Envelope, TaskCapability
from fedpatch.shared.wire.run_status import RunStatus
from tests.coordinator.engines import engine
from tests.support.specs import TASK, gone, there

OTHER = (TaskCapability("faces", "11" * 32, 10), TaskCapability("gaits", "22" * 32, 10))


def starting(boot: str = "b1"):
    """Presence of a device that loads its task."""
    return there(boot, tasks=())


class TestFleet:
    def test_device_without_tasks_is_starting_and_cannot_be_asked(self):
        """Until it says what it can train."""
        fleet = Fleet(TASK)
        fleet.update("a", fleet.relevant(starting()))
        assert (fleet.starting, fleet.is_starting("a"), fleet.present, fleet.eligible()) == (1, True, 0, [])
        fleet.update("a", fleet.relevant(there()))
        assert (fleet.starting, fleet.is_starting("a"), fleet.present) == (0, False, 1)

    def test_device_with_other_tasks_is_not_starting(self):
        """It will never be ready for this run; of its tasks no more than one takes room."""
        fleet = Fleet(TASK)
        state = fleet.relevant(there(tasks=OTHER))
        fleet.update("a", state)
        assert (fleet.starting, fleet.present, state.tasks) == (0, 0, OTHER[:1])

    def test_device_that_goes_or_is_held_back_is_not_starting(self):
        """Nobody waits for it."""
        fleet = Fleet(TASK)
        for device in "ab":
            fleet.update(device, starting())
        fleet.update("a", gone())
        fleet.hold({"b": "drained"})
        assert fleet.starting == 0

    def test_device_that_had_to_make_room_is_forgotten(self):
        """A fleet of names that come and go stays small."""
        fleet = Fleet(TASK, most=1)
        fleet.update("a", starting())
        fleet.update("a", gone())
        fleet.update("b", starting())
        assert (fleet.starting, fleet.evicted) == (1, ["a"])


class TestWaiting:
    def test_run_waits_longer_while_devices_are_starting(self):
        """Ten agents on a busy machine load torch for longer than `wait_s`; they come, and the run begins."""
        made = engine(devices=10, wait_s=60.0)
        for number in range(10):
            made.on_state(f"pi-{number}", starting(), 30.0)
        assert made.next_deadline() == 60.0 + STARTING_S
        assert made.tick(61.0) == []
        for number in range(9):
            assert made.on_state(f"pi-{number}", there(), 200.0 + number) == []
        assert made.on_state("pi-9", there(), 300.0) == [PublishModel(1)]

    def test_run_that_waits_in_vain_says_who_is_still_starting(self):
        """And does not wait for ever."""
        made = engine(devices=3, wait_s=60.0)
        made.on_state("a", there(), 1.0)
        made.on_state("b", starting(), 1.0)
        assert made.tick(60.0 + STARTING_S - 1) == []
        [finish] = made.tick(60.0 + STARTING_S)
        assert isinstance(finish, EndRun)
        assert "1 of 3 devices came within 60 s, and 1 more are still starting 300 s later" in finish.detail
        assert "--wait-s" in finish.detail

    def test_run_waits_no_longer_once_nobody_is_starting(self):
        """The devices that started are not enough, and nobody else comes."""
        made = engine(devices=2, wait_s=60.0)
        made.on_state("a", starting(), 1.0)
        assert made.tick(70.0) == []
        [finish] = made.on_state("a", there(), 80.0)
        assert isinstance(finish, EndRun)

    def test_run_that_is_taken_up_waits_for_devices_that_are_starting(self):
        """They were restarted with the machine that the coordinator is on."""
        made = engine([RoundRecord(1, "aggregated", 2, 2, 0, 2)], epoch=2, devices=2, wait_s=60.0)
        made.on_state("a", there(), 1.0)
        made.on_state("b", starting(), 1.0)
        assert made.tick(100.0) == []
        assert made.on_state("b", there(), 120.0) == [PublishModel(2)]


class TestShown:
    def waiting(self, ready: int, comes: int) -> Snapshot:
        """Of ten devices."""
        made = engine(devices=10, wait_s=60.0)
        for number in range(ready + comes):
            made.on_state(f"pi-{number}", there() if number < ready else starting(), 1.0)
        return take_snapshot(made, 2.0)

    def test_plain_line_counts_those_that_are_starting(self):
        """And another line comes when none is left; not one for each of a thousand."""
        out = io.StringIO()
        view = PlainView(out)
        for ready, comes in ((0, 0), (3, 7), (4, 6), (5, 0), (10, 0)):
            view.show(self.waiting(ready, comes))
        assert out.getvalue().splitlines() == [
            "waiting for devices: 0 of 10 are there",
            "waiting for devices: 3 of 10 are there; 7 starting",
            "waiting for devices: 5 of 10 are there",
        ]

    def test_watchers_are_told(self):
        """Over the wire; an earlier coordinator tells 0."""
        snapshot = self.waiting(3, 7)
        message = decode(encode(Envelope(status_of(snapshot), run="r")))
        assert isinstance(message.body, RunStatus)
        assert snapshot_of(message, message.body).starting == 7
