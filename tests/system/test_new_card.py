"""Old card and restored card of one device on the network at once: no allowance and no privacy budget is spent twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedpatch.coordinator.runtime.start_run import start_run
from fedpatch.device_agent.policy.privacy_budget import RESTORED_NAME
from fedpatch.device_agent.policy.usage import read_today
from tests.support.brokers import Mosquitto
from tests.system.commands import run
from tests.system.fleet import AgentProcess, Fleet
from tests.system.oracle_task import REFERENCE
from tests.system.views import Silent

pytestmark = [pytest.mark.system, pytest.mark.broker, pytest.mark.timeout(600)]

DATA = "n=23,test=20,seed=2"
LIMITS = ("--max-rounds-per-day", "2")


def rounds_of(fleet: Fleet, state_dir: Path, wait_s: float = 100.0) -> int:
    """Return the number of updates that the coordinator got in a run of one round."""
    settings = fleet.settings(
        state_dir, REFERENCE, strategy="fedavg", learning_rate=0.1, rounds=1, devices=1, wait_s=5.0
    )
    return sum(record.reported for record in start_run(settings, Silent()).rounds)


def wait_for_twin(agent: AgentProcess) -> None:
    """Return once an agent knows of the other card, and declines."""
    agent.wait(lambda: "another agent uses" in agent.status.get("declines", ""), "knows of the other card")


def test_two_cards_of_one_device_spend_its_allowance_once(mosquitto: Mosquitto, tmp_path: Path):
    """The backup has one of two rounds; the old card plays the second one; then both are on, and neither plays a third."""
    secret, file, new = tmp_path / "passphrase", tmp_path / "pi.backup", tmp_path / "new" / "pi"
    secret.write_text("secret\n")
    (tmp_path / "agent.toml").write_text("")
    shared = ("--passphrase-file", secret, "--config", tmp_path / "agent.toml")
    with Fleet(mosquitto.url, tmp_path / "old") as old, Fleet(mosquitto.url, tmp_path / "new") as newer:
        first = old.start("pi", REFERENCE, DATA, admission="preferences", options=LIMITS)
        old.wait_ready()
        assert rounds_of(old, tmp_path / "run-1") == 1
        assert run("fedpatch-agent", "backup", file, "--state-dir", first.state_dir, *shared).code == 0
        assert rounds_of(old, tmp_path / "run-2") == 1
        assert run("fedpatch-agent", "restore", file, "--state-dir", new, *shared).code == 0
        second = newer.start("pi", REFERENCE, DATA, admission="preferences", options=LIMITS)
        for agent in (first, second):
            wait_for_twin(agent)
        assert rounds_of(old, tmp_path / "run-3", 5.0) == 0
        assert read_today(first.state_dir).rounds == 2
        first.kill()
        second.restart()
        second.wait_ready()
        assert rounds_of(newer, tmp_path / "run-4", 5.0) == 0
        assert (new / RESTORED_NAME).exists()
