"""Two coordinators of one fleet: one leads, the other takes over in mid-round, and a former leader writes nothing."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpatch.coordinator.aggregation.privacy_policy import PrivacyPolicy
from fedpatch.coordinator.blobs.blob_store import BlobStore, open_blobs
from fedpatch.coordinator.privacy.privacy_account import PrivacyAccount
from fedpatch.coordinator.storage.blob_takeover import keys_of
from fedpatch.device_agent.state.privacy_account import DevicePrivacyAccount
from fedpatch.shared.app.signals import EXIT_INTERRUPTED
from fedpatch.shared.errors import EXIT_LED
from tests.broker.relay import Relay
from tests.support.brokers import Mosquitto, free_port
from tests.support.postgresql import PostgresServer, postgres_server
from tests.system.commands import Command, Done, run
from tests.system.fleet import AgentProcess, Fleet
from tests.system.stage import Stage, all_went_well, outcomes

pytestmark = [pytest.mark.system, pytest.mark.broker, pytest.mark.medium, pytest.mark.timeout(600)]
ROUNDS = 3
END_LEADER = b"""SELECT pg_terminate_backend(pid) FROM pg_stat_activity AS a WHERE application_name LIKE 'fedpatch leader %'
AND EXISTS (SELECT FROM pg_locks WHERE pid = a.pid AND locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted)"""
TAKEOVER_S = 10.0


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as started:
        yield started


class Pair:
    """A stage whose coordinators share a database and a bucket; each has its own state directory."""

    def __init__(self, stage: Stage, state: str, blobs: str) -> None:
        self.stage = stage
        self.state, self.blobs = state, blobs
        self.terms: dict[str, Any] = {}

    def begin(self, name: str, **changes: Any) -> Command:
        state_dir = self.stage.directory / name
        options: dict[str, Any] = {"state": self.state, "blobs": self.blobs, "rounds": ROUNDS, "state_dir": state_dir}
        options |= changes
        return self.stage.begin(standby=True, **options, **self.terms)

    @contextmanager
    def in_round_2(self) -> Iterator[tuple[Command, Command]]:
        """A leader whose second round is open with Bob's update, and a standby."""
        with self.begin("one") as leader:
            leader.wait_err("leading fleet")
            with self.begin("two") as standby:
                self.until_round_2_is_open(leader)
                standby.wait_err("waiting to take over")
                yield leader, standby

    def until_round_2_is_open(self, leader: Command) -> None:
        """Return once Ann is held in round 2 and Bob's update of round 2 is committed."""
        bob = self.stage.fleet.agents["bob"]
        self.stage.wait_held("ann", leader)
        bob.wait(lambda: bob.log.count("job over: committed") == 2, "has done its part")

    def model(self, done: Done) -> dict[str, bytes]:
        blob = blobs_of(self.blobs, done).get("model.npz")
        assert blob is not None
        return arrays(blob)


def blobs_of(url: str, done: Done) -> BlobStore:
    _, _, epoch = done.document["model"].rpartition("/")[0].rpartition("epoch-")
    return open_blobs(url, Path(done.document["run"]), int(epoch) if epoch.isdigit() else None)


def arrays(blob: bytes) -> dict[str, bytes]:
    with np.load(io.BytesIO(blob)) as model:
        return {name: array.tobytes() for name, array in model.items()}


@pytest.fixture
def pair(stage: Stage, server: PostgresServer, s3: str) -> Pair:
    return started(Pair(stage, server.url(), s3))


def started(pair: Pair) -> Pair:
    """Start the agents, and hold Ann in round 2."""
    pair.stage.start_agents()
    pair.stage.hold("ann", round=2, step=3)
    return pair


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The model of the same run with one coordinator, with files and without faults."""
    directory = tmp_path_factory.mktemp("undisturbed")
    with Mosquitto() as broker, Fleet(broker.url, directory) as fleet:
        stage = Stage(broker, fleet, directory)
        stage.start_agents()
        with stage.begin(rounds=ROUNDS) as coordinator:
            done = coordinator.done()
    assert done.code == 0
    return arrays(Path(done.document["model"]).read_bytes())


def assert_all_there(pair: Pair, done: Done, undisturbed: dict[str, bytes]) -> None:
    assert done.code == 0, done.err
    assert outcomes(done.document) == all_went_well(ROUNDS)
    assert pair.model(done) == undisturbed
    agents: list[AgentProcess] = list(pair.stage.fleet.agents.values())
    assert [agent.log.count("round 2: training") for agent in agents] == [1, 1]


def test_standby_takes_over_within_10_s_of_a_kill_and_the_model_has_the_bits_of_an_undisturbed_run(
    pair: Pair, undisturbed: dict[str, bytes]
):
    with pair.in_round_2() as (leader, standby):
        # The standby connects to the broker once it waits.
        standby.wait(
            lambda: (
                "leads fleet 'demo' (epoch 1); standbys: 1\n"
                in run("fedpatch", "runs", "--state-dir", pair.stage.directory / "one").err
            ),
            "is listed with its broker",
        )
        leader.kill()
        killed_at = time.monotonic()
        standby.wait_err("round 2 goes on with 1 of 2 updates")
        took_s = time.monotonic() - killed_at
        pair.stage.holds["ann"].release()
        done = standby.done()
    assert took_s < TAKEOVER_S
    assert_all_there(pair, done, undisturbed)


@pytest.mark.slow
def test_standby_takes_over_a_run_whose_blobs_are_in_a_shared_folder(
    stage: Stage, server: PostgresServer, tmp_path: Path, undisturbed: dict[str, bytes]
):
    pair = started(Pair(stage, server.url(), f"file://{tmp_path}/shared"))
    with pair.in_round_2() as (leader, standby):
        leader.kill()
        standby.wait_err("round 2 goes on with 1 of 2 updates")
        stage.holds["ann"].release()
        done = standby.done()
    assert_all_there(pair, done, undisturbed)


@pytest.mark.slow
def test_takeover_in_mid_round_neither_loses_nor_repeats_a_release_of_the_privacy_account(pair: Pair):
    """Checks the account of the run, its book, and the journals of the devices."""
    pair.terms = {"dp": "central", "noise_multiplier": 1.0, "dp_clip": 0.5, "strategy": "fedavg", "private": "all"}
    with pair.in_round_2() as (leader, standby):
        leader.kill()
        standby.wait_err("round 2 goes on with 1 of 2 updates")
        pair.stage.holds["ann"].release()
        done = standby.done()
    assert done.code == 0, done.err
    assert outcomes(done.document) == all_went_well(ROUNDS)
    accounts = [(one["privacy"]["rounds"], one["privacy"]["epsilon"]) for one in done.document["rounds"]]
    policy = PrivacyPolicy(noise_multiplier=1.0, clip=0.5)
    assert accounts == [(rounds, policy.epsilon(rounds)) for rounds in range(1, ROUNDS + 1)]
    assert PrivacyAccount(blobs_of(pair.blobs, done)).most_used == ROUNDS
    journals = [DevicePrivacyAccount(agent.state_dir).runs for agent in pair.stage.fleet.agents.values()]
    assert [[run.rounds for run in runs] for runs in journals] == [[ROUNDS], [ROUNDS]]


def test_paused_leader_that_wakes_up_after_a_takeover_writes_nothing_and_ends_with_its_exit_code(
    pair: Pair, server: PostgresServer, undisturbed: dict[str, bytes]
):
    """The paused leader wakes up in the next round, and then finds an offer of Ann."""
    with pair.in_round_2() as (leader, standby):
        leader.freeze()
        paused_at = time.monotonic()
        pair.stage.hold("ann", round=3, step=2)
        standby.wait_err("round 2 goes on with 1 of 2 updates")
        took_s = time.monotonic() - paused_at
        pair.stage.wait_held("ann", standby)
        bob = pair.stage.fleet.agents["bob"]
        bob.wait(lambda: bob.log.count("job over: committed") == 3, "has done its part")
        before = written(server, pair)
        leader.thaw()
        ended = leader.done()
        assert written(server, pair) == before
        pair.stage.holds["ann"].release()
        done = standby.done()
    assert took_s < TAKEOVER_S
    assert (ended.code, "another coordinator leads fleet 'demo'" in ended.err) == (EXIT_LED, True), ended.err
    assert ended.out == ""
    assert "replaced this connection" not in done.err
    assert_all_there(pair, done, undisturbed)


@pytest.mark.slow
def test_terminated_leader_hands_over_in_mid_round_and_no_device_trains_twice(
    pair: Pair, undisturbed: dict[str, bytes]
):
    with pair.in_round_2() as (leader, standby):
        asked_at = time.monotonic()
        ended = leader.terminate()
        standby.wait_err("round 2 goes on with 1 of 2 updates")
        took_s = time.monotonic() - asked_at
        pair.stage.holds["ann"].release()
        done = standby.done()
    assert ended.code == EXIT_INTERRUPTED
    assert took_s < TAKEOVER_S
    assert_all_there(pair, done, undisturbed)


@pytest.mark.slow
def test_leader_without_the_broker_hands_over_to_a_standby_that_reaches_it(pair: Pair, undisturbed: dict[str, bytes]):
    with Relay(pair.stage.broker.port) as link, pair.begin("one", broker=link.url) as leader:
        leader.wait_err("leading fleet")
        with pair.begin("two") as standby:
            pair.until_round_2_is_open(leader)
            standby.wait_err("waiting to take over")
            link.redirect(free_port())
            standby.wait_err("round 2 goes on with 1 of 2 updates")
            leader.wait_err("waiting to take over")
            link.redirect(pair.stage.broker.port)
            pair.stage.holds["ann"].release()
            done, ended = standby.done(), leader.done()
    assert ended.code == 0, ended.err
    assert_all_there(pair, done, undisturbed)


@pytest.mark.slow
def test_coordinator_without_standbys_that_was_replaced_during_a_pause_ends_and_leaves_its_successor_alone(
    stage: Stage,
):
    with stage.begin(state_dir=stage.directory / "one") as paused:
        paused.wait_err("waiting for devices")
        paused.freeze()
        with stage.begin(state_dir=stage.directory / "two", rounds=ROUNDS) as successor:
            successor.wait_err("waiting for devices")
            paused.thaw()
            ended = paused.done()
            stage.start_agents()
            done = successor.done()
    assert (ended.code, "another coordinator has taken over fleet 'demo'" in ended.err) == (EXIT_LED, True), ended.err
    assert (done.code, "broker:" in done.err) == (0, False), done.err
    assert outcomes(done.document) == all_went_well(ROUNDS)


@pytest.mark.slow
def test_leader_whose_sessions_the_database_ends_goes_on_or_hands_over_without_writing_twice(
    pair: Pair, server: PostgresServer, undisturbed: dict[str, bytes]
):
    with pair.in_round_2() as (leader, standby):
        with server.session() as session:
            ended = session.execute(END_LEADER).fetchall()
        assert len(ended) == 1
        pair.stage.holds["ann"].release()
        done = (leader.done(), standby.done())
    codes = [one.code for one in done]
    assert codes in ([0, 0], [EXIT_LED, 0])
    assert_all_there(pair, done[1], undisturbed)


@pytest.mark.slow
def test_standby_ends_well_when_its_leader_has_finished_the_run(pair: Pair, undisturbed: dict[str, bytes]):
    with pair.in_round_2() as (leader, standby):
        pair.stage.holds["ann"].release()
        assert leader.done().code == 0
        done = standby.done()
    assert_all_there(pair, done, undisturbed)


@pytest.mark.slow
def test_run_of_a_leader_is_resumed_by_hand_without_standbys(pair: Pair, undisturbed: dict[str, bytes]):
    with pair.begin("one") as leader:
        pair.until_round_2_is_open(leader)
        leader.kill()
    with Command("fedpatch", "resume", "last", "--state-dir", pair.stage.directory / "one", "--json") as resumed:
        resumed.wait_err("round 2 goes on with 1 of 2 updates")
        pair.stage.holds["ann"].release()
        done = resumed.done()
    assert done.document["model"] == f"{pair.blobs}/{done.document['run']}/model.npz"
    assert_all_there(pair, done, undisturbed)


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"blobs": "s3://fleet/x"}, "add state = postgresql://"),
        ({"state": "postgresql://localhost/x"}, "add blobs = s3://BUCKET/PREFIX"),
    ],
)
def test_standby_without_shared_state_is_refused_with_its_remedy(tmp_path: Path, options: dict[str, str], remedy: str):
    words = [f"--{name}={value}" for name, value in options.items()]
    done = run("fedpatch", "run", "--standby", "--state-dir", tmp_path / "state", *words)
    assert (done.code, remedy in done.err) == (2, True), done.err


def written(server: PostgresServer, pair: Pair) -> list[object]:
    """Return the rows and the objects that coordinators write."""
    tables = ("runs", "rounds", "updates", "open_rounds", "acceptances", "leaders")
    with server.session(pair.state) as session:
        queries = (f"SELECT t::text FROM {table} t ORDER BY 1".encode() for table in tables)
        rows = [session.execute(query).fetchall() for query in queries]
        (run,) = session.execute(b"SELECT id FROM runs").fetchone() or ("",)
    blobs = open_blobs(pair.blobs, Path(str(run)))
    keys = [key for folder in blobs.list() for key in keys_of(blobs, folder.rstrip("/"))]
    assert any(key.startswith("epoch-000001/checkpoint") for key in keys)
    return [rows, {key: blobs.get(key) for key in keys}]
