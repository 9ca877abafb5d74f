"""The registry's tables: an earlier version is migrated completely or stays unchanged, and the versions before are refused."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from fedpatch.coordinator.buffered.carried_work import CarriedWork
from fedpatch.coordinator.rounds.participant_transitions import State
from fedpatch.coordinator.storage.boot_clock import BootTime
from fedpatch.coordinator.storage.database import migrations
from fedpatch.coordinator.storage.database.migrations import OLDEST_VERSION, SCHEMA_VERSION, script
from fedpatch.coordinator.storage.database.opening import open_database
from fedpatch.coordinator.storage.database.registry_files import copy_of
from fedpatch.coordinator.storage.registry_rebuild import rebuild_registry
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.shared.errors import StateError
from tests.coordinator.registry_builders import change, driver_of, new_run
from tests.coordinator.storage.test_registry_damage import Content, LogLines, content_of, opened

VERSION_11 = Path(__file__).parent / "registry-version-11.sql"
"""The registry of commit 4bc2ab65: one finished run, and one with an open round."""
FINISHED, OPEN = "20231114-221320-c4242e", "20231114-221420-874914"


@pytest.fixture
def version_11(tmp_path: Path) -> Path:
    path = tmp_path / REGISTRY_FILE
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.executescript(VERSION_11.read_text())
        db.execute("PRAGMA journal_mode = WAL")
    for run in (FINISHED, OPEN):
        (tmp_path / "runs" / run).mkdir(parents=True)
    return path


def _content(path: Path) -> Content:
    with closing(sqlite3.connect(path)) as db:
        return content_of(db)


def _version(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        return int(db.execute("PRAGMA user_version").fetchone()[0])


def test_registry_of_version_11_is_migrated_with_all_its_rows_and_copied_before(version_11: Path):
    known = _content(version_11)
    with LogLines() as lines, Registry(version_11) as registry:
        migrated = content_of(driver_of(registry))
        journal = registry.rounds.unfinished(OPEN, BootTime.now())
    assert migrated == {**known, "devices": [(*row, 0) for row in known["devices"]]}  # 0: no relay
    assert journal is not None and (journal.round, journal.accepted) == (2, frozenset({"pi-1"}))
    assert (journal.absent, journal.offenders) == (frozenset({"pi-3"}), {"pi-2": "damaged"})
    assert journal.departed == {"pi-3": (State.LOST, "offline")}
    assert journal.carried == {"pi-4": CarriedWork(1, 1, 1, "ef" * 32, "delta-int8")}
    assert _version(version_11) == SCHEMA_VERSION
    assert (_version(copy_of(version_11)), _content(copy_of(version_11))) == (11, known)
    assert (lines, opened(version_11)[1]) == ([], [])


def test_registry_of_version_11_is_read_without_a_change(version_11: Path):
    data = version_11.read_bytes()
    with Registry(version_11, readonly=True) as registry:
        assert registry.run(FINISHED).status == "finished"
        assert len(registry.rounds.records(FINISHED)) == 2
        with pytest.raises(StateError, match="readonly"):
            registry.reopen(FINISHED)
    assert version_11.read_bytes() == data


def test_damaged_registry_of_version_11_is_replaced_by_its_copy_of_version_11(version_11: Path):
    shutil.copy(version_11, copy_of(version_11))
    version_11.write_bytes(b"no database")
    with LogLines() as lines, Registry(version_11) as registry:
        assert registry.run(FINISHED).user_accuracy == 0.7
    assert "its copy registry.sqlite3.before is in its place" in lines[0]


def test_migrated_registry_is_rebuilt_from_its_journals(version_11: Path):
    with Registry(version_11) as registry:
        runs = [(run, registry.rounds.records(run.id)) for run in registry.runs()]
    for one in (version_11, copy_of(version_11)):
        one.unlink()
    rebuild_registry(version_11)
    with Registry(version_11) as registry:
        assert [(run, registry.rounds.records(run.id)) for run in registry.runs()] == runs


def test_new_and_migrated_registry_have_the_same_tables():
    def schema(*scripts: str) -> dict[str, list[tuple[object, ...]]]:
        with closing(sqlite3.connect(":memory:")) as db:
            for one in scripts:
                db.executescript(one)
            names = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()]
            return {name: db.execute(f"PRAGMA table_info({name})").fetchall() for name in names}

    assert schema(VERSION_11.read_text(), script(11)) == schema(script(0))


@pytest.mark.parametrize("readonly", [False, True])
def test_registry_before_the_oldest_version_is_refused_and_left_alone(tmp_path: Path, readonly: bool):
    path = tmp_path / REGISTRY_FILE
    change(path, "CREATE TABLE runs (id TEXT)", f"PRAGMA user_version = {OLDEST_VERSION - 1}")
    before = path.read_bytes()
    problem = (
        rf"is of version {OLDEST_VERSION - 1} of the registry, and the oldest that can be opened is {OLDEST_VERSION}"
    )
    with pytest.raises(StateError, match=f"{path}: {problem}; move it away, or use another --state-dir"):
        Registry(path, readonly=readonly)
    assert path.read_bytes() == before


def test_registry_before_the_oldest_version_is_rebuilt_from_its_journals(tmp_path: Path):
    path = tmp_path / REGISTRY_FILE
    with Registry(path) as registry:
        run = new_run(registry)
    change(path, "ALTER TABLE open_rounds DROP COLUMN departed", f"PRAGMA user_version = {OLDEST_VERSION - 1}")
    copy_of(path).unlink(missing_ok=True)
    with pytest.raises(StateError, match=r"oldest that can be opened.*; .fedpatch runs --rebuild --state-dir"):
        Registry(path)
    rebuild_registry(path)
    with Registry(path) as registry:
        assert registry.runs() == [run]


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


def test_failed_migration_changes_nothing(version_11: Path, monkeypatch: pytest.MonkeyPatch):
    known = _content(version_11)
    monkeypatch.setattr(migrations, "script", lambda before: f"{script(before)} INSERT INTO absent VALUES (1);")
    with pytest.raises(StateError, match="absent"):
        open_database(version_11, readonly=False)
    assert (_version(version_11), _content(version_11)) == (11, known)


def test_registry_killed_while_it_was_made_is_made(tmp_path: Path):
    path = tmp_path / REGISTRY_FILE
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode = WAL")
    db.close()
    with Registry(path) as registry:
        assert registry.runs() == []
