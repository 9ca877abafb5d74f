"""A run with its registry in PostgreSQL, with kills of server and coordinator: no update is lost or counted twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpatch.coordinator.storage.database.opening import URL_FILE
from tests.support.brokers import Mosquitto
from tests.support.postgresql import PostgresServer, postgres_server
from tests.system.commands import run
from tests.system.fleet import Fleet
from tests.system.stage import Stage, assert_complete

pytestmark = [pytest.mark.system, pytest.mark.broker, pytest.mark.medium, pytest.mark.timeout(600)]
ROUNDS = 3


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with postgres_server() as started:
        yield started


def model_of(document: dict[str, Any]) -> dict[str, bytes]:
    with np.load(document["model"]) as model:
        return {name: array.tobytes() for name, array in model.items()}


def undisturbed_model(directory: Path) -> dict[str, bytes]:
    """Return the model of the same run with a registry in SQLite, without faults."""
    directory.mkdir()
    with Mosquitto() as broker, Fleet(broker.url, directory) as fleet:
        stage = Stage(broker, fleet, directory)
        stage.start_agents()
        with stage.begin(rounds=ROUNDS) as coordinator:
            done = coordinator.done()
    assert_complete(stage, done, ROUNDS)
    return model_of(done.document)


@pytest.mark.slow
def test_killed_server_and_coordinator_leave_the_bits_of_an_undisturbed_run(
    stage: Stage, server: PostgresServer, tmp_path: Path
):
    ann, bob = stage.start_agents()
    stage.hold("ann", round=2, step=2)
    with stage.begin(rounds=ROUNDS, state=server.url()) as coordinator:
        stage.wait_held("ann", coordinator)
        bob.wait(lambda: bob.log.count("job over: committed") == 2, "has done its part")
        server.kill()
        stage.hold("ann", round=3, step=2)
        coordinator.wait_err("the connection is lost")
        server.start()
        coordinator.wait_err("no committed change is lost")
        stage.wait_held("ann", coordinator)
        bob.wait(lambda: bob.log.count("job over: committed") == 3, "has done its part")
        coordinator.kill()
    assert not (stage.state_dir / "registry.sqlite3").exists()
    shown = run("fedpatch", "show", "last", "--state-dir", stage.state_dir, "--json")
    assert [one["reported"] for one in shown.document["rounds"]] == [2, 2]
    with stage.resume() as coordinator:
        coordinator.wait_err("round 3 goes on with 1 of 2 updates")
        stage.holds["ann"].release()
        done = coordinator.done()
    assert_complete(stage, done, ROUNDS)
    assert [agent.log.count("round 3: training") for agent in (ann, bob)] == [1, 1]
    assert model_of(done.document) == undisturbed_model(tmp_path / "undisturbed")


def test_second_coordinator_of_a_fleet_in_the_database_is_refused(stage: Stage, server: PostgresServer, tmp_path: Path):
    """The second uses another state directory and another broker, as on another machine."""
    stage.start_agents()
    stage.hold("ann", round=1, step=1)
    url, elsewhere = server.url(), tmp_path / "elsewhere"
    elsewhere.mkdir()
    with stage.begin(rounds=1, state=url) as coordinator:
        stage.wait_held("ann", coordinator)
        with (
            Mosquitto() as broker,
            Fleet(broker.url, elsewhere) as fleet,
            Stage(broker, fleet, elsewhere).begin(rounds=1, state=url) as second,
        ):
            refused = second.done()
        assert (refused.code, "another fedpatch is working with fleet" in refused.err) == (2, True), refused.err
        stage.holds["ann"].release()
        assert coordinator.done().code == 0


@pytest.mark.parametrize(
    ("state", "code"), [("postgresql://x:hunter2@localhost/x", 2), ("postgresql://x@/x?host=/no", 1)]
)
def test_unusable_database_ends_the_command_with_a_stable_exit_code(tmp_path: Path, state: str, code: int):
    done = run("fedpatch", "run", "--task", "digits", "--state-dir", tmp_path / "state", "--state", state, "--json")
    assert done.code == code
    assert "hunter2" not in done.out + done.err
    assert not (tmp_path / "state" / URL_FILE).exists()
