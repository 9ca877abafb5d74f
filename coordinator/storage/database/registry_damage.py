"""When a registry is damaged: missing, empty, unreadable, or with tables or rows that the coordinator cannot have written.

At each opening SQLite checks pages and constraints (`quick_check`) and foreign keys, and the values of the rows are checked
(coordinator.storage.database.value_checks). Any program may change rows: a change that leaves a registry valid is accepted.
"""

from __future__ import annotations

import re
import shlex
import sqlite3
from contextlib import closing
from pathlib import Path

from fedpatch.coordinator.storage.database.migrations import OLDEST_VERSION, SCHEMA_VERSION, script, version_problem
from fedpatch.coordinator.storage.database.registry_files import copy_of
from fedpatch.coordinator.storage.database.sqlite_connection import (
    connect,
    error_code,
    in_memory,
    without_new_connections,
)
from fedpatch.coordinator.storage.database.value_checks import first_problem
from fedpatch.coordinator.storage.run_journal import journals
from fedpatch.shared.errors import StateError

_REMEDY = "move it away, or use another --state-dir"
_MAGIC = b"SQLite format 3\0"
_VERSION_BYTES = slice(18, 20)  # of the header: how the file is written and read, 1 or 2
# SQLite's errors for a damaged file. The cause of "no such table" may be a damaged name.
# A file that is too short was read and is wrong; any other error of the disk says nothing about the content.
UNREADABLE = {sqlite3.SQLITE_IOERR_SHORT_READ}
_SUSPICIOUS = {*UNREADABLE, sqlite3.SQLITE_ERROR, None}


def damaged(path: Path, why: object) -> StateError:
    """Return the error for a damaged file."""
    return unusable(path, _damage(why))


def rebuild_hint(path: Path) -> str:
    """Return the remedy for a registry that is damaged or missing and has no copy."""
    if not journals(path.parent):
        return _REMEDY
    return f"`fedpatch runs --rebuild --state-dir {shlex.quote(str(path.parent))}` makes it again from its runs"


def version_of(db: sqlite3.Connection, path: Path, *, may_be_empty: bool = False) -> int:
    """Return the version of a registry's tables.

    Args:
        may_be_empty: Whether a file without tables is allowed.

    Raises:
        StateError: It is of a newer version or of one before OLDEST_VERSION, or no registry.
    """
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    tables = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    if problem := version_problem(version):
        remedy = "use that one, or another --state-dir" if version > SCHEMA_VERSION else rebuild_hint(path)
        raise StateError(f"{path}: {problem}; {remedy}")
    if version <= 0 and (tables or not may_be_empty):
        raise StateError(f"{path}: is not a registry of fedpatch; {_REMEDY}")
    return version


def unusable(path: Path, problem: str) -> StateError:
    """Return the error for a registry with a problem, whose remedy is its copy if that is undamaged."""
    copy = copy_of(path)
    remedy = f"`fedpatch run` or `fedpatch resume` puts its copy {copy.name} in its place"
    use_copy = copy.is_file() and registry_problem(copy) is None
    return StateError(f"{path}: {problem}; {remedy if use_copy else rebuild_hint(path)}")


def _damage(why: object) -> str:
    return f"is damaged ({why})"


def registry_problem(path: Path) -> str | None:
    """Return the problem of a registry that is missing, empty or damaged; None for none.

    A missing or empty registry without copy and journals is no problem, since it may be created.
    """
    missing = absence(path)
    if missing or not path.is_file() or not path.stat().st_size:
        return missing
    if problem := header_problem(path):
        return problem
    try:
        with closing(connect(path, "mode=ro")) as db:
            why = tables_problem(db, path)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError) and error_code(error) not in _SUSPICIOUS:
            raise
        why = str(error)
    except (UnicodeError, MemoryError) as error:  # a damaged name or length
        why = type(error).__name__
    return None if why is None else _damage(why)


def header_problem(path: Path) -> str | None:
    """Return the problem of a header whose version is not SQLite's; SQLite would open such a file as read-only.

    The header of a file that this process has open through SQLite was checked when it was opened.
    """
    with without_new_connections(path) as is_open:
        if is_open:
            return None
        with path.open("rb") as file:
            header = file.read(100)
    if not header or (header[:16] == _MAGIC and set(header[_VERSION_BYTES]) <= {1, 2}):
        return None
    return _damage("file is not a database")


def content_problem(db: sqlite3.Connection) -> str | None:
    """Return the problem of a registry's pages, constraints, references or values; None for none."""
    found = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        return str(found).splitlines()[-1]
    stray = db.execute("PRAGMA foreign_key_check").fetchone()
    if stray is not None:
        return f"a row of {stray[0]} belongs to one of {stray[2]} that is not there"
    return first_problem(db)


def absence(path: Path) -> str | None:
    """Return the problem of a registry that is missing or empty although its copy or journals exist; None for none."""
    known = copy_of(path).is_file() or journals(path.parent)
    if not known or (path.is_file() and path.stat().st_size):
        return None
    return "is empty" if path.is_file() else "is not there"


def tables_problem(db: sqlite3.Connection, path: Path) -> str | None:
    """Return the problem of a registry's tables or of their content; None for none. Raises StateError as `version_of`."""
    tables = _schema(db)
    if not tables and copy_of(path).is_file():
        return "it holds nothing"
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if not tables and version == 0:
        return None  # the process that made it was killed before it wrote anything
    present = tables >= _expected(SCHEMA_VERSION)
    known = OLDEST_VERSION <= version <= SCHEMA_VERSION
    if known and tables >= _expected(version) and (version == SCHEMA_VERSION or not present):
        return content_problem(db)  # other programs may have added an index or a view
    # A later version may have added a table only; damage to the number adds nothing.
    if present and not (version > SCHEMA_VERSION and _added(tables)):
        return f"it says that it is of version {version}, and its tables are of {SCHEMA_VERSION}"
    version_of(db, path)
    return "its tables are not those that were made"


def _expected(version: int) -> set[tuple[str, ...]]:
    with closing(in_memory()) as like:
        like.executescript(script(0, version))
        return _schema(like)


def _added(tables: set[tuple[str, ...]]) -> set[tuple[str, ...]]:
    """Return what a registry has beside the tables of the present version, without SQLite's own tables."""
    return {one for one in tables - _expected(SCHEMA_VERSION) if not one[1].startswith("sqlite_")}


def _schema(db: sqlite3.Connection) -> set[tuple[str, ...]]:
    rows = db.execute("SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_schema").fetchall()
    # ALTER TABLE puts its text behind the last column, where CREATE TABLE has a line break before the bracket.
    return {tuple(re.sub(r"\s*([(),])\s*", r"\1", " ".join(str(word).split())) for word in row) for row in rows}
