"""The registry's tables: an older version is migrated completely or stays unchanged."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from fedpatch.coordinator.storage.boot_clock import BootTime
from fedpatch.coordinator.storage.database import migrations
from fedpatch.coordinator.storage.database.migrations import SCHEMA_VERSION, script
from fedpatch.coordinator.storage.database.opening import open_database
from fedpatch.coordinator.storage.database.registry_files import copy_of
from fedpatch.coordinator.storage.registry_rebuild import rebuild_registry
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.shared.errors import StateError
from tests.coordinator.registry_builders import change, driver_of, new_run
from tests.coordinator.storage.test_registry_damage import Content, LogLines, content_of, opened

VERSION_4 = Path(__file__).parent / "registry-version-4.sql"
FINISHED, OPEN = "20231114-221320-d5c6f5", "20231114-221420-66dbb0"


def old_registry(path: Path) -> Content:
    """Create a registry of version 1, as the first release wrote it; return its content."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.executescript(f"BEGIN; {script(0, 1)} PRAGMA user_version = 1; COMMIT; PRAGMA journal_mode = WAL;")
        row = ("r-1", 0.0, "digits", "fedavg", "none", "{}", "5c", 1, "failed")
        columns = "id, created_at, task, strategy, private, settings, schema, epoch, status"
        db.execute(f"INSERT INTO runs ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        return content_of(db)


def test_older_registry_is_migrated_and_copied_before(tmp_path: Path):
    path = tmp_path / REGISTRY_FILE
    known = old_registry(path)
    migrated = {**known, "runs": [(*row, 0) for row in known["runs"]]}  # 0 is the number of the run's last change
    with LogLines() as lines, Registry(path) as registry:
        assert {name: content_of(driver_of(registry))[name] for name in known} == migrated
        assert driver_of(registry).execute("PRAGMA user_version").fetchone()[0] == SCHEMA_VERSION
    with closing(sqlite3.connect(copy_of(path))) as copy:
        assert (copy.execute("PRAGMA user_version").fetchone()[0], content_of(copy)) == (1, known)
    assert (lines, opened(path)[1]) == ([], [])


def test_updates_of_version_3_are_in_the_encoding_of_their_run(tmp_path: Path):
    """A coordinator that is restarted during a round reads these updates."""
    path = tmp_path / REGISTRY_FILE
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.executescript(f"BEGIN; {script(0, 3)} COMMIT; PRAGMA journal_mode = WAL;")
        for run, settings in (("half", '{"encoding": "fp16+zstd"}'), ("old", "{}")):
            columns = "id, created_at, task, strategy, private, settings, schema, epoch, status"
            row = (run, 0.0, "digits", "fedavg", "none", settings, "5c", 1, "running")
            db.execute(f"INSERT INTO runs ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
            db.execute("INSERT INTO updates VALUES (?, 1, 'a', ?, 99, 40)", (run, "ab" * 32))
            opened_round = (run, 1, 2, '["a", "b"]', "cd", 1.5, "boot", 1.0, 1.0)
            columns = "run, round, target, invited, base, spent_s, boot, uptime_s, unix_s"
            db.execute(f"INSERT INTO open_rounds ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", opened_round)
        db.execute("PRAGMA user_version = 3")
    with LogLines() as lines, Registry(path) as registry:
        found = {run: registry.rounds.updates(run, 1)[0].encoding for run in ("half", "old")}
        assert found == {"half": "fp16+zstd", "old": "fp32+zstd"}
        journal = registry.rounds.unfinished("half", BootTime.now())
        assert journal is not None and (journal.base, journal.encoding, journal.negotiated) == ("cd", "", {})
    assert (lines, opened(path)[1]) == ([], [])


def test_older_registry_is_read_without_a_change(tmp_path: Path):
    path = tmp_path / REGISTRY_FILE
    old_registry(path)
    data = path.read_bytes()
    with Registry(path, readonly=True) as registry:
        assert registry.run("last").id == "r-1"
        assert registry.rounds.records("r-1") == []
        with pytest.raises(StateError, match="readonly"):
            registry.reopen("r-1")
    assert path.read_bytes() == data


@pytest.mark.parametrize("readonly", [False, True])
def test_registry_of_a_later_version_with_one_more_table_is_refused_and_left_alone(tmp_path: Path, readonly: bool):
    path = tmp_path / REGISTRY_FILE
    with Registry(path) as registry:
        new_run(registry)
    later = SCHEMA_VERSION + 1
    change(path, "CREATE TABLE notes (run TEXT PRIMARY KEY REFERENCES runs (id))", f"PRAGMA user_version = {later}")
    before = path.read_bytes()
    with pytest.raises(StateError, match=rf"newer fedpatch \(version {later} of the registry\)"):
        Registry(path, readonly=readonly)
    assert path.read_bytes() == before


def test_failed_migration_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / REGISTRY_FILE
    known = old_registry(path)
    monkeypatch.setattr(migrations, "script", lambda before: f"{script(before, 4)} INSERT INTO absent VALUES (1);")
    with pytest.raises(StateError, match="absent"):
        open_database(path, readonly=False)
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA user_version").fetchone()[0] == 1
        assert content_of(db) == known


@pytest.fixture
def version_4(tmp_path: Path) -> Path:
    """A registry as written by the last version with checksums of rows: one finished run, and one with an open round."""
    path = tmp_path / REGISTRY_FILE
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.executescript(VERSION_4.read_text())
        db.execute("PRAGMA journal_mode = WAL")
    for run in (FINISHED, OPEN):
        (tmp_path / "runs" / run).mkdir(parents=True)
    return path


def test_registry_of_version_4_opens_and_has_journals_from_then_on(version_4: Path):
    """This also holds after a change of a row by a plain SQLite client."""
    with closing(sqlite3.connect(version_4, isolation_level=None)) as db:
        db.execute("UPDATE devices SET last_seen = 1.0")
        known = content_of(db)
    known["runs"] = [(*row, 0) for row in known["runs"]]  # 0 is the number of the run's last change
    known["devices"] = [(*row, 0) for row in known["devices"]]  # 0: no relay
    known["masking"], known["carried_work"], known["leaders"] = [], [], []
    with Registry(version_4, readonly=True) as reader:
        assert reader.run(FINISHED).status == "finished"
    with LogLines() as lines, Registry(version_4) as registry:
        content = content_of(driver_of(registry))
        [before], [after] = known.pop("open_rounds"), content.pop("open_rounds")
        assert (after[: len(before)], after[len(before) :]) == (before, ("[]", "{}", "{}"))
        assert (content, lines) == (known, [])
        tables = {name for (name,) in driver_of(registry).execute("SELECT name FROM sqlite_schema")}
        assert "sums" not in tables
        runs = [(run, registry.rounds.records(run.id)) for run in registry.runs()]
        journal = registry.rounds.unfinished(OPEN, BootTime.now())
        assert journal is not None and (journal.round, journal.accepted) == (2, frozenset({"pi-1"}))
        assert (journal.absent, journal.offenders, journal.departed) == (frozenset(), {}, {})
        assert registry.holds.held("lab") == {"pi-2": "quarantined"}
    for one in (version_4, copy_of(version_4)):
        one.unlink(missing_ok=True)
    rebuild_registry(version_4)
    with Registry(version_4) as registry:
        assert [(run, registry.rounds.records(run.id)) for run in registry.runs()] == runs


def test_damaged_registry_of_version_4_is_replaced_by_its_copy_of_version_4(version_4: Path):
    copy_of(version_4).write_bytes(version_4.read_bytes())
    version_4.write_bytes(b"no database")
    with LogLines() as lines, Registry(version_4) as registry:
        assert registry.run(FINISHED).user_accuracy == 0.7
    assert "its copy registry.sqlite3.before is in its place" in lines[0]


def test_registry_killed_while_it_was_made_is_made(tmp_path: Path):
    path = tmp_path / REGISTRY_FILE
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode = WAL")
    db.close()
    with Registry(path) as registry:
        assert registry.runs() == []
