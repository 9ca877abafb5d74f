"""Signals of systemd to a running agent: `systemctl reload` reads the preferences again, and a stop has one line of the log."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.support.brokers import Mosquitto
from tests.system.fleet import Fleet
from tests.system.oracle_task import REFERENCE

pytestmark = [pytest.mark.system, pytest.mark.broker, pytest.mark.timeout(600)]


def test_reload_reads_preferences_of_a_running_agent_and_stop_logs_one_line(mosquitto: Mosquitto, tmp_path: Path):
    """A demand of more free disk than there is ends the readiness to work; a wrong file changes nothing."""
    config = tmp_path / "agent.toml"
    config.write_text("min_free_disk_mib = 1\n")
    with Fleet(mosquitto.url, tmp_path) as fleet:
        options = ["--config", str(config)]
        agent = fleet.start("ann", REFERENCE, "n=23,test=20,seed=2", admission="preferences", options=options)
        fleet.wait_ready()
        assert not any("disk" in one for one in agent.status["unwilling"])
        config.write_text("min_free_disk_mib = 100_000_000\n")
        os.kill(agent.pid, signal.SIGHUP)
        agent.wait(lambda: any("disk" in one for one in agent.status["unwilling"]), "demands more disk")
        assert "changed preferences: min_free_disk_mib" in agent.log
        config.write_text("min_free_disk_mib = -1\n")
        os.kill(agent.pid, signal.SIGHUP)
        agent.wait(lambda: "the former preferences stay in force" in agent.log, "keeps its preferences")
        assert agent.status["settings"]["values"]["min_free_disk_mib"] == 100_000_000
        before = agent.log
        assert agent.terminate() == 0
        told = agent.log.removeprefix(before).splitlines()
        assert len(told) == 1 and "stopping: SIGTERM" in told[0]
