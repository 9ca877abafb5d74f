"""A whole run over each broker: a coordinator, and three agents that were started before it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from fedpatch.coordinator.runtime.start_run import start_run
from tests.broker.contract.targets import Target
from tests.broker.ejabberd import PASSWORD, USERNAME
from tests.broker.relay import Relay
from tests.support.brokers import free_port
from tests.system.fleet import Fleet
from tests.system.stage import PATIENT
from tests.system.views import Silent

pytestmark = [pytest.mark.broker, pytest.mark.system]

CONNECTED = "connected to the broker"
TASK = "tests.system.oracle_task:TASK"
DEVICES = {"ann": "n=37,test=20,seed=1", "bob": "n=23,test=20,seed=2", "eve": "n=29,test=20,seed=3"}


PATIENCE_S = 100.0


@dataclass
class Agents:
    """Three agents with started training processes, behind a relay that leads to one broker after the other."""

    fleet: Fleet
    relay: Relay

    def move_to(self, target: Target) -> None:
        """Return once all agents have left the former broker and are connected to this broker."""
        connects = {name: agent.log.count(CONNECTED) for name, agent in self.fleet.agents.items()}
        self.relay.redirect(target.port)
        for name, agent in self.fleet.agents.items():
            if not agent.running:
                agent.start()
            agent.wait(partial(self._came, name, connects[name]), f"is connected to {target.name}", PATIENCE_S)
        self.fleet.wait_ready()

    def _came(self, name: str, before: int) -> bool:
        return self.fleet.agents[name].log.count(CONNECTED) > before


@pytest.fixture(scope="session")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agents]:
    """They start with the first broker, and stay until the last one; brokers that need no password ignore theirs."""
    directory = tmp_path_factory.mktemp("contract-agents")
    config = directory / "login.toml"
    config.write_text(f'username = "{USERNAME}"\npassword = "{PASSWORD}"\n')
    config.chmod(0o600)
    with Relay(free_port()) as relay, Fleet(relay.url, directory, name="contract") as fleet:
        for device, data in DEVICES.items():
            fleet.start(device, TASK, data, options=["--config", str(config)])
        yield Agents(fleet, relay)


def test_two_rounds_with_three_devices(target: Target, agents: Agents, tmp_path: Path):
    agents.move_to(target)
    settings = replace(agents.fleet.settings(tmp_path, TASK, rounds=2, **PATIENT, **target.login), broker=target.url)
    summary = start_run(settings, Silent())
    assert [(one.outcome, one.reported) for one in summary.rounds] == [("aggregated", 3)] * 2
