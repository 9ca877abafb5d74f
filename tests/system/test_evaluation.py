"""Evaluate rounds over a real broker: figures of all devices, no changed file on a device, no loss by a kill."""

from __future__ import annotations

import hashlib
import os
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from fedpatch.coordinator.runtime.run_places import run_directory
from fedpatch.coordinator.storage.checkpoint import load_checkpoint
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.device_agent.state.patch_store import PatchKey, PatchStore
from fedpatch.device_agent.training.batches import stream_seed
from fedpatch.device_agent.training.local_trainer import LocalTrainer
from fedpatch.shared.tasks.torch_model import initial_tensors
from fedpatch.shared.tensors.patches import merge, parse_policy
from fedpatch.shared.wire.messages import TrainPlan
from fedpatch.shared.wire.plan_terms import parse_phases
from tests.support.brokers import Mosquitto
from tests.system.commands import Command, run
from tests.system.fleet import AgentProcess, Fleet
from tests.system.oracle_task import REFERENCE, TASK, device_data

pytestmark = [pytest.mark.system, pytest.mark.broker]

DEVICES = {"ann": "n=37,test=30,seed=1", "bob": "n=24,test=30,seed=2"}
FREE = ("status.json", "usage.json", "metrics.prom", "history.jsonl")
"""Files about the device itself: its status, its history, and the counts for the owner's daily limits."""


def files(agent: AgentProcess) -> dict[str, str]:
    """Return every other file of a device with its digest."""
    found = [path for path in agent.state_dir.rglob("*") if path.is_file() and path.name not in FREE]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}


def own_accuracy(agent: AgentProcess, data: str, state_dir: Path, name: str) -> float | None:
    """Return the user accuracy of the run's model with the device's patch, measured in this process."""
    trainer = LocalTrainer(TASK, device_data(data))
    patch = PatchStore(agent.patches).load(PatchKey(TASK.name, trainer.schema.digest, "affine"), name, 100)
    state = load_checkpoint(run_directory(state_dir, name))[0]
    return trainer.measure(merge(state.tensors, patch.values), lambda: False)


def finished_accuracy(device: str, state_dir: Path, name: str) -> float | None:
    """Return the user accuracy of the run's model after the device's finish, computed in this process."""
    trainer, plan = LocalTrainer(TASK, device_data(DEVICES[device])), TrainPlan("sgd", 0.1, 20)
    model = initial_tensors(TASK, 0) | load_checkpoint(run_directory(state_dir, name))[0].tensors
    private = parse_policy("affine").private_names(trainer.schema)
    own = trainer.finish(
        model,
        replace(plan, finish=parse_phases("private:2")),
        stream_seed=stream_seed(0, device),
        cancelled=lambda: False,
        private=private,
    )
    assert own is not None
    return own.user_accuracy_after


def has_model(agent: AgentProcess, number: int) -> bool:
    return f"that of round {number} is in use now" in agent.log


@pytest.mark.slow
def test_all_devices_finish_the_last_model_also_one_that_was_not_selected(tmp_path):
    """FedBABU with a private part that no round trains; the finished model becomes the model for applications."""
    state_dir = tmp_path / "state"
    with Mosquitto() as broker, Fleet(broker.url, tmp_path) as fleet:
        for device, data in DEVICES.items():
            fleet.start(device, REFERENCE, data)
        fleet.wait_ready()
        terms = {"task": REFERENCE, "devices": 2, "participation": 0.5, "rounds": 1, "quorum": 1.0, "wait_s": 150}
        terms |= {"strategy": "fedavg", "learning_rate": 0.1, "batch_size": 20, "private": "affine"}
        terms |= {"phases": "public:1", "finish": "private:2"}
        with fleet.coordinator(state_dir, **terms, metrics="none") as coordinator:
            done = coordinator.done()
        assert done.code == 0, done.err
        assert done.document["rounds"][0]["reported"] == 1
        evaluated = run("fedpatch", "evaluate", "last", "--json", "--state-dir", state_dir)
        assert evaluated.code == 0, evaluated.err
        expected = {device: finished_accuracy(device, state_dir, done.document["run"]) for device in DEVICES}
        assert evaluated.document["user_accuracies"] == pytest.approx(expected, abs=1e-4)
        for agent in fleet.agents.values():
            agent.wait(partial(has_model, agent, 2), "has the finished model")


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
            agent.terminate()  # the agent then writes its held model and its state of learning alone
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
