"""A copy of the registry beside it, and how it takes the place of a registry that is damaged."""

from __future__ import annotations

import os
import sqlite3
import tempfile
from contextlib import closing, suppress
from pathlib import Path

from coordinator.registry_values import first_problem
from shared.files import UNFINISHED, sync_directory, write_atomic

_PARTS = ("", "-wal", "-shm")


def copy_of(path: Path) -> Path:
    """Where the copy of the registry at `path` is."""
    return path.with_name(f"{path.name}.before")


def damaged_of(path: Path) -> Path:
    """Where a registry is set aside to, with its log beside it; one that lay there before makes way."""
    return path.with_name(f"{path.name}.damaged")


def make_copy(db: sqlite3.Connection, path: Path) -> None:
    """Make the copy of the registry `db`, whose file is `path`, what the registry is now; durably, in place of the last.

    The copy is checked before it replaces the one before: a registry that is damaged by now does not cost a copy that is whole.
    Raises sqlite3.DatabaseError for such a registry, OSError or sqlite3.Error where the disk refuses; the copy before is then
    untouched. The log is emptied into the file on the way: the less it holds, the less its loss can cost.
    """
    db.execute("PRAGMA wal_checkpoint(PASSIVE)")
    copy = copy_of(path)
    fd, unfinished = tempfile.mkstemp(prefix=f".{copy.name}.", suffix=UNFINISHED, dir=path.parent)
    try:
        with closing(sqlite3.connect(unfinished)) as target:
            target.execute("PRAGMA journal_mode = MEMORY")  # a copy that is cut short is thrown away
            target.execute("PRAGMA synchronous = OFF")  # once, at the end, is enough
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
    """Raise sqlite3.DatabaseError for a copy that would not do in the registry's place."""
    with closing(sqlite3.connect(f"{copy.absolute().as_uri()}?mode=ro", uri=True)) as db:
        problem = content_problem(db)
    if problem is not None:
        raise sqlite3.DatabaseError(f"the registry itself is damaged ({problem})")


def content_problem(db: sqlite3.Connection) -> str | None:
    """What is wrong with the pages, the constraints, the references or the values of a registry, or None."""
    found = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        return str(found).splitlines()[-1]
    stray = db.execute("PRAGMA foreign_key_check").fetchone()
    if stray is not None:
        return f"a row of {stray[0]} belongs to one of {stray[2]} that is not there"
    return first_problem(db)


def put_copy_in_place(path: Path) -> None:
    """Sets what is at `path` aside and puts the copy there, which stays; may be cut short at any point and done again."""
    set_aside(path)
    write_atomic(path, copy_of(path).read_bytes())


def set_aside(path: Path) -> None:
    """Rename a registry, with its log, to `damaged_of(path)`; nothing happens where it is not there."""
    aside = damaged_of(path)
    # The log last: without it, a registry that was damaged in the log would look whole.
    for part in _PARTS:
        found = path.with_name(path.name + part)
        if found.exists():
            os.replace(found, aside.with_name(aside.name + part))
