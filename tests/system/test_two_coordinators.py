"""Two coordinators for one fleet: the second refuses, and the first does not notice."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedpatch.shared.errors import UsageError
from tests.support.brokers import Mosquitto
from tests.system.fleet import Fleet
from tests.system.stage import Stage, all_went_well, assert_complete, outcomes

pytestmark = [pytest.mark.system, pytest.mark.broker, pytest.mark.timeout(600)]

REFUSAL = "another coordinator is at work for fleet 'demo'"
PATIENT = "fedpatch that waits for an answer"


def test_second_coordinator_refuses_and_the_first_finishes(stage: Stage):
    stage.start_agents()
    stage.hold("ann", round=2, step=3)
    elsewhere = stage.directory / "elsewhere"
    with stage.begin() as first:
        stage.wait_held("ann", first)
        with stage.begin(program=PATIENT, state_dir=elsewhere) as second:
            refused = second.done()
        assert refused.code == UsageError.exit_code
        assert f"fedpatch: {stage.broker.url.removeprefix('mqtt://')}: {REFUSAL}" in refused.err
        assert "end it first, or use another --fleet" in refused.err
        assert not elsewhere.exists()
        stage.holds["ann"].release()
        done = first.done()
    assert_complete(stage, done)
    assert "broker:" not in done.err  # it never lost its connection


@pytest.mark.faults
def test_resumed_run_refuses_beside_another_coordinator(stage: Stage):
    stage.kill_coordinator(round=1, step=2)
    # Its last will was sent, so the next coordinator begins at once.
    with stage.begin(rounds=2, state_dir=stage.directory / "elsewhere") as other:
        other.wait_err("run ")
        with stage.resume(PATIENT) as resumed:
            refused = resumed.done()
        assert (refused.code, REFUSAL in refused.err) == (UsageError.exit_code, True)
        stage.holds["ann"].release()
        done = other.done()
    assert done.code == 0
    assert "broker:" not in done.err
    with stage.resume() as resumed:
        assert resumed.done().code == 0


@pytest.mark.faults
def test_coordinator_that_died_with_its_broker_does_not_block_the_next(tmp_path: Path):
    with Mosquitto(autosave=True) as broker, Fleet(broker.url, tmp_path) as fleet:
        stage = Stage(broker, fleet, tmp_path)
        stage.start_agents()
        stage.hold("ann", round=1, step=2)
        with stage.begin(rounds=2) as killed:
            stage.wait_held("ann", killed)
            broker.stop()  # the broker saves its retained messages; the coordinator is gone when it returns
            killed.kill()
        broker.start()
        stage.holds["ann"].release()
        with stage.begin(rounds=2, state_dir=stage.directory / "elsewhere") as other:
            done = other.done()
    assert done.code == 0
    assert outcomes(done.document) == all_went_well(2)
