"""An agent and its training process without any right of root, as their service runs them, play rounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedpatch.coordinator.runtime.start_run import start_run
from tests.support.brokers import Mosquitto
from tests.system.fleet import Fleet
from tests.system.oracle_task import REFERENCE
from tests.system.views import Silent

pytestmark = [pytest.mark.system, pytest.mark.broker, pytest.mark.timeout(600)]


def test_agent_without_rights_plays_rounds_with_the_whole_model_and_with_the_held_one(
    mosquitto: Mosquitto, tmp_path: Path
):
    with Fleet(mosquitto.url, tmp_path / "agents", forked=False) as fleet:
        fleet.start("pi", REFERENCE, "n=23,test=20,seed=2")
        fleet.wait_ready()
        settings = fleet.settings(tmp_path / "state", REFERENCE, strategy="fedavg", rounds=2, devices=1)
        rounds = start_run(settings, Silent()).rounds
        assert [record.outcome for record in rounds] == ["aggregated", "aggregated"], fleet.agents["pi"].log
