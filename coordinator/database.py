"""The registry's SQLite file: how it is opened, checked and mended, and its errors in words.

Beside `registry.sqlite3` (and its -wal and -shm while it is open) lie

    registry.sqlite3.before     its copy, made whenever a round is over
    registry.sqlite3.damaged    what had to make way for the copy, with its -wal and -shm
    registry.sqlite3.lock       shared by those that write; whoever checks has it alone

A bit that turned over in the file is found; so is one in the log, unless it is that the log's end is missing. Then the
last transactions are, which the checkpoint of the model makes up for: it holds the last record too.
"""

from __future__ import annotations

import logging
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from coordinator import row_sums
from coordinator.registry_copy import copy_of, damaged_of, make_copy, put_copy_in_place
from coordinator.registry_tables import SCHEMA_VERSION, migrate, script
from coordinator.wal import unread_writes
from shared.errors import StateError, UsageError
from shared.files import make_directory, mend_at, mend_of, remove_unfinished
from shared.locks import SharedLock

_BUSY_S = 10.0
_MEND = "move it away, or use another --state-dir"
_MAGIC = b"SQLite format 3\0"
_VERSION_BYTES = slice(18, 20)  # of the header: how the file is written and read, 1 or 2
# What SQLite says of a file whose bytes are not those that were written. "No such table" may be a name that has changed.
_UNREADABLE = {sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_IOERR_SHORT_READ}
_NO_ROOM = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_FULL}
_SUSPICIOUS = {*_UNREADABLE, sqlite3.SQLITE_ERROR, None}

_log = logging.getLogger("fedpatch.registry")


class _Database(sqlite3.Connection):
    """Has the lock of those that write until it is closed."""

    lock: SharedLock | None = None

    def close(self) -> None:
        super().close()
        if self.lock is not None:
            self.lock.release()


def open_database(path: Path, readonly: bool) -> sqlite3.Connection:
    """The database at `path`, made where absent unless `readonly`; raises UsageError if it then is absent.

    It is brought to the present version; with `readonly`, in memory. Whoever opens it to write while nobody else has it
    checks it first, and puts its copy in the place of a damaged one, which the log tells. Raises StateError for a file
    that is damaged and has no whole copy, that is foreign or of a newer version, and where the disk refuses. A commit is
    on the disk when it returns (WAL with synchronous=FULL); one thread at a time may use the connection.
    """
    with told(path):
        return _open_to_read(path) if readonly else _open_to_write(path)


def exists(path: Path) -> bool:
    """Whether there is a database at `path`, or a copy to take its place."""
    return path.is_file() or copy_of(path).is_file()


def must_exist(path: Path) -> None:
    """Raises UsageError where there is neither."""
    if not exists(path):
        raise UsageError(f"no runs in {path.parent} ({path.name} is not there); say where they are with --state-dir")


def keep_copy(db: sqlite3.Connection, path: Path) -> None:
    """Makes the registry as it is now its own copy. Where the disk refuses, the log tells it and the copy before stays."""
    try:
        make_copy(db, path)
    except (OSError, sqlite3.Error) as error:
        _log.warning("%s: no new copy could be made: %s; the one before stays", copy_of(path), error)


@contextmanager
def told(path: Path) -> Iterator[None]:
    """Turns errors of SQLite and of the disk into StateError, with the file and the mend."""
    try:
        yield
    except sqlite3.IntegrityError as error:
        raise StateError(f"{path}: refused ({error}); what it belongs to is not in this registry") from error
    except sqlite3.DatabaseError as error:
        if not isinstance(error, sqlite3.OperationalError) or _code(error) in _UNREADABLE:
            raise damaged(path, error) from error
        mend = mend_at(
            path.parent, "make sure that there is space and that it may be written, or use another --state-dir"
        )
        raise StateError(f"{path}: cannot be used: {error}; {mend}") from error
    except UnicodeError as error:
        raise damaged(path, error) from error
    except OSError as error:
        mend = mend_of(error, "use another --state-dir")
        raise StateError(f"{error.filename or path}: {error.strerror}; {mend}") from error


def damaged(path: Path, why: object) -> StateError:
    """Error for a file that cannot be read back."""
    copy = copy_of(path)
    mend = f"`fedpatch run` or `fedpatch resume` puts its copy {copy.name} in its place" if copy.is_file() else _MEND
    return StateError(f"{path}: is damaged ({why}); {mend}")


def _open_to_read(path: Path) -> sqlite3.Connection:
    must_exist(path)
    missing = _missing(path)
    if missing:
        raise damaged(path, missing)
    db = _connect(path, "mode=ro")
    try:
        try:
            version = _version(db, path)
        except sqlite3.OperationalError as error:
            if (_code(error) or 0) & 0xFF not in _NO_ROOM:
                raise
            db = _read_elsewhere(db, path)
            version = _version(db, path)
        if version < SCHEMA_VERSION:
            db = _in_memory(db)
            migrate(db, version)
            db.execute("PRAGMA query_only = ON")
    except BaseException:
        db.close()
        raise
    return db


def _read_elsewhere(db: sqlite3.Connection, path: Path) -> _Database:
    """What is at `path`, where the disk has no room for SQLite's own files beside it, or is read-only."""
    db.close()
    with tempfile.TemporaryDirectory(prefix="fedpatch-registry-") as folder:
        for part in ("", "-wal"):
            if (found := path.with_name(path.name + part)).is_file():
                shutil.copyfile(found, Path(folder) / found.name)
        memory = _in_memory(_connect(Path(folder) / path.name, "mode=rw"))
    memory.execute("PRAGMA query_only = ON")
    return memory


def _open_to_write(path: Path) -> sqlite3.Connection:
    make_directory(path.parent)
    with ExitStack() as stack:
        lock = SharedLock(path.with_name(f"{path.name}.lock"))
        stack.callback(lock.release)
        if lock.take():
            remove_unfinished(path.parent)  # nobody else is at work here, so nobody is writing them
            _mend(path)
        db = stack.enter_context(closing(_connect(path, "mode=rwc")))
        version = _version(db, path, may_be_empty=True)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA foreign_keys = ON")
        if version < SCHEMA_VERSION:
            if version > 0:
                make_copy(db, path)
            migrate(db, version)
        row_sums.keep(db)
        lock.share()
        db.lock = lock
        stack.pop_all()
    return db


def _connect(path: Path, how: str) -> _Database:
    uri = f"{path.absolute().as_uri()}?{how}"
    return sqlite3.connect(
        uri, uri=True, timeout=_BUSY_S, isolation_level=None, check_same_thread=False, factory=_Database
    )


def _in_memory(db: sqlite3.Connection | None = None) -> _Database:
    memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False, factory=_Database)
    if db is not None:
        with closing(db):
            db.backup(memory)
    return memory


def _version(db: sqlite3.Connection, path: Path, *, may_be_empty: bool = False) -> int:
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    tables = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    if version > SCHEMA_VERSION:
        mend = "use that one, or another --state-dir"
        raise StateError(f"{path}: was written by a newer fedpatch (version {version} of the registry); {mend}")
    if version <= 0 and (tables or not may_be_empty):
        raise StateError(f"{path}: is not a registry of fedpatch; {_MEND}")
    return version


def _mend(path: Path) -> None:
    """Puts the copy in the place of a registry that is damaged or gone; for whoever has it alone."""
    copy, log = copy_of(path), path.with_name(f"{path.name}-wal")
    cut = unread_writes(log)
    problem = _problem(path)
    if problem is None and cut:
        if not copy.is_file() or _problem(copy) or _changes(copy) <= _changes(path):
            _log.warning("%s: is damaged; what was written last before the coordinator ended may be missing", log)
            return
        problem = f"{log.name} is"
    if problem is None:
        return
    if not copy.is_file():
        raise StateError(f"{path}: is damaged ({problem}); {_MEND}")
    unusable = _problem(copy)
    if unusable is not None:
        raise StateError(f"{path}: is damaged ({problem}), and so is its copy {copy} ({unusable}); move both away")
    put_copy_in_place(path)
    _log.warning(
        "%s: is damaged (%s); it is now %s, and its copy %s is in its place: what came after the last round is missing",
        *(path, problem, damaged_of(path).name, copy.name),
    )


def _problem(path: Path) -> str | None:
    """What is wrong with a registry, or None; one that is not there, and has no copy, may be made."""
    missing = _missing(path)
    if missing or not path.is_file() or not path.stat().st_size:
        return missing
    with path.open("rb") as file:
        header = file.read(100)
    if header[:16] != _MAGIC or not set(header[_VERSION_BYTES]) <= {1, 2}:
        return "file is not a database"
    try:
        with closing(_connect(path, "mode=ro")) as db:
            return _check(db, path)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError) and _code(error) not in _SUSPICIOUS:
            raise
        return str(error)
    except (UnicodeError, MemoryError) as error:  # a name, or the length of something, is not what it was
        return type(error).__name__


def _missing(path: Path) -> str | None:
    if not copy_of(path).is_file() or (path.is_file() and path.stat().st_size):
        return None
    return "it is empty" if path.is_file() else "it is not there"


def _check(db: sqlite3.Connection, path: Path) -> str | None:
    found = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        return str(found).splitlines()[-1]
    tables = _schema(db)
    if not tables and copy_of(path).is_file():
        return "it holds nothing"
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if not tables and version == 0:
        return None  # whoever made it was killed before there was anything in it
    if version != SCHEMA_VERSION and tables == _expected(SCHEMA_VERSION):
        return f"it says that it is of version {version}, and its tables are of {SCHEMA_VERSION}"
    if tables != _expected(_version(db, path)):
        return "its tables are not those that were made"
    table = row_sums.wrong(db) if version > 1 else None
    return f"the rows of {table} are not those that were written" if table else None


def _changes(path: Path) -> int:
    with closing(_connect(path, "mode=ro")) as db:
        return row_sums.changes(db) if _version(db, path) > 1 else 0


def _expected(version: int) -> set[tuple[str, ...]]:
    with closing(_in_memory()) as like:
        like.executescript(script(0, version))
        return _schema(like)


def _schema(db: sqlite3.Connection) -> set[tuple[str, ...]]:
    rows = db.execute("SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_schema").fetchall()
    return {tuple(" ".join(str(word).split()) for word in row) for row in rows}


def _code(error: sqlite3.Error) -> int | None:
    return getattr(error, "sqlite_errorcode", None)
