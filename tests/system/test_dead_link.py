"""A coordinator whose link to the broker drops all packets in silence, beside devices whose links are good."""

from __future__ import annotations

import pytest

from tests.broker.relay import Relay
from tests.support.brokers import Mosquitto
from tests.system.fleet import Fleet
from tests.system.oracle_task import REFERENCE

pytestmark = [pytest.mark.system, pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(300)]


def test_dead_link_of_the_coordinator_is_named_and_costs_no_round(mosquitto: Mosquitto, tmp_path):
    with Fleet(mosquitto.url, tmp_path / "devices") as fleet, Relay(mosquitto.port) as cable:
        for device in ("ann", "bob"):
            fleet.start(device, REFERENCE, "n=20,test=10,seed=1")
        fleet.wait_ready()
        terms = {"broker": cable.url, "task": REFERENCE, "devices": 2, "rounds": 3, "round_interval_s": 2}
        with fleet.coordinator(tmp_path / "c", **terms, recruit_deadline_s=2) as run:
            run.wait(lambda: "round 1/3" in run.err, "plays a round")
            cable.fall_silent()
            done = run.done()
    assert done.code == 0, done.err
    assert [(one["outcome"], one["reported"]) for one in done.document["rounds"]] == [("aggregated", 2)] * 3
    assert "no device has answered; checking the link to the broker" in done.err
    assert "did not acknowledge a message in time, so the link is made anew" in done.err
