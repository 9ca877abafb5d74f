"""The copy of a registry, `.before`: made and checked at the end of rounds and runs (registry_restore.py takes it back)."""

from __future__ import annotations

import logging
import os
import sqlite3
import tempfile
from contextlib import closing, suppress
from pathlib import Path

from fedpatch.coordinator.storage.database.registry_damage import content_problem
from fedpatch.coordinator.storage.database.registry_files import copy_of
from fedpatch.shared.app.files import UNFINISHED, sync_directory

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


def keep_copy(db: sqlite3.Connection, path: Path) -> None:
    """Make the copy of the registry; after an error of the disk, which is logged, the old copy stays."""
    try:
        make_copy(db, path)
    except (OSError, sqlite3.Error) as error:
        _log.warning("%s: no new copy could be made: %s; the one before stays", copy_of(path), error)
