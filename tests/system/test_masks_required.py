"""Owners that require masks: a listener at the broker, and a coordinator that still requests unmasked updates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fedpatch.coordinator.runtime.start_run import start_run
from fedpatch.shared.wire.codec import decode
from fedpatch.shared.wire.messages import Accept, Decline, DeviceState, Offer
from fedpatch.shared.wire.reason_codes import DeclineReason
from fedpatch.shared.wire.topics import parse_topic
from tests.support.brokers import Mosquitto
from tests.system.fleet import Fleet
from tests.system.oracle_task import REFERENCE
from tests.system.recording import Recorder
from tests.system.views import Silent

pytestmark = [pytest.mark.system, pytest.mark.broker]

DEVICES = {"ann": "n=37,test=30,seed=1", "bob": "n=24,test=30,seed=2"}
FLEET = "demo"


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[tuple[Mosquitto, Fleet]]:
    """Two agents whose owners require masks, at a broker where every client may read everything."""
    with Mosquitto("max_queued_messages 0") as broker, Fleet(broker.url, tmp_path / "agents", name=FLEET) as fleet:
        for device, data in DEVICES.items():
            fleet.start(device, REFERENCE, data, options=["--secure", "required", "--min-threshold", "half"])
        fleet.wait_ready()
        yield broker, fleet


def test_listener_sees_no_update_of_devices_that_are_asked_for_unmasked_ones(fleet, tmp_path):
    """Each declines with a reason of its own; it sends no offers or chunks, and not its number of examples."""
    broker, agents = fleet
    terms = {"strategy": "fedavg", "rounds": 1, "wait_s": 3.0, "recruit_deadline_s": 20.0}
    with Recorder(broker.port, tmp_path) as recorder:
        summary = start_run(agents.settings(tmp_path / "state", REFERENCE, **terms), Silent())
    assert [record.reported for record in summary.rounds if record.reported] == []
    by_kind: dict[str, list[object]] = {}
    for name, payload in recorder.messages:
        topic = parse_topic(FLEET, name)
        if topic is not None and topic.device and payload:
            body = payload if topic.kind == "update_chunk" else decode(payload).body
            by_kind.setdefault(topic.kind, []).append(body)
    assert "update_chunk" not in by_kind
    answers = by_kind["up"]
    assert not [body for body in answers if isinstance(body, Accept | Offer)]
    declines = [body for body in answers if isinstance(body, Decline)]
    assert {body.reason for body in declines} == {DeclineReason.INSECURE_REQUEST}
    assert len(declines) >= len(DEVICES)
    states = [body for body in by_kind["device_state"] if isinstance(body, DeviceState)]
    assert {task.num_examples for state in states for task in state.tasks} == {1}
