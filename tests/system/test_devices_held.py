"""An operator removes a device from a running run and returns it, by commands on the same state directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.coordinator.registry_builders import seen
from tests.support.brokers import Mosquitto
from tests.system.commands import Command, Done, run
from tests.system.fleet import Fleet
from tests.system.oracle_task import REFERENCE

pytestmark = [pytest.mark.system, pytest.mark.broker, pytest.mark.timeout(600)]

DATA = "n=14,test=10,seed=1"


def _decide(state_dir: Path, *words: str) -> Done:
    done = run("fedpatch", "devices", *words, "--state-dir", state_dir)
    assert done.code == 0, done.err
    return done


def test_a_coordinator_at_work_heeds_what_its_operator_decides(tmp_path: Path, mosquitto: Mosquitto):
    state = tmp_path / "coordinator"
    terms = ["--task", REFERENCE, "--devices", 2, "--rounds", 100_000, "--round-interval-s", 0.2, "--quorum", 1.0]
    with Fleet(mosquitto.url, tmp_path) as fleet:
        for device in ("ann", "bob"):
            fleet.start(device, REFERENCE, DATA)
        fleet.wait_ready()
        where = ["--broker", mosquitto.url, "--fleet", fleet.name, "--state-dir", state]
        with Command("fedpatch", "run", *where, *terms) as coordinator:

            def wait(cohort: str) -> None:
                """Wait for a round with this cohort, after all rounds logged so far."""
                before = len(coordinator.err)
                coordinator.wait(lambda: f": {cohort} reported" in coordinator.err[before:], f"plays with {cohort}")

            wait("2/2")
            _decide(state, "drain", "bob", "--reason", "new battery")
            wait("1/1")
            _decide(state, "resume", "bob")
            wait("2/2")
            held = _decide(state, "quarantine", "ann", "--reason", "sends nonsense", "--json").document
            assert held["quarantined"]["reason"] == "sends nonsense"
            wait("1/1")
            coordinator.interrupt()
        listed = {one["id"]: one for one in run("fedpatch", "devices", "--state-dir", state, "--json").document}
        assert (listed["ann"]["quarantined"]["reason"], listed["bob"]["quarantined"]) == ("sends nonsense", None)
        assert listed["ann"]["quarantined"]["since"] > 1e9
        assert "sends nonsense" in run("fedpatch", "devices", "--state-dir", state).out
        with Command("fedpatch", "resume", "last", "--state-dir", state) as again:
            again.wait(lambda: ": 1/1 reported" in again.err, "goes on without the quarantined device")
            _decide(state, "release", "ann")
            again.wait(lambda: ": 2/2 reported" in again.err, "has it back")
            again.interrupt()


def test_run_begins_without_a_held_device_of_the_last_run_once_drained_and_when_resumed(
    tmp_path: Path, mosquitto: Mosquitto
):
    """Its time to wait is longer than the patience of the test."""
    state = tmp_path / "coordinator"
    terms = ["--task", REFERENCE, "--devices", 3, "--wait-s", 600, "--quorum", 1.0]
    with Fleet(mosquitto.url, tmp_path) as fleet:
        for device in ("ann", "bob", "cyd"):
            fleet.start(device, REFERENCE, DATA)
        fleet.wait_ready()
        where = ["--broker", mosquitto.url, "--fleet", fleet.name, "--state-dir", state]
        assert run("fedpatch", "run", *where, *terms, "--rounds", 1).code == 0
        fleet.agents["cyd"].terminate()
        often = ["--new", "--rounds", 100_000, "--round-interval-s", 0.2]
        with Command("fedpatch", "run", *where, *terms, *often) as coordinator:
            coordinator.wait_err("are there; missing: cyd (offline); ")
            _decide(state, "drain", "cyd")
            coordinator.wait_err(" aggregated: 2/2 reported")
            coordinator.kill()
        with Command("fedpatch", "resume", "last", "--state-dir", state) as again:
            # A resumed run waits a minute for devices that it misses.
            again.wait(lambda: " aggregated: 2/2 reported" in again.err, "goes on at once", patience_s=50.0)
            again.interrupt()


def test_unknown_device_error_suggests_the_nearest_name(tmp_path: Path):
    from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry

    with Registry(tmp_path / "a" / REGISTRY_FILE) as registry:
        for fleet in ("kitchen", "garden"):
            seen(registry, "pi-1", fleet=fleet, now=1.0, online=True)
    words = ["--reason", "x", "--state-dir", tmp_path / "a"]
    done = run("fedpatch", "devices", "quarantine", "pi-2", *words)
    assert (done.code, "did you mean 'pi-1'?" in done.err) == (2, True)
    done = run("fedpatch", "devices", "quarantine", "pi-1", *words)
    assert (done.code, "name one with --fleet" in done.err) == (2, True)
    assert run("fedpatch", "devices", "quarantine", "pi-1", "--fleet", "kitchen", *words).code == 0
    done = run("fedpatch", "devices", "drain", "pi-1", "--reason", "\x1b[2J", "--state-dir", tmp_path / "a")
    assert (done.code, "printable" in done.err) == (2, True)
    assert run("fedpatch", "devices", "drain", "pi-1", "--state-dir", tmp_path / "b").code == 2
    assert not (tmp_path / "b").exists()
