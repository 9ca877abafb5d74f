"""Full, read-only or damaged disks of the coordinator: committed updates are kept, and the run is resumed later."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE
from tests.support.brokers import Mosquitto
from tests.support.disks import SmallDisk, small_disk
from tests.support.paths import ROOT
from tests.system.commands import PATIENCE_S, Command, run
from tests.system.fleet import Fleet, without_rights
from tests.system.held_task import REFERENCE
from tests.system.stage import (
    DEVICES,
    ROUNDS,
    Stage,
    all_went_well,
    assert_complete,
    assert_like_oracle,
    outcomes,
    wait_state,
)

pytestmark = [pytest.mark.system, pytest.mark.broker, pytest.mark.timeout(600)]


class DiskStage(Stage):
    """A stage whose coordinator has its own small disk."""

    @property
    def state_dir(self) -> Path:
        return self.directory / "disk" / "coordinator"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", "2m") as one:
        yield one


@pytest.fixture
def stage(mosquitto: Mosquitto, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stage]:
    kind = DiskStage if "disk" in request.fixturenames else Stage
    with Fleet(mosquitto.url, tmp_path) as fleet:
        yield kind(mosquitto, fleet, tmp_path)


def test_full_disk_ends_the_run_until_there_is_space(disk: SmallDisk, stage: Stage):
    """No device receives `committed`, devices keep their updates, and `resume` continues without a loss."""
    ann, bob = stage.start_agents()
    for device in DEVICES:
        stage.hold(device, round=2, step=2)
    with stage.begin() as coordinator:
        for device in DEVICES:
            stage.wait_held(device, coordinator)
        disk.fill()
        stage.holds["bob"].release()
        done = coordinator.done()
    assert done.code == 1
    # It is the update's file, or the registry, in which the coordinator may note something else before.
    assert f"{stage.state_dir}/" in done.err and "free some space on this disk" in done.err
    assert "fedpatch resume " in done.err
    stage.holds["ann"].release()
    for agent in (ann, bob):
        wait_state(agent, "uploading")
        assert agent.log.count("committed") == 1
    assert run("fedpatch", "show", "last", "--state-dir", stage.state_dir).code == 0

    disk.fill()  # the registry may have freed files beside it
    full = run("fedpatch", "resume", "last", "--state-dir", stage.state_dir)
    assert (full.code, "free some space on this disk" in full.err) == (1, True)

    disk.empty()
    done = stage.resumed()
    assert_complete(stage, done)
    assert ann.log.count("round 2: training") == bob.log.count("round 2: training") == 1


@pytest.mark.faults
@pytest.mark.slow
def test_read_only_disk_ends_the_run_until_it_is_writable(disk: SmallDisk, stage: Stage):
    stage.kill_coordinator(round=2, step=3)
    disk.make_readonly()
    refused = run("fedpatch", "resume", "last", "--state-dir", stage.state_dir)
    assert refused.code == 1
    assert f"{stage.state_dir}/" in refused.err
    assert "this disk is read-only" in refused.err
    shown = run("fedpatch", "show", "last", "--state-dir", stage.state_dir, "--json")
    assert (shown.code, outcomes(shown.document)) == (0, all_went_well(1))
    disk.make_writable()
    done = stage.resumed()
    assert done.code == 0
    assert outcomes(done.document) == all_went_well()


def test_disk_read_only_from_the_start_is_refused(disk: SmallDisk, stage: Stage):
    disk.make_readonly()
    with stage.begin() as coordinator:
        done = coordinator.done()
    assert done.code == 1
    assert f"fedpatch: {stage.state_dir}: Read-only file system; this disk is read-only" in done.err


@pytest.mark.parametrize(
    "damage", ["noise", *(pytest.param(one, marks=pytest.mark.faults) for one in ("empty", "absent"))]
)
def test_damaged_registry_is_replaced_by_its_copy(stage: Stage, damage: str):
    stage.kill_coordinator(round=3, step=2)
    path = stage.state_dir / REGISTRY_FILE
    size = path.stat().st_size
    path.unlink() if damage == "absent" else path.write_bytes(os.urandom(size) if damage == "noise" else b"")
    done = stage.resumed()
    assert done.code == 0
    problem = {"noise": "is damaged", "empty": "is empty", "absent": "is not there"}[damage]
    assert f"{path}: {problem}" in done.err
    assert f"its copy {REGISTRY_FILE}.before is in its place" in done.err
    assert outcomes(done.document) == all_went_well()
    assert_like_oracle(stage, done.document, [["ann", "bob"]] * ROUNDS)


@pytest.mark.slow
def test_checkpoint_that_may_not_be_read_now_ends_the_resume_and_costs_no_round_and_no_update(stage: Stage):
    """The command has no rights of root, which may read each file."""
    stage.kill_coordinator(round=3, step=2)
    checkpoint = max(stage.state_dir.rglob("checkpoint-*.fp"))
    before = sorted(stage.state_dir.rglob("*.fp"))
    checkpoint.chmod(0)
    resume = [sys.executable, "-m", "fedpatch", "resume", "last", "--state-dir", str(stage.state_dir)]
    command = without_rights(resume)
    refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    checkpoint.chmod(0o600)
    assert (refused.returncode, sorted(stage.state_dir.rglob("*.fp"))) == (1, before), refused.stderr
    assert f"{checkpoint}: cannot be read now: Permission denied" in refused.stderr
    assert_complete(stage, stage.resumed())


def test_device_whose_patches_are_damaged_declines_and_the_others_go_on(stage: Stage):
    """It declines instead of failing each round, which with a quorum of 1 would end the run; its status has the remedy."""
    stage.start_agents()
    stage.fleet.start("cat", REFERENCE, f"n=29,test=20,seed=3;{stage.directory / 'cat.hold'}")
    with stage.begin(rounds=2, devices=3) as coordinator:
        assert coordinator.done().code == 0
    bob = stage.fleet.agents["bob"]
    bob.kill()
    for path in bob.patches.glob("*.patch*"):
        path.write_bytes(path.read_bytes()[:-1])
    stage.start_agent("bob")
    stage.wait_back("bob")
    with stage.begin(rounds=3, devices=2, wait_s=20, max_failed_rounds=3) as coordinator:
        document = coordinator.done().document
    last = document["rounds"][-1]
    assert (last["outcome"], last["reported"]) == ("aggregated", 2)
    assert sum(one["decline_reasons"].get("storage", 0) for one in document["rounds"]) >= 1
    assert not any(one["failures"] for one in document["rounds"])
    bob = stage.fleet.agents["bob"]
    assert "are damaged" not in bob.status["problem"]  # words for the coordinator; the device's status names the files
    assert ".patch.previous away to begin again" in bob.status["problem"]
    shown = run("fedpatch-agent", "status", "--state-dir", bob.state_dir)
    assert ".patch.previous away to begin again" in shown.out


@pytest.mark.faults
def test_run_whose_registry_and_copy_are_damaged_is_rebuilt_and_goes_on(stage: Stage):
    """The message names the rebuild command; after it the run can be shown, and continues with its next round."""
    stage.start_agents()
    with stage.begin(rounds=2) as coordinator:
        played = coordinator.done().document
    state_dir = stage.state_dir
    for name in (REGISTRY_FILE, f"{REGISTRY_FILE}.before"):
        (state_dir / name).write_bytes(b"garbage" * 1000)
    stopped = run("fedpatch", "resume", "last", "--state-dir", state_dir)
    assert stopped.code == 1
    assert f"`fedpatch runs --rebuild --state-dir {state_dir}`" in stopped.err
    assert run("fedpatch", "runs", "--rebuild", "--state-dir", state_dir).code == 0
    assert run("fedpatch", "show", "last", "--state-dir", state_dir, "--json").document == played
    with Command("fedpatch", "resume", "last", "--state-dir", state_dir, "--rounds=3", "--json") as coordinator:
        done = coordinator.done()
    assert outcomes(done.document) == all_went_well(3)
    assert_like_oracle(stage, done.document, [tuple(DEVICES)] * 3)
