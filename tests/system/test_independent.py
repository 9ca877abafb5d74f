"""Devices with different rules for their labels: the default policy loses to learning alone, and the run reports it."""

from __future__ import annotations

import pytest

from tests.support.brokers import Mosquitto
from tests.system.commands import run
from tests.system.fleet import Fleet
from tests.system.oracle_task import REFERENCE

pytestmark = [pytest.mark.system, pytest.mark.broker]

ROUNDS, EVERY = 12, 4
DEVICES = {f"pi-{index}": f"n=200,test=100,seed={index}" for index in range(3)}


@pytest.mark.slow
def test_a_run_with_the_default_policy_warns_where_devices_lose(tmp_path):
    with Mosquitto() as broker, Fleet(broker.url, tmp_path, name="odd") as fleet:
        for device, data in DEVICES.items():
            fleet.start(device, REFERENCE, data)
        fleet.wait_ready()
        terms = {
            "task": REFERENCE,
            "devices": 3,
            "rounds": ROUNDS,
            "independent_every": EVERY,
            "wait_s": 150,
            "epochs": 3,
        }
        with fleet.coordinator(tmp_path / "state", **terms) as coordinator:
            done = coordinator.done()
        shown = run("fedpatch", "show", "last", "--state-dir", tmp_path / "state")
        for agent in fleet.agents.values():
            agent.terminate()  # the agent then writes its state of learning alone
    assert done.code == 0, done.err
    rounds = done.document["rounds"]
    assert [one["round"] for one in rounds if one["independent"]] == [4, 8, 12]
    last = rounds[-1]["independent"]
    assert last["measured"] == 3
    assert last["gain"] < -0.05
    assert "worse off than learning alone" in done.err
    assert "--private all" in done.document["warnings"][0]
    assert "warning: round 12 shows that devices are worse off" in shown.out
    assert "gain over learning alone (round 12): " in shown.out
    assert done.document["independent"] == {"round": 12, **last}
    for device in DEVICES:
        assert len(list((tmp_path / device / "patches" / "independent").glob("*.patch"))) == 1
