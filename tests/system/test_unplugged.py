"""A device is unplugged while it trains: its work ends as its owner configured, and the reason is visible everywhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.device_agent.sensors import scenes
from tests.support.brokers import Mosquitto
from tests.system.commands import Command, run
from tests.system.fleet import AgentProcess, Fleet
from tests.system.held_task import REFERENCE, Hold

pytestmark = [pytest.mark.broker, pytest.mark.system, pytest.mark.medium]


class Laptop:
    """An agent on a machine with a battery, with a configurable kernel state."""

    def __init__(self, fleet: Fleet, directory: Path, on_loss: str) -> None:
        self.fleet = fleet
        self.directory = directory
        self._scene = scenes.Scene(directory / "root")
        self._scene.card("lo", kind="772")
        self._scene.supply("BAT0", scenes.BATTERY | {"status": "Charging"})
        self.plug(True)
        terms = {"conditions-root": self._scene.root, "on-loss": on_loss, "return-after-s": 1}
        options = [f"--{name}={value}" for name, value in terms.items()]
        self.hold = Hold(directory / "hold")
        self.hold.at(2)  # of three steps
        data = f"n=24,test=20,seed=1;{self.hold.path}"
        self.agent: AgentProcess = fleet.start("ann", REFERENCE, data, admission="preferences", options=options)
        fleet.wait_ready()

    def plug(self, online: bool) -> None:
        self._scene.supply("BAT0", {"status": "Charging" if online else "Discharging"})
        self._scene.supply("AC", scenes.MAINS | {"online": "1" if online else "0"})

    def run(self, **terms: object) -> Command:
        """A run of one round with this device alone."""
        given = {"task": REFERENCE, "devices": 1, "rounds": 1, "wait_s": 200, "deadline_s": 200}
        return self.fleet.coordinator(self.directory / "coordinator", **(given | terms))

    def wait_training(self) -> None:
        """Return once the device is held in its training, until `hold` is released."""
        self.agent.wait(lambda: self.hold.reached, "trains")

    def status_text(self) -> str:
        return run("fedpatch-agent", "status", "--state-dir", self.agent.state_dir).out


@pytest.fixture
def laptop(mosquitto: Mosquitto, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Laptop]:
    """A laptop that is plugged in and ready; the parameter is the owner's `on_loss` for work when it is unplugged."""
    with Fleet(mosquitto.url, tmp_path) as fleet:
        yield Laptop(fleet, tmp_path, request.param)


@pytest.mark.parametrize("laptop", ["pause"], indirect=True)
def test_a_paused_training_goes_on_once_power_is_back(laptop, record_property):
    with laptop.run() as coordinator:
        laptop.wait_training()
        laptop.plug(False)
        unplugged_at = time.monotonic()
        laptop.agent.wait(lambda: laptop.agent.status.get("paused"), "pauses")
        record_property("reaction_s", round(time.monotonic() - unplugged_at, 2))
        laptop.hold.release()
        assert "it is training, paused" in laptop.status_text()
        assert "it would not accept work now:\n  it runs on its battery" in laptop.status_text()
        laptop.plug(True)
        laptop.agent.wait(lambda: not laptop.agent.status.get("paused"), "goes on")
        document = coordinator.done().document
    assert document["rounds"][0]["reported"] == 1
    assert "it would accept work now" in laptop.status_text()


@pytest.mark.faults
@pytest.mark.parametrize("laptop", ["abandon"], indirect=True)
def test_an_abandoned_training_names_the_condition(laptop, record_property):
    with laptop.run(max_failed_rounds=2, rounds=2) as coordinator:
        laptop.wait_training()
        laptop.plug(False)
        unplugged_at = time.monotonic()
        laptop.agent.wait(lambda: laptop.agent.status.get("unwilling"), "has noticed")
        laptop.hold.release()
        coordinator.wait_err("round 1/2 failed")
        record_property("reaction_s", round(time.monotonic() - unplugged_at, 2))
        coordinator.wait_err("unwilling: not_charging 1")
        laptop.plug(True)
        document = coordinator.done().document
    assert document["rounds"][0]["failures"] == {"not_charging": 1}
    assert document["rounds"][0]["decline_reasons"] == {}
    assert document["rounds"][1]["reported"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("laptop", ["finish"], indirect=True)
def test_work_that_may_be_finished_is_finished(laptop):
    with laptop.run() as coordinator:
        laptop.wait_training()
        laptop.plug(False)
        laptop.agent.wait(lambda: laptop.agent.status.get("unwilling"), "would not accept more")
        laptop.hold.release()
        document = coordinator.done().document
    assert document["rounds"][0]["reported"] == 1
    assert "it would not accept work now:\n  it runs on its battery" in laptop.status_text()


@pytest.mark.parametrize("laptop", ["pause"], indirect=True)
def test_a_device_on_its_battery_is_not_asked(laptop):
    laptop.plug(False)
    laptop.agent.restart()
    laptop.agent.wait(lambda: laptop.agent.status.get("unwilling"), "has looked")
    laptop.agent.wait_ready()
    with laptop.run() as coordinator:
        coordinator.wait_err("waiting for devices: 0 of 1 are there; unwilling: not_charging 1")
        done = coordinator.interrupt()
    assert done.code == 130
