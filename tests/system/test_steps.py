"""A run with a delta encoding: devices that miss rounds, lose the held model or are switched off.

Every device must train on exactly the bits of the coordinator's model: a digest in its deltas proves this, and the tests
compare the model that a device holds with the coordinator's checkpoint.
"""

from __future__ import annotations

import numpy as np
import pytest

from fedpatch.coordinator.runtime.run_places import run_directory
from fedpatch.coordinator.storage.checkpoint import load_checkpoint, load_checkpoint_after
from fedpatch.device_agent.state.model_cache import HELD_DIRECTORY, ModelCache
from fedpatch.shared.tensors.packing import unpack
from tests.support.damage_on_disk import flip_bit
from tests.system.fleet import AgentProcess
from tests.system.stage import Stage, outcomes

pytestmark = [pytest.mark.system, pytest.mark.broker, pytest.mark.timeout(600)]

ENCODING = "delta-int8"


def held(agent: AgentProcess) -> ModelCache:
    """Return the store of the model that a device holds on its disk."""
    return ModelCache(agent.state_dir / HELD_DIRECTORY)


def trained_on(agent: AgentProcess, round: int) -> list[str]:
    """Return the log's words on the base of each training that a device began in this round."""
    lines = [line.partition(f"round {round}: training on ")[2] for line in agent.log.splitlines()]
    return [words.split(" run=")[0] for words in lines if words]


def test_device_that_missed_rounds_comes_to_the_model_by_steps(stage: Stage):
    ann, bob = stage.start_agents()
    stage.hold("ann", round=2, step=3)
    stage.hold("bob", round=3, step=2)
    with stage.begin(rounds=5, rejoin_s=0, quorum=0.5, encoding=ENCODING, strategy="fedavg") as coordinator:
        stage.wait_held("ann", coordinator)
        ann.terminate()
        stage.wait_held("bob", coordinator)
        stage.holds["ann"].release()
        ann.start()
        stage.wait_back("ann")
        stage.holds["bob"].release()
        done = coordinator.done()
    assert done.code == 0
    assert [reported for _, _, reported in outcomes(done.document)] == [2, 1, 1, 2, 2]
    one_step = "the model held and 1 step from there"
    assert [trained_on(ann, number) for number in (1, 2, 4, 5)] == [
        ["the whole model"],
        [one_step],
        ["the model held and 2 steps from there"],
        [one_step],
    ]
    assert [trained_on(bob, number) for number in (2, 3, 4, 5)] == [[one_step]] * 4
    assert_holds_the_model_of(stage, done.document["run"], 4, ann, bob)


def reboot(ann: AgentProcess) -> None:
    ann.terminate()


def cut_power(ann: AgentProcess) -> None:
    """Kill the agent: during training the held model is only in memory, so it is lost."""
    ann.kill()


def reboot_and_damage(ann: AgentProcess) -> None:
    ann.terminate()
    flip_bit(held(ann).path)


@pytest.mark.faults
@pytest.mark.parametrize(
    ("end", "downloads"),
    [
        (reboot, ["the model held"]),
        (cut_power, ["the whole model"]),
        (reboot_and_damage, ["the model held", "the whole model"]),
    ],
)
def test_device_that_ends_in_mid_training_downloads_what_it_lost(stage: Stage, end, downloads):
    ann, bob = stage.start_agents()
    stage.hold("ann", round=2, step=3)
    with stage.begin(rounds=3, encoding=ENCODING, strategy="fedavg") as coordinator:
        stage.wait_held("ann", coordinator)
        end(ann)
        stage.holds["ann"].release()
        ann.start()
        done = coordinator.done()
    assert done.code == 0
    assert [reported for _, _, reported in outcomes(done.document)] == [2, 2, 2]
    assert trained_on(ann, 2) == ["the model held and 1 step from there", *downloads]
    damaged = "is damaged (its SHA-256 does not fit); downloading the whole model" in ann.log
    assert damaged == (end is reboot_and_damage)
    assert_holds_the_model_of(stage, done.document["run"], 2, ann, bob)


def assert_holds_the_model_of(stage: Stage, run: str, round: int, *agents: AgentProcess) -> None:
    """Check that each agent holds the model after this round, exactly as the coordinator saved it."""
    directory = run_directory(stage.state_dir, run)
    state, (_, public, _) = load_checkpoint_after(directory, round), load_checkpoint(directory)
    for agent in agents:
        agent.terminate()  # the agent then writes the model that it holds
        about, blob = held(agent).read()
        _, tensors = unpack(blob, encoding=about.encoding, raw_bytes=about.raw_bytes, schema=public)
        for name, value in state.tensors.items():
            np.testing.assert_array_equal(tensors[name], value, err_msg=f"{agent.device}: {name}")
