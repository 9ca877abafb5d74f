"""The registry's tables: an older version becomes the present one, or stays what it is."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from coordinator import row_sums
from coordinator.database import open_database
from coordinator.moments import Moment
from coordinator.registry import REGISTRY_FILE, Registry
from coordinator.registry_copy import copy_of
from coordinator.registry_tables import SCHEMA_VERSION, script
from shared.errors import StateError
from tests.coordinator.test_registry_damage import Content, Told, content_of, opened


def old_registry(path: Path) -> Content:
    """A registry of version 1, as the first release wrote it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.executescript(f"BEGIN; {script(0, 1)} PRAGMA user_version = 1; COMMIT; PRAGMA journal_mode = WAL;")
        row = ("r-1", 0.0, "digits", "fedavg", "none", "{}", "5c", 1, "failed")
        columns = "id, created_at, task, strategy, private, settings, schema, epoch, status"
        db.execute(f"INSERT INTO runs ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        return content_of(db)


def test_an_older_registry_is_brought_to_the_present_version(tmp_path: Path):
    """Nothing is lost, and the copy is what it was before."""
    path = tmp_path / REGISTRY_FILE
    known = old_registry(path)
    with Told() as lines, Registry(path) as registry:
        assert {name: content_of(registry._db)[name] for name in known} == known
        assert registry._db.execute("PRAGMA user_version").fetchone()[0] == SCHEMA_VERSION
        assert row_sums.wrong(registry._db) is None
    with closing(sqlite3.connect(copy_of(path))) as copy:
        assert (copy.execute("PRAGMA user_version").fetchone()[0], content_of(copy)) == (1, known)
    assert (lines, opened(path)[1]) == ([], [])


def test_updates_of_version_3_are_in_the_encoding_of_their_run(tmp_path: Path):
    """A coordinator that is made new in mid-round reads back what the one before it was promised."""
    path = tmp_path / REGISTRY_FILE
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.executescript(f"BEGIN; {script(0, 3)} COMMIT; PRAGMA journal_mode = WAL;")
        for run, settings in (("half", '{"encoding": "fp16+zstd"}'), ("old", "{}"), ("odd", "no JSON")):
            columns = "id, created_at, task, strategy, private, settings, schema, epoch, status"
            row = (run, 0.0, "digits", "fedavg", "none", settings, "5c", 1, "running")
            db.execute(f"INSERT INTO runs ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            db.execute("INSERT INTO updates VALUES (?, 1, 'a', 'ab', 99, 40)", (run,))
            opened_round = (run, 1, 2, '["a", "b"]', "cd", 1.5, "boot", 1.0, 1.0)
            columns = "run, round, target, invited, base, spent_s, boot, uptime_s, unix_s"
            db.execute(f"INSERT INTO open_rounds ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", opened_round)
        row_sums.fill(db)
        db.execute("PRAGMA user_version = 3")
    with Told() as lines, Registry(path) as registry:
        found = {run: registry.rounds.updates(run, 1)[0].encoding for run in ("half", "old", "odd")}
        assert found == {"half": "fp16+zstd", "old": "fp32+zstd", "odd": "fp32+zstd"}
        ledger = registry.rounds.unfinished("half", Moment.now())
        assert ledger is not None and (ledger.base, ledger.encoding, ledger.negotiated) == ("cd", "", {})
        assert row_sums.wrong(registry._db) is None
    assert (lines, opened(path)[1]) == ([], [])


def test_an_older_registry_is_read_as_it_is(tmp_path: Path):
    """In the present version, and without a change to the file."""
    path = tmp_path / REGISTRY_FILE
    old_registry(path)
    data = path.read_bytes()
    with Registry(path, readonly=True) as registry:
        assert registry.run("last").id == "r-1"
        assert registry.rounds.records("r-1") == []
        with pytest.raises(StateError, match="readonly"):
            registry.reopen("r-1")
    assert path.read_bytes() == data


def test_a_migration_that_fails_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """All of it, or none: here the new tables are made, and then the disk refuses their rows."""
    path = tmp_path / REGISTRY_FILE
    known = old_registry(path)

    def fill(db: sqlite3.Connection) -> None:
        assert db.execute("SELECT count(*) FROM sums").fetchone() == (0,)
        db.execute("PRAGMA query_only = ON")
        row_sums_fill(db)

    row_sums_fill = row_sums.fill
    monkeypatch.setattr(row_sums, "fill", fill)
    with pytest.raises(StateError, match="readonly"):
        open_database(path, readonly=False)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone()[0] == 1
        assert content_of(db) == known


def test_a_registry_that_was_killed_while_it_was_made_is_made(tmp_path: Path):
    """There is a file with SQLite's header, and nothing in it yet."""
    path = tmp_path / REGISTRY_FILE
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode = WAL")
    db.close()
    with Registry(path) as registry:
        assert registry.runs() == []
