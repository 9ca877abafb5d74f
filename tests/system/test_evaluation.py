"""Evaluate rounds over a real broker: figures of all devices, no file of a device changed, nothing lost by a kill."""

from __future__ import annotations

import hashlib
import os
import signal
from pathlib import Path

import pytest

from fedpatch.coordinator.runtime.run_execution import run_directory
from fedpatch.coordinator.storage.checkpoint import load_checkpoint
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.device_agent.state.patch_store import PatchKey, PatchStore
from fedpatch.device_agent.training.local_trainer import LocalTrainer
from fedpatch.shared.tensors.patches import merge
from tests.support.brokers import Mosquitto
from tests.system.commands import Command, run
from tests.system.fleet import AgentProcess, Fleet
from tests.system.oracle_task import REFERENCE, TASK, device_data

pytestmark = [pytest.mark.system, pytest.mark.broker]

DEVICES = {"ann": "n=37,test=30,seed=1", "bob": "n=24,test=30,seed=2"}
FREE = ("status.json", "usage.json", "metrics.prom")
"""Files about the device itself: its status, and what the owner's daily limits count."""


def files(agent: AgentProcess) -> dict[str, str]:
    """Every other file of a device, with its digest."""
    found = [path for path in agent.state_dir.rglob("*") if path.is_file() and path.name not in FREE]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def own_accuracy(agent: AgentProcess, data: str, state_dir: Path, name: str) -> float | None:
    """User accuracy of the run's model with the device's patch, measured here."""
    trainer = LocalTrainer(TASK, device_data(data))
    patch = PatchStore(agent.patches).load(PatchKey(TASK.name, trainer.schema.digest, "affine"), name, 100)
    state = load_checkpoint(run_directory(state_dir, name))[0]
    return trainer.measure(merge(state.tensors, patch.values), lambda: False)


def test_all_devices_measure_and_a_kill_of_coordinator_or_device_loses_nothing(tmp_path):
    state_dir = tmp_path / "state"
    with Mosquitto() as broker, Fleet(broker.url, tmp_path) as fleet:
        for device, data in DEVICES.items():
            fleet.start(device, REFERENCE, data)
        fleet.wait_ready()
        terms = {"task": REFERENCE, "devices": 2, "rounds": 2, "evaluate_every": 2, "quorum": 1.0, "wait_s": 150}
        with fleet.coordinator(state_dir, **terms, metrics="none") as coordinator:
            done = coordinator.done()
        assert done.code == 0, done.err
        *trained, evaluated = done.document["rounds"]
        name = done.document["run"]
        assert [one["outcome"] for one in (*trained, evaluated)] == ["aggregated", "aggregated", "evaluated"]
        expected = {
            device: own_accuracy(fleet.agents[device], data, state_dir, name) for device, data in DEVICES.items()
        }
        assert evaluated["user_accuracies"] == pytest.approx(expected, abs=1e-4)
        assert done.document["user_accuracy"] == trained[-1]["user_accuracy"]

        for agent in fleet.agents.values():
            agent.terminate()  # which writes the model held and learning alone
            agent.start()
        fleet.wait_ready()
        before = {device: files(agent) for device, agent in fleet.agents.items()}
        os.kill(fleet.agents["ann"].pid, signal.SIGSTOP)
        with Command("fedpatch", "evaluate", "last", "--state-dir", state_dir) as evaluating:
            bob = fleet.agents["bob"]
            bob.wait(lambda: bob.status.get("last_outcome") == "measured", "measured")
            evaluating.kill()
        fleet.agents["ann"].kill()
        fleet.agents["ann"].start()
        fleet.wait_ready()
        again = run("fedpatch", "evaluate", "last", "--json", "--state-dir", state_dir)
        assert again.code == 0, again.err
        assert (again.document["round"], again.document["user_accuracies"]) == (4, evaluated["user_accuracies"])
        assert {device: files(agent) for device, agent in fleet.agents.items()} == before
        with Registry(state_dir / REGISTRY_FILE, readonly=True) as registry:
            assert (registry.run(name).status, len(registry.rounds.records(name))) == ("finished", 4)
        shown = run("fedpatch", "show", "last", "--state-dir", state_dir)
        assert "10th percentile" in shown.out
