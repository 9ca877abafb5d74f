"""A fleet with certificates during a run: enrolled, renewed, revoked, and started with a clock that is years off.

All steps use the operator's commands, with a real mosquitto that requires certificates.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.brokers import HOST, Mosquitto
from tests.support.identities import Certified, url_of
from tests.system.commands import Command, run
from tests.system.fleet import Fleet
from tests.system.stage import Stage, outcomes
from tests.system.test_clocks import LIBRARIES

pytestmark = [
    pytest.mark.system,
    pytest.mark.broker,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not LIBRARIES, reason="libfaketime is missing; install Debian's package faketime"),
]

FLEET = "kitchen"


class House:
    """The commands of a fleet with a CA in `directory`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.certified = Certified(directory / "ca", FLEET)
        self.well("fedpatch", "ca", "init", "--fleet", FLEET, "--broker-name", HOST, "--ca-dir", directory / "ca")
        self.broker = Mosquitto(self.certified.options)

    def well(self, program: str, *arguments: object) -> str:
        """Run a command that must succeed; return its standard error."""
        done = run(program, *arguments)
        assert done.code == 0, done.err
        return done.err

    def device(self, verb: str, *arguments: object) -> str:
        """Run `fedpatch device`."""
        return self.well("fedpatch", "device", verb, *arguments, "--ca-dir", self.directory / "ca")

    def enrol(self, device: str, verb: str = "add") -> list[object]:
        """Make a bundle and install it; return the options of an agent that uses it."""
        bundle = self.directory / f"{device}.bundle"
        config = self.directory / f"{device}.toml"
        self.device(verb, device, "--broker", url_of(self.broker), "--out", bundle)
        state_dir = self.directory / device
        self.well("fedpatch-agent", "enrol", bundle, "--config", config, "--state-dir", state_dir)
        bundle.unlink()
        return ["--config", str(config)]


def files_of_coordinator(house: House) -> dict[str, object]:
    place = house.directory / "ca"
    return {
        "ca_dir": place,
        "ca_file": place / "ca.crt",
        "cert_file": place / "coordinator" / "client.crt",
        "key_file": place / "coordinator" / "client.key",
    }


def start_with_a_clock_that_is_behind(stage: Stage, options: list[object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Start Ann's agent: it reports the problem, waits, and continues by itself once the clock is set."""
    clock, right = stage.directory / "clock", stage.directory / "right"
    clock.write_text("-5y")
    with monkeypatch.context() as patch:
        patch.setenv("LD_PRELOAD", str(LIBRARIES[0]))
        patch.setenv("FAKETIME_TIMESTAMP_FILE", str(clock))
        patch.setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")
        patch.setenv("FAKETIME_CACHE_DURATION", "1")
        ann = stage.start_agent("ann", list(map(str, options)))
    ann.wait(lambda: "is not yet valid before" in ann.log, "reports that its clock is behind")
    assert "the CA 'fedpatch CA of kitchen'" in ann.log and "it goes on once that is done" in ann.log
    right.write_text("+0")
    right.replace(clock)
    ann.wait_ready()
    # libfaketime sometimes makes sleep fail after its clock has jumped; the rest of the test needs no wrong clock.
    ann.restart()


def renew(house: House, stage: Stage, coordinator: Command) -> None:
    """Renew Bob's certificate and the coordinator's while Bob trains, and revoke Bob's old one."""
    bob = stage.fleet.agents["bob"]
    house.enrol("bob", "rotate")
    bob.wait(lambda: "our certificate was renewed" in bob.log, "takes the new certificate up")
    bob.wait_ready()
    house.device("revoke", "bob", "--old")
    stage.broker.signal(signal.SIGHUP)
    house.well("fedpatch", "ca", "coordinator", "--ca-dir", house.directory / "ca")
    coordinator.wait_err("our certificate was renewed")


def revoke(house: House, stage: Stage, coordinator: Command) -> None:
    """Revoke Bob while he trains; the broker does not have the new list."""
    bob = stage.fleet.agents["bob"]
    printed = house.device("revoke", "bob", "--reason", "stolen")
    assert "systemctl reload mosquitto" in printed and str(house.directory / "ca" / "ca.crl") in printed
    coordinator.wait_err("bob was revoked: it gets no more invitations")
    stage.holds["bob"].release()
    bob.wait(lambda: bob.status.get("state") == "uploading", "offers its update in vain")


def test_certificates_are_renewed_and_revoked_while_a_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A renewal loses no round; the run excludes a revoked device at once, and the broker refuses it after its restart."""
    house = House(tmp_path)
    options = {device: house.enrol(device) for device in ("ann", "bob")}
    with house.broker as broker, Fleet(url_of(broker), tmp_path, name=FLEET) as fleet:
        stage = Stage(broker, fleet, tmp_path)
        start_with_a_clock_that_is_behind(stage, options["ann"], monkeypatch)
        bob = stage.start_agent("bob", list(map(str, options["bob"])))
        fleet.wait_ready()
        stage.hold("bob", round=2, step=2)
        stage.hold("ann", round=3, step=2)
        changes: dict[str, Any] = {"broker": url_of(broker), "quorum": 0.5, **files_of_coordinator(house)}
        with stage.begin(rounds=4, metrics="none", **changes) as coordinator:
            stage.wait_held("bob", coordinator)
            renew(house, stage, coordinator)
            stage.hold("bob", round=3, step=2)
            stage.wait_held("ann", coordinator)
            stage.wait_held("bob", coordinator)
            revoke(house, stage, coordinator)
            stage.holds["ann"].release()
            done = coordinator.done()
        assert done.code == 0, done.err
        assert [reported for _, outcome, reported in outcomes(done.document) if outcome == "aggregated"] == [2, 2, 1, 1]
        known = json.loads(run("fedpatch", "devices", "--state-dir", stage.state_dir, "--json").out)
        seen = {one["id"]: one for one in known}
        assert seen["bob"]["ignored"] > 0 and seen["bob"]["last_reason"] == "revoked"
        assert (seen["ann"]["reported"], seen["bob"]["reported"]) == (4, 2)

        broker.restart()
        bob.wait(lambda: "it was revoked; ask the fleet's operator" in bob.log, "is refused by the broker, too")
        fleet.agents["ann"].wait_ready()


def test_an_agent_does_not_start_with_the_certificate_of_another(tmp_path: Path):
    place = Certified(tmp_path / "ca", "garden").make("ann").files("ann").cert_file
    options = [
        "--broker",
        "mqtts://localhost:1",
        "--cert-file",
        place,
        "--data",
        "n=1",
        "--state-dir",
        tmp_path / "state",
    ]
    for names, problem in (
        (["--fleet", FLEET, "--device-id", "ann"], "is a certificate for fleet 'garden', and this is fleet 'kitchen'"),
        (["--fleet", "garden", "--device-id", "bob"], "is a certificate for 'ann', and this is 'bob'"),
    ):
        done = run("fedpatch-agent", "run", *options, *names)
        assert done.code == 2 and f"{place} {problem}; enrol with a bundle of this fleet" in done.err


def test_a_key_that_others_can_read_is_not_used(tmp_path: Path):
    certified = Certified(tmp_path / "ca", FLEET).make("ann")
    keys = {
        "fedpatch-agent": certified.directory / "ann.pem",
        "fedpatch": certified.directory / "coordinator/client.key",
    }
    certificates = {"fedpatch": certified.directory / "coordinator/client.crt"}
    for program, key in keys.items():
        key.chmod(0o644)
        given = ["--broker", "mqtts://localhost:1", "--fleet", FLEET, "--ca-file", certified.directory / "ca.crt"]
        given += ["--cert-file", certificates.get(program, key), "--key-file", key, "--state-dir", tmp_path / program]
        given += ["--data", "n=1", "--device-id", "ann"] if program == "fedpatch-agent" else []
        done = run(program, "run", *given)
        words = f"{key} is open to other users (mode 0644), who could pass for us; chmod 600 {key}"
        assert done.code == 2 and words in done.err
        found = json.loads(run(program, "doctor", "--json", *given).out)["findings"]
        assert any(one["verdict"] == "fail" and str(key) in one["detail"] for one in found)
