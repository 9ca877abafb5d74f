"""The registry in PostgreSQL: its selection, errors, locks, and lost connections."""

from __future__ import annotations

import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Connection, create_engine, event, inspect, text

from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.rounds.stored_update import StoredUpdate
from fedpatch.coordinator.storage.content_checks import check_stored
from fedpatch.coordinator.storage.database import migrations, postgresql
from fedpatch.coordinator.storage.database.migrations import OLDEST_VERSION, SCHEMA_VERSION, script
from fedpatch.coordinator.storage.database.opening import URL_FILE, choose_database, exists
from fedpatch.coordinator.storage.database.postgresql import PostgresDatabase
from fedpatch.coordinator.storage.database.tables import METADATA
from fedpatch.coordinator.storage.registry_rebuild import rebuild_registry
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.shared.app.store_waits import REGISTRY, StoreWaits
from fedpatch.shared.errors import StateError, UsageError
from tests.coordinator.registry_builders import new_run, seen
from tests.support.checkups import quiet_checkup
from tests.support.postgresql import ROLE, PostgresServer, postgres_server

ABSENT = "postgresql://fedpatch@/fedpatch?host=/nowhere"


@pytest.fixture
def path(tmp_path: Path, postgres: PostgresServer) -> Path:
    """The path that a SQLite file would have; the registry is in PostgreSQL."""
    return postgres.state(tmp_path / "state")


@pytest.fixture(scope="module")
def mortal() -> Iterator[PostgresServer]:
    """A server that a test may kill."""
    with postgres_server() as server:
        yield server


def update_of(device: str) -> StoredUpdate:
    return StoredUpdate(round=1, device=device, digest="ab" * 32, raw_bytes=99, num_examples=40, encoding="fp32")


def record_of(number: int) -> RoundRecord:
    return RoundRecord(number, "aggregated", 4, 3, 1, 3, 0.5)


def database_of(registry: Registry) -> PostgresDatabase:
    assert isinstance(registry._db, PostgresDatabase)
    return registry._db


def end_session(server: PostgresServer, registry: Registry) -> None:
    """Terminate the registry's connection as an administrator does."""
    [row] = database_of(registry)._connection.exec_driver_sql("SELECT pg_backend_pid()").all()
    with server.session() as session:
        session.execute("SELECT pg_terminate_backend(%s, 5000)", row)


def lose_answer_of_commit(registry: Registry, times: int = 1) -> None:
    """Cut the connection after the server's COMMIT, before its answer is read."""
    left = [times]

    @event.listens_for(database_of(registry)._engine, "after_cursor_execute")
    def cut(_db: object, cursor: psycopg.Cursor, statement: str, *_: object) -> None:
        if statement == "COMMIT" and left[0]:
            left[0] -= 1
            cursor.connection.close()
            raise psycopg.OperationalError("server closed the connection unexpectedly")


def test_tables_for_statements_are_those_that_migrations_make_in_sqlite():
    with closing(sqlite3.connect(":memory:", check_same_thread=False)) as db:
        db.executescript(script(0))
        found = inspect(create_engine("sqlite://", creator=lambda: db))
        made = {
            name: {(one["name"], bool(one["nullable"])) for one in found.get_columns(name)}
            for name in found.get_table_names()
        }
        keys = {name: found.get_pk_constraint(name)["constrained_columns"] for name in made}
    wanted = {table.name: {(one.name, bool(one.nullable)) for one in table.c} for table in METADATA.sorted_tables}
    assert {name: {one for one, _ in columns} for name, columns in made.items()} == {
        name: {one for one, _ in columns} for name, columns in wanted.items()
    }
    assert {name: set(columns) for name, columns in keys.items()} == {
        table.name: {one.name for one in table.primary_key} for table in METADATA.sorted_tables
    }


def test_chosen_database_is_found_by_the_state_directory_alone(tmp_path: Path, postgres: PostgresServer):
    path, url = tmp_path / "state" / REGISTRY_FILE, postgres.url()
    choose_database(path, url)
    assert not path.parent.exists()
    path.parent.mkdir()
    choose_database(path, url)
    with Registry(path) as registry:
        run = new_run(registry)
    choose_database(path, None)
    with Registry(path, readonly=True) as registry:
        assert registry.runs() == [run]
    assert (path.parent / URL_FILE).read_text() == f"{url}\n"
    assert exists(path) and not path.exists()


def test_state_directory_whose_runs_are_elsewhere_is_refused(tmp_path: Path, path: Path, postgres: PostgresServer):
    with pytest.raises(UsageError, match=r"its runs are in postgresql://.*, not in postgresql://"):
        choose_database(path, postgres.url())
    with Registry(tmp_path / REGISTRY_FILE):
        pass
    with pytest.raises(UsageError, match=rf"its runs are in {REGISTRY_FILE}, not in .*use another --state-dir"):
        choose_database(tmp_path / REGISTRY_FILE, postgres.url())


@pytest.mark.parametrize("content", ["", "postgresql://fedpatch:hunter2@localhost/fedpatch", "\udc80"])
def test_damaged_name_of_the_database_is_reported_with_its_file(tmp_path: Path, content: str):
    (tmp_path / URL_FILE).write_text(content, errors="surrogateescape")
    with pytest.raises(UsageError, match=URL_FILE) as raised:
        Registry(tmp_path / REGISTRY_FILE)
    assert "hunter2" not in str(raised.value)


def test_absent_server_is_reported_with_the_remedy(tmp_path: Path):
    with pytest.raises(StateError, match=r"^postgresql://.*cannot be used: .*; start the server"):
        choose_database(tmp_path / REGISTRY_FILE, ABSENT)
    assert not (tmp_path / URL_FILE).exists()


@pytest.mark.medium
@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        ("postgresql://stranger@/postgres?host={}", "make the user"),
        ("postgresql://{role}@/elsewhere?host={}", "make the database"),
        ("postgresql://{role}@/postgres?host={}/nowhere", "start the server, or correct the folder of its socket"),
        ("postgresql://{role}@127.0.0.1:9/postgres", "start the server, and let it listen at this address"),
        ("postgresql://{role}@no-such-host.invalid/postgres", "correct the host name in the URL"),
        (
            "postgresql://{role}@/postgres?host={}&options=-cdefault_transaction_read_only%3Don",
            "use the address of the primary",
        ),
        ("postgresql://{role}@/postgres?host={}&sslmode=sometimes", "correct the options in the URL"),
        ("postgresql://{role}@/postgres?host={}&colour=blue", "correct the options in the URL"),
        ("postgresql://{role}@/postgres?host={}&options=-ccolour%3Dblue", "correct the options in the URL"),
    ],
)
def test_server_that_refuses_is_reported_with_the_remedy_for_the_cause(postgres, tmp_path: Path, url, remedy):
    with pytest.raises(StateError, match=f"cannot be used: .*; .*{remedy}"):
        choose_database(tmp_path / REGISTRY_FILE, url.format(postgres.folder, role=ROLE))
        Registry(tmp_path / REGISTRY_FILE).close()
    assert not (tmp_path / URL_FILE).exists(), "with a corrected URL the directory would refuse to change its database"


def test_database_without_an_encoding_holds_a_registry(tmp_path: Path, postgres: PostgresServer):
    """As a cluster that initdb has made without a locale."""
    with postgres.session() as session:
        session.execute("CREATE DATABASE bare ENCODING 'SQL_ASCII' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
    url = f"postgresql://{ROLE}@/bare?host={postgres.folder}"
    with closing(PostgresDatabase(tmp_path / "registry.sqlite3", url)) as database:
        assert database.read(text("SELECT 'é' AS letter")) == [{"letter": "é"}]


def test_missing_psycopg_is_reported_with_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(UsageError, match=r"needs psycopg; pip install 'fedpatch\[postgresql\]'"):
        choose_database(tmp_path / REGISTRY_FILE, ABSENT)


def test_missing_privilege_is_reported_with_the_grant(tmp_path: Path, postgres: PostgresServer):
    with postgres.session() as session:
        session.execute("CREATE SCHEMA closed; CREATE ROLE guest LOGIN")
    (tmp_path / URL_FILE).write_text(postgres.url("closed", role="guest"))
    with pytest.raises(StateError, match=r"cannot be used: .*permission|cannot be used: .*no schema"):
        Registry(tmp_path / REGISTRY_FILE)
    with postgres.session() as session:
        session.execute("GRANT USAGE ON SCHEMA closed TO guest")
    with pytest.raises(StateError, match=r"permission denied .*; have its owner grant"):
        Registry(tmp_path / REGISTRY_FILE)


def test_reader_of_a_new_database_is_told_to_run_and_only_with_journals_that_tables_are_gone(path: Path):
    with Registry(path, readonly=True) as registry, pytest.raises(StateError, match="no run has begun here; `fedpatch"):
        registry.runs()
    with Registry(path) as registry:
        new_run(registry)
        database_of(registry).change(lambda db: db.exec_driver_sql("DROP TABLE runs CASCADE"))
    with (
        Registry(path, readonly=True) as registry,
        pytest.raises(StateError, match=r"tables are gone.*restore a backup"),
    ):
        registry.runs()


@pytest.mark.parametrize("readonly", [False, True])
def test_database_of_another_program_or_of_a_version_that_cannot_be_used_is_refused(
    path: Path, postgres: PostgresServer, readonly: bool
):
    url = (path.parent / URL_FILE).read_text()
    with postgres.session(url) as session:
        session.execute("CREATE TABLE runs (distance INTEGER)")
        with pytest.raises(StateError, match="has tables that are not fedpatch's; use an empty database"):
            Registry(path, readonly=readonly)
        session.execute("DROP TABLE runs")
        with Registry(path):
            pass
        session.execute("UPDATE registry_version SET version = 99")
        with pytest.raises(StateError, match=r"newer fedpatch \(version 99"):
            Registry(path, readonly=readonly)
        session.execute(f"UPDATE registry_version SET version = {OLDEST_VERSION - 1}")
        with pytest.raises(StateError, match=f"oldest that can be opened is {OLDEST_VERSION}; use another database"):
            Registry(path, readonly=readonly)


def test_older_version_is_migrated_and_read_only_after_that(path: Path, monkeypatch: pytest.MonkeyPatch):
    with Registry(path) as registry:
        run = new_run(registry)
    later = ("ALTER TABLE devices ADD COLUMN room TEXT;", "ALTER TABLE devices ADD COLUMN floor TEXT;")
    monkeypatch.setattr(migrations, "_MIGRATIONS", (*migrations._MIGRATIONS, *later))
    for module in (migrations, postgresql):
        monkeypatch.setattr(module, "SCHEMA_VERSION", SCHEMA_VERSION + 2)
    monkeypatch.setattr(postgresql, "script", lambda version: script(version, SCHEMA_VERSION + 2))
    with pytest.raises(StateError, match="is of an earlier version"):
        Registry(path, readonly=True)
    for _ in range(2):
        with Registry(path) as registry:
            assert registry.runs() == [run]
            query = "SELECT room, floor, (SELECT version FROM registry_version) FROM devices RIGHT JOIN runs ON true"
            assert database_of(registry)._connection.exec_driver_sql(query).all() == [(None, None, SCHEMA_VERSION + 2)]


def test_tables_of_version_11_are_migrated(path: Path, postgres: PostgresServer):
    with Registry(path) as registry:
        seen(registry, "pi-1", fleet="lab")
        known = registry.devices()
    with postgres.session((path.parent / URL_FILE).read_text()) as session:
        session.execute("ALTER TABLE devices DROP COLUMN relay")
        session.execute("UPDATE registry_version SET version = 11")
    with Registry(path) as registry:
        assert registry.devices() == known


def test_commits_wait_for_the_disk_although_the_server_would_not(path: Path, postgres: PostgresServer):
    url = (path.parent / URL_FILE).read_text()
    (path.parent / URL_FILE).write_text(f"{url}%20-csynchronous_commit%3Doff")
    with Registry(path) as registry:
        database = database_of(registry)
        shown = "SHOW synchronous_commit"
        assert database.change(lambda db: db.exec_driver_sql(shown).scalar()) == "on"
        assert database._connection.exec_driver_sql(shown).scalar() == "off"


def test_one_coordinator_leads_a_fleet_from_whatever_directory(tmp_path: Path, path: Path):
    other = tmp_path / "other" / REGISTRY_FILE
    other.parent.mkdir()
    (other.parent / URL_FILE).write_text((path.parent / URL_FILE).read_text())
    with Registry(path) as first, Registry(other) as second:
        first.lead("lab")
        second.lead("kitchen")
        with pytest.raises(UsageError, match=r"another fedpatch is working with fleet 'lab'; wait for it, or end it"):
            second.lead("lab")
        first.close()
        second.lead("lab")


def test_change_is_repeated_once_after_a_lost_connection(path: Path, postgres: PostgresServer, caplog):
    with Registry(path) as registry:
        seen(registry, "pi-1")
        registry.lead("lab")
        for _ in range(3):
            end_session(postgres, registry)
            registry.count("lab", ("pi-1", "reported", ""))
        end_session(postgres, registry)
        assert registry.devices()[0].reported == 3
        assert [line for line in caplog.messages if "no committed change is lost" in line][3:] != []
        with Registry(path) as other, pytest.raises(UsageError, match="another fedpatch"):
            other.lead("lab")


@pytest.mark.parametrize(("times", "ends"), [(2, True), (99, False)])
def test_transaction_that_the_server_has_undone_is_repeated_a_few_times(path: Path, times: int, ends: bool):
    calls = []

    def work(db: Connection) -> int:
        calls.append(db)
        if len(calls) <= times:
            db.exec_driver_sql("DO 'BEGIN RAISE SQLSTATE ''40P01''; END'")
        return len(calls)

    with Registry(path) as registry:
        if ends:
            assert database_of(registry).change(work) == times + 1
            return
        with pytest.raises(StateError, match="cannot be used"):
            database_of(registry).change(work)
        assert len(calls) < times


def test_committed_change_is_not_repeated_when_its_answer_is_lost(path: Path):
    with Registry(path) as registry:
        run = new_run(registry).id
        seen(registry, "pi-1")
        lose_answer_of_commit(registry, 3)
        registry.count("lab", ("pi-1", "reported", ""))
        assert registry.next_epoch(run) == 2
        assert registry.rounds.add_updates(run, [update_of("pi-1")]) == {}
        registry.rounds.finish(run, record_of(1))
        assert (registry.devices()[0].reported, registry.changes(run)) == (1, 3)


def test_fleet_and_run_that_another_coordinator_took_meanwhile_end_this_one(
    path: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(postgresql, "PATIENCE_S", 0.1)
    with Registry(path) as registry, Registry(path) as other:
        registry.lead("lab")
        run = new_run(registry).id
        end_session(postgres, registry)
        other.lead("lab")
        with pytest.raises(StateError, match="another fedpatch is working with fleet 'lab'"):
            registry.reopen(run)
        other.next_epoch(run)
        other.close()
        with pytest.raises(StateError, match=f"another fedpatch has gone on with run {run}"):
            registry.reopen(run)


@pytest.mark.medium
def test_killed_server_loses_no_committed_update(tmp_path: Path, mortal: PostgresServer):
    """Updates are added while the server is killed and started again, three times."""
    path = mortal.state(tmp_path)
    wake, stop = threading.Event(), threading.Event()

    def reaper() -> None:
        for _ in range(3):
            wake.wait()
            wake.clear()
            mortal.kill()
            mortal.start()
        stop.set()

    with Registry(path) as registry:
        run = new_run(registry).id
        thread = threading.Thread(target=reaper)
        thread.start()
        added = 0
        while not stop.is_set():
            seen(registry, "pi-1", now=float(added))
            registry.rounds.add_updates(run, [update_of(f"pi-{added}")])
            registry.count("lab", ("pi-1", "reported", ""))
            added += 1
            wake.set()
        thread.join()
        assert {one.device for one in registry.rounds.updates(run, 1)} == {f"pi-{number}" for number in range(added)}
        assert registry.devices()[0].reported == added


@pytest.mark.medium
def test_silent_server_is_reported_and_its_connection_made_anew(
    tmp_path: Path, mortal: PostgresServer, caplog: pytest.LogCaptureFixture
):
    """A paused server accepts bytes and never answers."""
    ahead_s = [0.0]
    waits = StoreWaits(lambda: time.monotonic() + ahead_s[-1])
    with Registry(mortal.state(tmp_path)) as registry:
        run = new_run(registry).id
        registry.lead("lab", ending=waits)
        mortal.freeze()
        change = threading.Thread(target=registry.reopen, args=(run,))
        change.start()
        while not waits.silent_s(REGISTRY):
            pass
        ahead_s.append(postgresql.PATIENCE_S)
        waits.look()
        mortal.thaw()
        change.join()
        waits.look()
        assert registry.changes(run) == 2
    assert "no answer for 1 min 0 s; waiting for 1 min 0 s at most" in caplog.text
    assert "answers again" in caplog.text


@pytest.mark.medium
def test_server_that_stays_away_is_waited_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(postgresql, "PATIENCE_S", 0.5)
    with postgres_server() as server:
        path = server.state(tmp_path)
        with Registry(path) as registry:
            run = new_run(registry).id
            server.kill()
            for _ in range(2):
                with pytest.raises(StateError, match=r"cannot be used: .*; start the server"):
                    registry.reopen(run)
            server.start()
            registry.reopen(run)
            assert registry.changes(run) == 2


def test_empty_database_is_filled_from_the_journals(path: Path, postgres: PostgresServer):
    with Registry(path) as registry:
        run = new_run(registry).id
        registry.rounds.finish(run, record_of(1))
        wanted = registry.runs(), registry.rounds.records(run)
    (path.parent / URL_FILE).write_text(postgres.url())
    assert rebuild_registry(path).runs == (run,)
    with Registry(path) as registry:
        assert (registry.runs(), registry.rounds.records(run)) == wanted


def test_doctor_reads_a_registry_in_a_database(path: Path):
    with Registry(path) as registry:
        new_run(registry)
    checkup = quiet_checkup()
    check_stored(path.parent, checkup)
    assert any("postgresql://" in one.detail and "can be read: 1 runs" in one.detail for one in checkup.findings)
