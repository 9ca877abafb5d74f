"""The copy of a registry: made and checked at the end of rounds and runs, it takes the place of a damaged registry.

The damaged one is kept as `.damaged`. The journals (coordinator.storage.run_journal) restore changes that the copy lacks, and
the last transactions after damage to SQLite's log.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import tempfile
from contextlib import closing, suppress
from pathlib import Path

from fedpatch.coordinator.storage.database.registry_damage import content_problem, rebuild_hint, registry_problem
from fedpatch.coordinator.storage.database.registry_files import PARTS, copy_of, damaged_of
from fedpatch.coordinator.storage.run_journal import journals
from fedpatch.shared.app.files import UNFINISHED, sync_directory, write_atomic
from fedpatch.shared.errors import StateError

_log = logging.getLogger("fedpatch.registry")


def make_copy(db: sqlite3.Connection, path: Path) -> None:
    """Replace the copy of a registry by its present content, durably.

    The new copy is checked before it replaces the old one: a damaged registry never replaces an undamaged copy. SQLite's log is
    first written into the file, so that a later loss of the log loses less.

    Raises:
        sqlite3.DatabaseError: The registry is damaged; the old copy is unchanged.
        OSError, sqlite3.Error: The disk refused the write; the old copy is unchanged.
    """
    db.execute("PRAGMA wal_checkpoint(PASSIVE)")
    copy = copy_of(path)
    fd, unfinished = tempfile.mkstemp(prefix=f".{copy.name}.", suffix=UNFINISHED, dir=path.parent)
    try:
        with closing(sqlite3.connect(unfinished)) as target:
            target.execute("PRAGMA journal_mode = MEMORY")  # an unfinished copy is deleted
            target.execute("PRAGMA synchronous = OFF")  # one fsync, at the end, is enough
            db.backup(target)
            target.execute("PRAGMA journal_mode = DELETE")
        os.fsync(fd)
        _verify(Path(unfinished))
        os.replace(unfinished, copy)
    except BaseException:
        with suppress(OSError):
            os.unlink(unfinished)
        raise
    finally:
        os.close(fd)
    sync_directory(path.parent)


def _verify(copy: Path) -> None:
    """Raise sqlite3.DatabaseError for a copy that cannot replace the registry."""
    with closing(sqlite3.connect(f"{copy.absolute().as_uri()}?mode=ro", uri=True)) as db:
        problem = content_problem(db)
    if problem is not None:
        raise sqlite3.DatabaseError(f"the registry itself is damaged ({problem})")


def _put_copy_in_place(path: Path) -> None:
    """Move the file at `path` aside and put the copy there. The copy stays; an interrupted call can be repeated."""
    set_aside(path)
    write_atomic(path, copy_of(path).read_bytes())


def set_aside(path: Path) -> None:
    """Rename a registry, with its log, to `damaged_of(path)`, if it exists."""
    aside = damaged_of(path)
    # The log is moved last: a registry whose damage is in its log would look whole without the log.
    for part in PARTS:
        found = path.with_name(path.name + part)
        if found.exists():
            os.replace(found, aside.with_name(aside.name + part))


def keep_copy(db: sqlite3.Connection, path: Path) -> None:
    """Make the copy of the registry; after an error of the disk, which is logged, the old copy stays."""
    try:
        make_copy(db, path)
    except (OSError, sqlite3.Error) as error:
        _log.warning("%s: no new copy could be made: %s; the one before stays", copy_of(path), error)


def restore_copy(path: Path) -> bool:
    """Replace a damaged or missing registry by its copy; return whether that was done. The caller has the exclusive lock."""
    copy = copy_of(path)
    problem = registry_problem(path)
    if problem is None:
        return False
    if not copy.is_file():
        raise StateError(f"{path}: {problem}; {rebuild_hint(path)}")
    of_copy = registry_problem(copy)
    if of_copy is not None:
        hint = rebuild_hint(path) if journals(path.parent) else "move both away"
        raise StateError(f"{path}: {problem}, and its copy {copy} {of_copy}; {hint}")
    kept = f"it is now {damaged_of(path).name}, and " if path.is_file() else ""
    _put_copy_in_place(path)
    _log.warning("%s: %s; %sits copy %s is in its place", path, problem, kept, copy.name)
    return True
