"""The leader of a fleet: the lock, the epoch, and the rule that a lower epoch commits nothing after a higher one has begun."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from sqlalchemy import Connection, func, select

from fedpatch.coordinator.blobs.blob_store import run_blobs
from fedpatch.coordinator.storage import lead_by_broker_reach
from fedpatch.coordinator.storage import leadership as module
from fedpatch.coordinator.storage.blob_takeover import BlobPlaces
from fedpatch.coordinator.storage.database.leader_epoch import lock, next_epoch
from fedpatch.coordinator.storage.database.opening import URL_FILE
from fedpatch.coordinator.storage.database.postgresql import make_engine
from fedpatch.coordinator.storage.database.tables import offences
from fedpatch.coordinator.storage.database.transactions import insert
from fedpatch.coordinator.storage.leadership import Leadership, leader_in_words
from fedpatch.coordinator.storage.run_registry import Registry
from fedpatch.shared.errors import LeadershipGivenUp, LeadershipLost, UsageError
from tests.coordinator.registry_builders import new_run
from tests.support.examples import examples
from tests.support.postgresql import PostgresServer

FLEET = "lab"
BEFORE, LOCKED, WRITTEN = "before its transaction", "with the epoch compared", "before its commit"
_BLOCKED_S = 0.05
NEVER = threading.Event()

writes = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from([BEFORE, LOCKED, WRITTEN, None])), min_size=1, max_size=8
)


def wait_until(fits: Callable[[], object], patience_s: float = 20.0) -> None:
    give_up_at = time.monotonic() + patience_s
    while not fits():
        assert time.monotonic() < give_up_at
        time.sleep(0.02)


class Leaders:
    """Two coordinators, each with a registry; rows of `offences` have their writer's epoch in `count`."""

    def __init__(self, url: str, path: Path, stack: ExitStack) -> None:
        self.registries = [stack.enter_context(Registry(path)) for _ in range(2)]
        self.epochs = [0, 0]
        self.session = stack.enter_context(make_engine(url).connect())
        self._rows = 0

    def take(self, who: int) -> None:
        """Begin the next epoch for `who`, and record the number of rows of earlier epochs, which must not grow from now on."""
        self.epochs[who] = epoch = next_epoch(self.session, FLEET, "")
        self.at_the_beginning = {"epoch": epoch, "before": self.written_below(epoch)}
        self.registries[who].lead(FLEET, epoch)

    def write(self, who: int, at: Callable[[str], None]) -> None:
        """Write a row in the epoch of `who`; `at` is called at the moments BEFORE, LOCKED and WRITTEN."""
        self._rows += 1

        def work(db: Connection) -> None:
            at(LOCKED)
            row = {"fleet": FLEET, "id": f"row-{self._rows}", "count": self.epochs[who], "last": ""}
            db.execute(insert(db, offences).values(row))
            at(WRITTEN)

        at(BEFORE)
        self.registries[who]._db.change(work)

    def written_below(self, epoch: int) -> int:
        found = self.session.scalar(select(func.count()).where(offences.c.count < epoch))
        return int(found or 0)


@pytest.mark.medium
@examples(20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(writes=writes)
def test_lower_epoch_commits_nothing_after_a_higher_one_has_begun(
    postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[int, str | None]]
):
    """Each write is by one of the two coordinators; at one moment of its transaction the other may take over."""
    path = postgres.state(tmp_path_factory.mktemp("state"))
    with ExitStack() as stack:
        both = Leaders((path.parent / URL_FILE).read_text(), path, stack)
        both.take(0)
        both.take(1)
        for who, moment in writes:
            threads: list[threading.Thread] = []

            def at(now: str, who: int = who, moment: str | None = moment, threads: Any = threads) -> None:
                if now == moment:
                    threads.append(threading.Thread(target=both.take, args=(1 - who,)))
                    threads[0].start()
                    threads[0].join(_BLOCKED_S)

            led = both.epochs[who] > both.epochs[1 - who]
            if led and moment != BEFORE:
                both.write(who, at)
            else:
                with pytest.raises(LeadershipLost, match=f"another coordinator leads fleet '{FLEET}'"):
                    both.write(who, at)
            for thread in threads:
                thread.join()
            begun = both.at_the_beginning
            assert both.written_below(begun["epoch"]) == begun["before"]


@pytest.fixture
def url(postgres: PostgresServer, tmp_path: Path) -> str:
    """The URL of a database with the tables of a registry."""
    path = postgres.state(tmp_path / "state")
    Registry(path).close()
    return (path.parent / URL_FILE).read_text()


def sleepless(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CHECK_S", "TRY_S", "_AFTER_OUTAGE_S"):
        monkeypatch.setattr(module, name, 0.02)


def end_leader(postgres: PostgresServer, leader: Leadership) -> None:
    assert leader._session is not None
    pid = leader._session.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
    with postgres.session() as session:
        session.execute(b"SELECT pg_terminate_backend(%s, 5000)", (pid,))


def test_second_coordinator_waits_until_the_first_releases_the_lock(url: str, monkeypatch: pytest.MonkeyPatch):
    sleepless(monkeypatch)
    said: list[str] = []
    with Leadership(url, FLEET) as first, Leadership(url, FLEET) as second, Leadership(url, "other fleet") as other:
        assert not first.wait(said.append, NEVER)
        first.begin()
        assert (first.leads, second.leads, other.wait(said.append, NEVER)) == (True, False, False)
        leader = f"{first.holder} leads fleet 'lab' (epoch 1)"
        assert leader_in_words(url, FLEET) == f"{leader}; standbys: 1, without the broker: 1"
        assert not second._take(reaches=True, waits=True)
        assert leader_in_words(url, FLEET) == f"{leader}; standbys: 1"
        waiting = threading.Thread(target=second.wait, args=(said.append, NEVER))
        waiting.start()
        wait_until(lambda: said)
        first.close()
        waiting.join()
        second.begin()
        assert second.epoch == 2
        assert said[0] == f"standby of fleet 'lab': {first.holder} leads it (epoch 1); waiting to take over"


def test_standby_that_shall_end_waits_no_longer(url: str):
    ending = threading.Event()
    with Leadership(url, FLEET) as first, Leadership(url, FLEET) as second:
        first.wait(print, NEVER)
        ending.set()
        with pytest.raises(KeyboardInterrupt):
            second.wait(print, ending)


def test_leader_takes_its_lock_again_after_the_server_has_ended_its_session(
    url: str, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    sleepless(monkeypatch)
    with Leadership(url, FLEET) as leader:
        leader.wait(print, NEVER)
        leader.begin()
        end_leader(postgres, leader)
        wait_until(lambda: "the lock of the leader is taken again" in caplog.text)
        wait_until(lambda: leader.leads)
        leader.must_lead()


def test_leader_whose_fleet_has_another_one_notices_it_and_says_so_once(
    url: str, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
):
    sleepless(monkeypatch)
    lost: list[int] = []
    with Leadership(url, FLEET) as leader, Leadership(url, FLEET) as other:
        leader.wait(print, NEVER)
        leader.begin()
        leader.on_loss(lambda: lost.append(1))
        monkeypatch.setattr(module, "TRY_S", 0.5)
        end_leader(postgres, leader)
        wait_until(other._take)
        other.begin()
        wait_until(lambda: lost)
        with pytest.raises(LeadershipLost, match=r"epoch 2, this one had 1\); nothing of this one is written any more"):
            leader.must_lead()
        assert (leader.leads, lost) == (False, [1])


def test_leader_whose_server_comes_back_as_one_that_it_cannot_use_says_so_and_leads_no_more(
    url: str, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
):
    sleepless(monkeypatch)
    lost: list[int] = []
    with Leadership(url, FLEET) as leader:
        leader.wait(print, NEVER)
        leader.begin()
        leader.on_loss(lambda: lost.append(1))
        monkeypatch.setattr(module, "_LEAST_VERSION", 10_000_000)
        end_leader(postgres, leader)
        wait_until(lambda: lost)
        with pytest.raises(UsageError, match="--standby needs PostgreSQL"):
            leader.must_lead()


def test_leader_without_a_sign_of_the_server_for_a_lease_does_not_count_as_one(
    url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(module, "CHECK_S", 60.0)
    monkeypatch.setattr(module, "LEASE_S", 0.2)
    with Leadership(url, FLEET) as leader:
        leader.wait(print, NEVER)
        leader.begin()
        wait_until(lambda: not leader.leads)


def test_leader_that_lost_the_broker_leads_again_once_the_server_has_answered(url: str):
    with Leadership(url, FLEET) as leader:
        leader.wait(print, NEVER)
        leader.begin()
        leader.broker_lost()
        wait_until(lambda: leader.leads, patience_s=0.9 * module.CHECK_S)
        leader._prove = lambda: None  # type: ignore[method-assign]
        leader.broker_lost()
        assert not leader.leads


def test_leader_whose_session_was_ended_does_not_count_as_one_before_it_has_the_lock_again(
    url: str, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
):
    sleepless(monkeypatch)
    with Leadership(url, FLEET) as leader:
        leader.wait(print, NEVER)
        leader.begin()
        monkeypatch.setattr(module, "TRY_S", 60.0)
        end_leader(postgres, leader)
        wait_until(lambda: leader._session is None)
        assert not leader.leads


def test_leader_without_the_broker_gives_up_only_to_a_standby_that_reaches_it(
    url: str, monkeypatch: pytest.MonkeyPatch
):
    sleepless(monkeypatch)
    monkeypatch.setattr(lead_by_broker_reach, "BROKERLESS_S", 0.05)
    monkeypatch.setattr(module, "_AFTER_OUTAGE_S", 0.0)
    lost: list[int] = []
    with Leadership(url, FLEET) as leader, Leadership(url, FLEET) as blind, Leadership(url, FLEET) as standby:
        leader.wait(print, NEVER)
        leader.begin()
        leader.on_loss(lambda: lost.append(1))
        assert not blind._take(reaches=False, waits=True)
        leader.broker_lost()
        proved_at = leader._proved_at
        wait_until(lambda: leader._proved_at > proved_at + 0.2)
        assert (lost, leader.leads) == ([], True)
        standby._take(reaches=True, waits=True)  # may have the lock already: the leader gives it up at once
        wait_until(lambda: lost)
        with pytest.raises(LeadershipGivenUp, match="no broker for 0 s and a standby reaches it"):
            leader.must_lead()
        assert not leader.leads
        wait_until(lambda: standby._take(reaches=True, waits=True))
        assert standby.begin()


def test_leader_that_finds_the_broker_again_keeps_the_lead(url: str, monkeypatch: pytest.MonkeyPatch):
    sleepless(monkeypatch)
    monkeypatch.setattr(lead_by_broker_reach, "BROKERLESS_S", 0.05)
    with Leadership(url, FLEET) as leader, Leadership(url, FLEET) as standby:
        leader.wait(print, NEVER)
        leader.begin()
        leader.broker_lost()
        leader.broker_found()
        assert not standby._take(reaches=True, waits=True)
        proved_at = leader._proved_at
        wait_until(lambda: leader._proved_at > proved_at + 0.2)
        assert leader.leads


@pytest.mark.parametrize(
    ("waits", "another", "takes"), [(False, False, True), (False, True, False), (True, False, False)]
)
def test_coordinator_without_the_broker_takes_a_free_lock_only_at_its_start_and_if_no_other_reaches_it(
    url: str, waits: bool, another: bool, takes: bool
):
    with Leadership(url, FLEET) as leader, Leadership(url, FLEET) as standby, Leadership(url, FLEET) as blind:
        assert leader._take()
        standby._take(reaches=another, waits=True)
        leader.close()
        with make_engine(url).connect() as session:
            # The server frees the lock once it has noticed the end of the connection.
            wait_until(lambda: lock(session, FLEET))
            session.exec_driver_sql("SELECT pg_advisory_unlock_all()")
        assert blind._take(reaches=False, waits=waits) is takes


def test_standby_whose_session_ends_during_the_takeover_waits_for_the_lock_again(
    url: str, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
):
    sleepless(monkeypatch)
    with Leadership(url, FLEET) as leader:
        leader.wait(print, NEVER)
        end_leader(postgres, leader)
        assert not leader.begin()
        leader.wait(print, NEVER, again=True)
        assert leader.begin()
        assert leader.leads


def test_epoch_is_above_those_of_all_runs_where_the_database_was_rebuilt(url: str, tmp_path: Path):
    with Registry(tmp_path / "state" / "registry.sqlite3") as registry, Leadership(url, FLEET) as leader:
        run = new_run(registry).id
        for _ in range(6):
            registry.next_epoch(run)
        leader.wait(print, NEVER)
        leader.begin()
        assert leader.epoch == 8
        registry.lead(FLEET, leader.epoch)
        assert registry.next_epoch(run) == 8


def test_coordinator_without_standbys_refuses_the_writes_of_a_former_leader(url: str, tmp_path: Path):
    path = tmp_path / "state" / "registry.sqlite3"
    with Registry(path) as former, Registry(path) as plain:
        with Leadership(url, FLEET) as leader:
            leader.wait(print, NEVER)
            leader.begin()
            former.lead(FLEET, leader.epoch)
            with pytest.raises(UsageError, match="another fedpatch is working with fleet 'lab'"):
                plain.lead(FLEET)
        plain.lead(FLEET)
        with pytest.raises(LeadershipLost):
            new_run(former)
        assert new_run(plain).epoch == 1


def test_run_that_is_resumed_without_standbys_is_not_in_the_folder_of_a_leader_that_died_as_it_took_over(
    url: str, tmp_path: Path
):
    path, store = tmp_path / "state" / "registry.sqlite3", f"file://{tmp_path}/shared"
    with Registry(path) as registry, Leadership(url, FLEET) as first:
        first.wait(print, NEVER)
        first.begin()
        registry.lead(FLEET, first.epoch)
        run = new_run(registry).id
        BlobPlaces(store, tmp_path / run, first.epoch).own().put("checkpoint-000001.fp", b"1")
    with Leadership(url, FLEET) as second:
        second.wait(print, NEVER)
        second.begin()
        BlobPlaces(store, tmp_path / run, second.epoch).move_in(first.epoch)
    with Registry(path) as plain:
        plain.lead(FLEET)
        places = BlobPlaces(store, tmp_path / run)
        places.move_in(plain.run(run).epoch)
        epoch = plain.next_epoch(run)
        places.own().put("checkpoint-000002.fp", b"2")
        assert run_blobs({"blobs": store}, tmp_path / run, epoch).get("checkpoint-000002.fp") == b"2"
        assert plain.next_epoch(run) == epoch + 1
    with Leadership(url, FLEET) as third:
        third.wait(print, NEVER)
        third.begin()
        assert third.epoch > epoch + 1
