"""Rebuilds a registry from the journals of its runs, if the registry and its copy are damaged or missing.

Runs and rounds come from the journals. Other rows are stored in the registry only: devices with their counters, quarantine and
maintenance, the journal of an open round. They are copied from the damaged registry, or else from its copy, as far as they can
be read and are valid.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from fedpatch.coordinator.storage.database.opening import exists, url_of
from fedpatch.coordinator.storage.database.registry_files import copy_of, damaged_of
from fedpatch.coordinator.storage.database.registry_restore import set_aside
from fedpatch.coordinator.storage.database.sqlite_file import SqliteDatabase, alone_with, make_empty, problem_of
from fedpatch.coordinator.storage.database.value_checks import row_problem
from fedpatch.coordinator.storage.run_journal import RUNS
from fedpatch.coordinator.storage.run_registry import Registry
from fedpatch.shared.app.files import refusals_of, sync_directory
from fedpatch.shared.errors import StateError, UsageError

# Rows come after the rows that they refer to. A run without a directory is left out: it cannot be resumed.
_TABLES = (
    *("runs", "rounds", "devices", "holds", "offences"),
    *("open_rounds", "acceptances", "updates", "masking", "carried_work"),
)


@dataclass(frozen=True)
class Rebuilt:
    """The result of a rebuild.

    Attributes:
        runs: Ids of the runs.
        without_journal: Directories of runs whose journal does not describe the run.
        set_aside: Files that were moved aside.
        source: The file whose rows were copied: the registry or its copy; None if neither could be read.
        devices: Number of devices that were copied.
        holds: Number of holds that were copied.
    """

    runs: tuple[str, ...]
    without_journal: tuple[Path, ...]
    set_aside: tuple[Path, ...]
    source: Path | None
    devices: int
    holds: int


def rebuild_registry(path: Path) -> Rebuilt:
    """Rebuild the registry at `path`; the old file is kept as `.damaged`. If it fails, nothing changes.

    Raises:
        UsageError: There is nothing to rebuild from, or another command has the registry open.
        StateError: The disk refused.
    """
    state_dir = path.parent
    if not exists(path):
        raise UsageError(f"no runs in {state_dir} to rebuild {path.name} from; say where they are with --state-dir")
    if url_of(path) is not None:
        return _restored(path)
    with refusals_of(state_dir), alone_with(path):
        unfinished = path.with_name(f"{path.name}.rebuilt")
        _remove(unfinished)
        try:
            make_empty(unfinished)
            with Registry(unfinished) as made:
                source = _take_over(_driver(made), path)
                made.restore()
                runs = tuple(run.id for run in made.runs())
                if not runs:
                    stays = f"{path.name} stays as it is"
                    raise StateError(f"{state_dir}: no run can be rebuilt, so {stays}; restore runs/ from a backup")
                count = (
                    _driver(made)
                    .execute("SELECT (SELECT count(*) FROM devices), (SELECT count(*) FROM holds)")
                    .fetchone()
                )
            aside = tuple(_make_way(path))
            # A power cut could keep the second rename and lose the first one: then the damaged file would be gone.
            sync_directory(state_dir)
            unfinished.rename(path)
            sync_directory(state_dir)
        finally:
            _remove(unfinished)
    with Registry(path) as registry:
        registry.holds.keep()
    return Rebuilt(runs, _strays(state_dir, runs), aside, source, *count)


def _restored(path: Path) -> Rebuilt:
    """Add the rows that a database lacks from the journals; its other rows stay."""
    with Registry(path) as registry:
        registry.restore()
        runs = tuple(run.id for run in registry.runs())
        count = len(registry.devices()), sum(map(len, registry.holds.all().values()))
    return Rebuilt(runs, _strays(path.parent, runs), (), None, *count)


def _strays(state_dir: Path, runs: Collection[str]) -> tuple[Path, ...]:
    found = sorted((state_dir / RUNS).glob("*"))
    return tuple(one for one in found if one.is_dir() and one.name not in runs)


def _driver(registry: Registry) -> sqlite3.Connection:
    assert isinstance(registry._db, SqliteDatabase)
    return registry._db.driver


def _take_over(made: sqlite3.Connection, path: Path) -> Path | None:
    """Copy rows of the registry or, if it is damaged, of its copy; return the file that they came from."""
    sources = [one for one in (path, copy_of(path)) if one.is_file() and one.stat().st_size]
    whole = [one for one in sources if _is_whole(one)]
    for source in whole[:1] or sources:
        if _copy_rows(made, source, path.parent / RUNS):
            return source
    return None


def _is_whole(source: Path) -> bool:
    try:
        return problem_of(source) is None
    except StateError:
        return False


def _copy_rows(made: sqlite3.Connection, source: Path, runs: Path) -> int:
    """Copy rows and return their number."""
    taken = 0
    with closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as db:
        for table in _TABLES:
            known = [row[1] for row in made.execute(f"PRAGMA main.table_info({table})")]
            for row in _rows(db, table):
                values = {name: row[name] for name in known if name in row}
                if (table == "runs" and not (runs / str(row.get("id"))).is_dir()) or row_problem(table, values):
                    continue
                placeholders = ", ".join("?" * len(values))
                sql = f"INSERT OR IGNORE INTO {table} ({', '.join(values)}) VALUES ({placeholders})"  # nosec B608
                try:
                    taken += made.execute(sql, list(values.values())).rowcount
                except sqlite3.Error:
                    continue  # the row belongs to a run that cannot be copied
    return taken


def _rows(db: sqlite3.Connection, table: str) -> Iterator[dict[str, object]]:
    """Yield the rows that can be read."""
    try:
        cursor = db.execute(f"SELECT * FROM {table}")  # our tables  # nosec B608
        names = [column[0] for column in cursor.description]
        while (row := cursor.fetchone()) is not None:
            yield dict(zip(names, row, strict=True))
    except (sqlite3.Error, UnicodeError, MemoryError, OverflowError):
        return


def _make_way(path: Path) -> Iterator[Path]:
    """Move registry and copy aside, also a log without its file: SQLite would replay it into the new registry."""
    for one in (path, copy_of(path)):
        there = one.exists()
        set_aside(one)
        if there:
            yield damaged_of(one)


def _remove(unfinished: Path) -> None:
    for part in ("", "-wal", "-shm", ".before", ".lock"):
        unfinished.with_name(unfinished.name + part).unlink(missing_ok=True)
