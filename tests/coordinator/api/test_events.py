"""Events that are made of the status messages of a run."""

from __future__ import annotations

from dataclasses import replace

from fedpatch.coordinator.api.events import EventView, RoundEnded, RoundOpened, RunMessage
from fedpatch.coordinator.observability.status_message import EMPTY_STATUS, StatusMessage
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.shared.wire.run_status import DeviceStatus

RECORDS = tuple(RoundRecord(n, "aggregated", cohort=1, accepted=1, declined=0, reported=1) for n in (1, 2, 3))
IDLE = EMPTY_STATUS
OPEN = replace(EMPTY_STATUS, phase="collecting", devices=(DeviceStatus("pi-1", "training", "", 0.5),), needed=1)


def view_events(*messages: StatusMessage) -> list[object]:
    events: list[object] = []
    view = EventView(events.append)
    for message in messages:
        view.show(message)
    return events


def test_each_round_opens_and_ends_once():
    opened, ended = RoundOpened("r", 1, 1, 1), RoundEnded("r", RECORDS[0])
    shown = [
        StatusMessage("r", 0, IDLE),
        StatusMessage("r", 1, OPEN),
        StatusMessage("r", 1, OPEN),
        StatusMessage("r", 1, IDLE, RECORDS[:1]),
        StatusMessage("r", 2, OPEN, RECORDS[:1]),
    ]
    assert view_events(*shown) == [opened, ended, RoundOpened("r", 2, 1, 1)]


def test_rounds_that_were_shown_together_are_events_in_order():
    events = view_events(StatusMessage("r", 0, IDLE), StatusMessage("r", 3, IDLE, RECORDS))
    assert events == [RoundEnded("r", record) for record in RECORDS]


def test_rounds_before_a_resume_are_no_events():
    shown = StatusMessage("r", 2, IDLE, RECORDS[:2]), StatusMessage("r", 3, IDLE, RECORDS)
    assert view_events(*shown) == [RoundEnded("r", RECORDS[2])]


def test_lines_are_events_and_go_to_the_other_view():
    events: list[object] = []
    shown: list[object] = []

    class Shown:
        show = say = staticmethod(shown.append)

    view = EventView(events.append, Shown())
    view.say("broker: lost")
    view.show(StatusMessage("r", 0, IDLE))
    assert events == [RunMessage("broker: lost")]
    assert shown == ["broker: lost", StatusMessage("r", 0, IDLE)]
