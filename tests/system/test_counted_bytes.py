"""The bytes that an agent tells its owner, beside those of its connection."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.brokers import HOST, Mosquitto
from tests.support.byte_meter import Meter
from tests.system.fleet import Fleet
from tests.system.oracle_task import REFERENCE
from tests.system.stage import PATIENT, outcomes

pytestmark = [pytest.mark.system, pytest.mark.broker, pytest.mark.timeout(600)]


def test_bytes_of_history_and_allowance_are_those_of_the_connection_within_five_percent(
    mosquitto: Mosquitto, tmp_path: Path
):
    """Presence, offers, the model, progress, updates and their acknowledgements, from the first connection to the last."""
    with Meter(mosquitto.port) as meter, Fleet(f"mqtt://{HOST}:{meter.port}", tmp_path) as fleet:
        agent = fleet.start("ann", REFERENCE, "n=23,test=20,seed=2", admission="preferences")
        fleet.wait_ready()
        terms = {**PATIENT, "broker": mosquitto.url, "task": REFERENCE, "devices": 1, "rounds": 2}
        with fleet.coordinator(tmp_path / "coordinator", **terms) as coordinator:
            done = coordinator.done()
        assert outcomes(done.document) == [(number, "aggregated", 1) for number in (1, 2)], done.err + agent.log
        assert agent.terminate() == 0
    entries = [json.loads(line) for line in (agent.state_dir / "history.jsonl").read_text().splitlines()]
    spent = json.loads((agent.state_dir / "usage.json").read_text())["latest"]["spent"]
    sent, received = (sum(entry.get(name, 0) for entry in entries) for name in ("sent_bytes", "received_bytes"))
    assert sent == pytest.approx(meter.up, rel=0.05)
    assert received == pytest.approx(meter.down, rel=0.05)
    assert spent["traffic_bytes"] == pytest.approx(meter.up + meter.down, rel=0.05)
