"""Two agents with one device id disconnect each other at the broker: both notice and report it, and reconnect less often."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.brokers import Mosquitto
from tests.system.commands import run
from tests.system.fleet import AgentProcess, Fleet
from tests.system.oracle_task import REFERENCE

pytestmark = [pytest.mark.system, pytest.mark.broker, pytest.mark.timeout(300)]

DATA = "n=23,test=20,seed=2"
PROBLEM = "another agent uses the device id 'pi-3' in fleet 'demo'; end one of them, or give it another --device-id"
PAUSES = ("--reconnect-min-s", "0.2", "--reconnect-max-s", "2")


@pytest.fixture
def homes(mosquitto: Mosquitto, tmp_path: Path) -> Iterator[tuple[Fleet, Fleet]]:
    """Two fleets with one name at one broker, on two independent machines."""
    with Fleet(mosquitto.url, tmp_path / "here") as here, Fleet(mosquitto.url, tmp_path / "there") as there:
        yield here, there


def status_text(agent: AgentProcess) -> str:
    return run("fedpatch-agent", "status", "--state-dir", agent.state_dir).out


def test_two_agents_with_one_id_report_each_other_and_keep_running(homes):
    """Both keep running, since neither can know which one is right; when one has ended, the other reports no problem."""
    here, there = (home.start("pi-3", REFERENCE, DATA, options=PAUSES) for home in homes)
    for agent in (here, there):
        agent.wait(lambda agent=agent: agent.status.get("problem") == PROBLEM, "knows of the other")
        assert f"ERROR fedpatch.agent: {PROBLEM}" in agent.log
    assert f"problem: {PROBLEM}" in status_text(here)
    assert here.running and there.running
    there.terminate()
    here.wait(lambda: here.status.get("connected") and here.status["problem"] == "", "is alone again")
    assert "problem" not in status_text(here)


def test_an_agent_that_comes_and_goes_is_not_its_own_namesake(homes, mosquitto):
    """Agent and broker are killed and restarted; the broker keeps the data that it last wrote to its disk."""
    home, _ = homes
    agent = home.start("pi-3", REFERENCE, DATA, options=PAUSES)
    home.wait_ready()
    for _ in range(2):
        agent.restart()
        home.wait_ready()
    for number in range(1, 4):
        mosquitto.restart()
        agent.wait(lambda number=number: agent.log.count("connected to the broker") >= 3 + number, "is back")
    agent.wait(lambda: agent.status.get("connected"), "is back")
    assert agent.status["problem"] == ""
    assert "ERROR" not in agent.log
