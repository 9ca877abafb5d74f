"""Statuses of a run of 30 rounds, for the tests of the views and of the messages."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

from rich.console import Console

from fedpatch.coordinator.observability.live_view import draw
from fedpatch.coordinator.observability.status_message import EMPTY_STATUS, StatusMessage, bounded, received_message
from fedpatch.coordinator.rounds.participant_transitions import State
from fedpatch.coordinator.rounds.round_record import PhaseSeconds, RoundRecord
from fedpatch.shared.wire.codec import decode, encode
from fedpatch.shared.wire.messages import Envelope
from fedpatch.shared.wire.run_status import DeviceStatus, RunStatus


def waiting(*devices: DeviceStatus, **fields: Any) -> StatusMessage:
    """Return the status of a run that waits: 3 of 10 devices are present."""
    records, unwilling = tuple(fields.pop("records", ())), fields.pop("unwilling", {})
    run, number = fields.pop("run", "20260504-101500-3fa9c1"), fields.pop("round", 0)
    status = replace(EMPTY_STATUS, **{"rounds_in_all": 30, "target_ua": 0.97, "present": 3, "wanted": 10, **fields})
    status = bounded(status, devices=devices, records=records, unwilling=unwilling)
    return StatusMessage(run, number, status, records)


def collecting(*devices: DeviceStatus, **fields: Any) -> StatusMessage:
    """Return the status with round 3 open, after two completed rounds."""
    reported = sum(device.state == State.REPORTED for device in devices)
    known = {"round": 3, "phase": "collecting", "present": 10, "reported": reported, "needed": 8, "elapsed_s": 4.2}
    return waiting(*devices, **{**known, "records": (record(1, 0.4), record(2, 0.8)), **fields})


def record(number: int, ua: float = 0.912, **fields: Any) -> RoundRecord:
    """Return the record of a completed round without problems."""
    usual = RoundRecord(
        number,
        "aggregated",
        cohort=10,
        accepted=10,
        declined=0,
        reported=10,
        user_accuracy=ua,
        user_accuracy_min=0.83,
        phase_seconds=PhaseSeconds(train=1.5, upload=0.4),
        bytes_down=54_000,
        bytes_up=51_000,
    )
    return replace(usual, **fields)


def fleet(count: int) -> tuple[DeviceStatus, ...]:
    """Return devices in all states, with different progress."""
    states = list(State)
    return tuple(
        DeviceStatus(
            f"device-{index:03}", states[index % len(states)], "a reason" if index % 5 == 0 else "", index / count
        )
        for index in range(count)
    )


def text_of(message: StatusMessage, *, over: bool = False) -> list[str]:
    """Return the lines of the frame on a terminal of 80 columns."""
    console = Console(file=io.StringIO(), width=80, record=True, markup=False)
    console.print(draw(message, over=over))
    return console.export_text().splitlines()


def passed_on(message: StatusMessage) -> StatusMessage:
    """Return the message as a watcher receives it."""
    received = decode(encode(Envelope(message.status, run=message.run, round=message.round)))
    assert isinstance(received.body, RunStatus)
    return received_message(received, received.body)
