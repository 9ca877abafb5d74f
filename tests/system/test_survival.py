"""Common failures: power cuts, restarts, an absent broker. No update is lost or counted twice.

If every device took part in the end, the result must be equal to that of an oracle without failures: the same global model
and the same patches.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from fedpatch.coordinator.runtime.run_places import run_directory
from fedpatch.coordinator.storage.checkpoint import load_checkpoint
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.codec import decode
from fedpatch.shared.wire.messages import DeviceState
from tests.support.brokers import Mosquitto, client
from tests.system.commands import run
from tests.system.fleet import Fleet
from tests.system.stage import (
    DEVICES,
    ROUNDS,
    STEPS,
    Stage,
    all_went_well,
    assert_complete,
    assert_like_oracle,
    assert_like_scaffold,
    outcomes,
    wait_state,
)

pytestmark = [pytest.mark.system, pytest.mark.broker, pytest.mark.timeout(600)]


def test_device_killed_in_training_trains_the_same_round_again(stage: Stage):
    ann, _ = stage.start_agents()
    stage.hold("ann", round=2, step=3)
    with stage.begin() as coordinator:
        stage.wait_held("ann", coordinator)
        patch = stage.patch("ann")
        ann.kill()
        assert stage.patch("ann").batches_done == patch.batches_done == STEPS["ann"]
        stage.holds["ann"].release()
        ann.start()
        done = coordinator.done()
    assert_complete(stage, done)


@pytest.mark.faults
@pytest.mark.slow
def test_device_away_for_longer_takes_part_in_a_later_round(stage: Stage):
    ann, _ = stage.start_agents()
    stage.hold("ann", round=2, step=3)
    stage.hold("bob", round=3, step=2)
    with stage.begin(rounds=5, rejoin_s=0, quorum=0.5) as coordinator:
        stage.wait_held("ann", coordinator)
        ann.kill()
        stage.wait_held("bob", coordinator)
        stage.holds["ann"].release()
        ann.start()
        stage.wait_back("ann")
        stage.holds["bob"].release()
        done = coordinator.done()
    assert done.code == 0
    assert [reported for _, _, reported in outcomes(done.document)] == [2, 1, 1, 2, 2]
    both, bob = ["ann", "bob"], ["bob"]
    assert_like_oracle(stage, done.document, [both, bob, bob, both, both])


@pytest.mark.parametrize("how", ["resume", pytest.param("run", marks=pytest.mark.faults)])
def test_coordinator_killed_in_a_round_goes_on_with_that_round(stage: Stage, how: str):
    """In the next epoch of the run committed updates count, and devices continue their work, so no device trains twice."""
    ann, bob = stage.start_agents()
    stage.hold("ann", round=3, step=2)
    with stage.begin() as coordinator:
        stage.wait_held("ann", coordinator)
        bob.wait(lambda: bob.log.count("job over: committed") == 3, "has done its part")
        coordinator.kill()
    with Registry(stage.state_dir / REGISTRY_FILE, readonly=True) as registry:
        killed = registry.run("last")
    before, _, _ = load_checkpoint(run_directory(stage.state_dir, killed.id))
    assert (before.round, killed.epoch, killed.status) == (2, 1, "running")

    with stage.resume() if how == "resume" else stage.begin() as coordinator:
        coordinator.wait_err("going on after round 2, epoch 2")
        coordinator.wait_err("round 3 goes on with 1 of 2 updates")
        stage.holds["ann"].release()
        done = coordinator.done()
    assert_complete(stage, done)
    assert done.document["run"] == killed.id
    assert [agent.log.count("round 3: training") for agent in (ann, bob)] == [1, 1]


@pytest.mark.slow
def test_no_control_variate_counts_twice_after_kills_of_coordinator_and_device(stage: Stage):
    """SCAFFOLD: Bob's update is committed when the coordinator is killed; Ann is killed in her training after the resume."""
    ann, bob = (stage.start_agent(device, ["--private", "none"]) for device in DEVICES)
    stage.hold("ann", round=2, step=2)
    with stage.begin(strategy="scaffold", private="none", rounds=3) as coordinator:
        stage.wait_held("ann", coordinator)
        bob.wait(lambda: bob.log.count("job over: committed") == 2, "has done its part")
        coordinator.kill()
    with stage.resume() as coordinator:
        coordinator.wait_err("round 2 goes on with 1 of 2 updates")
        ann.kill()
        stage.holds["ann"].release()
        ann.start()
        done = coordinator.done()
    assert (done.code, outcomes(done.document)) == (0, all_went_well(3))
    assert_like_scaffold(stage, done.document, [tuple(DEVICES)] * 3)


@pytest.mark.faults
def test_run_with_a_damaged_model_plays_its_last_round_again(stage: Stage):
    stage.start_agents()
    with stage.begin(rounds=3) as coordinator:
        before = coordinator.done().document
    newest = max(run_directory(stage.state_dir, before["run"]).glob("checkpoint-*.fp"))
    newest.write_bytes(newest.read_bytes()[:-10])
    with stage.resume() as coordinator:
        coordinator.wait_err("the model of round 3 is damaged or lost; going back to that of round 2")
        done = coordinator.done()
    assert_complete(stage, done, 3)


@pytest.mark.faults
@pytest.mark.slow
def test_coordinator_killed_between_two_rounds_goes_on_with_the_next(stage: Stage):
    """While the coordinator waits for devices no round is open; the resumed run runs the next round."""
    ann, bob = stage.start_agents()
    for device in DEVICES:
        stage.hold(device, round=2, step=1)
    with stage.begin(rounds=3, rejoin_s=5) as coordinator:
        for device in DEVICES:
            stage.wait_held(device, coordinator)
        ann.kill()
        bob.kill()
        coordinator.wait_err("waiting for devices: 0 of 2 are there; missing: ")
        coordinator.kill()
    for device, agent in stage.fleet.agents.items():
        stage.holds[device].release()
        agent.start()
    stage.fleet.wait_ready()
    with stage.resume() as coordinator:
        done = coordinator.done()
    assert done.code == 0
    assert outcomes(done.document) == [(1, "aggregated", 2), (2, "failed", 0), (3, "aggregated", 2)]
    assert_like_oracle(stage, done.document, [["ann", "bob"]] * 2)


@pytest.mark.parametrize(
    "options", [pytest.param("", id="keeps", marks=pytest.mark.faults), pytest.param("persistence false", id="forgets")]
)
def test_broker_killed_in_a_round_loses_no_update(tmp_path: Path, options: str):
    with Mosquitto(options, autosave=not options) as broker, Fleet(broker.url, tmp_path) as fleet:
        stage = Stage(broker, fleet, tmp_path)
        stage.start_agents()
        stage.hold("ann", round=2, step=3)
        with stage.begin() as coordinator:
            stage.wait_held("ann", coordinator)
            broker.restart()
            stage.holds["ann"].release()
            done = coordinator.done()
        assert_complete(stage, done)


def test_ctrl_c_saves_the_run_for_resume(stage: Stage):
    ann, bob = stage.start_agents()
    stage.hold("ann", round=2, step=2)
    with stage.begin() as coordinator:
        stage.wait_held("ann", coordinator)
        bob.wait(lambda: bob.log.count("job over: committed") == 2, "has done its part")
        done = coordinator.interrupt()
    interrupted = done.document
    assert (done.code, interrupted["stopped_because"]) == (130, "interrupted")
    assert outcomes(interrupted) == all_went_well(1)
    assert f"fedpatch resume {interrupted['run']}" in done.err
    shown = run("fedpatch", "show", "last", "--state-dir", stage.state_dir, "--json")
    assert (shown.code, shown.document) == (0, interrupted)
    stage.holds["ann"].release()
    wait_state(ann, "idle")

    with stage.resume() as coordinator:
        done = coordinator.done()
    assert (done.code, done.document["stopped_because"]) == (0, "max_rounds")
    assert "round 2 goes on with 1 of 2 updates" in done.err
    assert done.document["rounds"][:1] == interrupted["rounds"]
    assert outcomes(done.document) == all_went_well()
    assert_like_oracle(stage, done.document, [["ann", "bob"]] * ROUNDS)


def test_terminated_agent_is_offline_at_the_broker(stage: Stage):
    ann, _ = stage.start_agents()
    stage.hold("ann", round=1, step=1)
    topic = topics.device_state(stage.fleet.name, "ann")
    with stage.begin() as coordinator:
        stage.wait_held("ann", coordinator)
        assert ann.terminate() == 0
    with client(stage.broker.url, "witness", topic) as witness:
        state = decode(witness.received(topic).payload).body
    assert isinstance(state, DeviceState)
    assert not state.online
    stopped = run("fedpatch-agent", "status", "--state-dir", ann.state_dir, "--json").document
    assert (stopped["running"], stopped["state"], stopped["connected"]) == (False, "stopped", False)


@pytest.mark.faults
def test_update_that_waited_out_a_restart_is_committed(stage: Stage):
    ann, bob = stage.start_agents()
    stage.hold("ann", round=1, step=STEPS["ann"])
    with stage.begin(rounds=2) as coordinator:
        stage.wait_held("ann", coordinator)
        bob.wait(lambda: bob.status.get("last_outcome") == "committed", "has done its part")
        coordinator.freeze()
        stage.holds["ann"].release()
        wait_state(ann, "uploading")
        ann.restart()
        ann.wait_ready()
        stopped = run("fedpatch-agent", "status", "--state-dir", ann.state_dir, "--json").document
        assert (stopped["state"], stopped["update_waits"]) == ("uploading", True)
        coordinator.thaw()
        done = coordinator.done()
    assert_complete(stage, done, 2)
    assert ann.log.count("round 1: training") == 1
