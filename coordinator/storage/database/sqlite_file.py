"""The registry in a SQLite file: opening it to read or to write, and its errors in words.

A damaged registry (coordinator.storage.database.registry_damage) is replaced by its copy
(coordinator.storage.database.registry_copy) when it is opened to write.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from sqlalchemy import StaticPool, create_engine
from sqlalchemy.exc import DBAPIError

from fedpatch.coordinator.storage.database.migrations import SCHEMA_VERSION, migrate
from fedpatch.coordinator.storage.database.registry_copy import keep_copy, make_copy
from fedpatch.coordinator.storage.database.registry_damage import (
    UNREADABLE,
    absence,
    damaged,
    header_problem,
    rebuild_hint,
    registry_problem,
    tables_problem,
    unusable,
    version_of,
)
from fedpatch.coordinator.storage.database.registry_restore import restore_copy
from fedpatch.coordinator.storage.database.sqlite_connection import (
    SqliteConnection,
    connect,
    error_code,
    in_memory,
    without_new_connections,
)
from fedpatch.coordinator.storage.database.transactions import Database
from fedpatch.shared.app.files import (
    check_state_directory,
    make_directory,
    remedy_at,
    remedy_of,
    remove_unfinished,
)
from fedpatch.shared.app.locks import SharedLock, require_record_locks
from fedpatch.shared.errors import StateError, UsageError

_NO_ROOM = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_FULL}


class SqliteDatabase(Database):
    """The registry in a SQLite file.

    It is checked and migrated to the present version; with `readonly`, in memory. A damaged file that no other process has open
    is replaced by its copy when it is opened to write, which is logged. A commit is on disk when it returns (WAL with
    synchronous=FULL).

    Args:
        path: Path of the file. It is created where it is missing, unless `readonly`.
        readonly: Change nothing on disk.

    Attributes:
        driver: The connection of the driver.

    Raises:
        UsageError: The file is missing, with `readonly`.
        StateError: The file is damaged without an undamaged copy, foreign or of an unusable version, or the disk refused.
    """

    failures = (sqlite3.Error, DBAPIError, UnicodeError, OSError)
    _begin = "BEGIN IMMEDIATE"

    def __init__(self, path: Path, *, readonly: bool = False) -> None:
        with sqlite_errors(path):
            self.driver = driver = _open_to_read(path) if readonly else _open_to_write(path)
        engine = create_engine("sqlite://", creator=lambda: driver, poolclass=StaticPool, isolation_level="AUTOCOMMIT")
        super().__init__(path, engine.connect())
        self.is_copy = driver.is_copy
        self.is_snapshot = driver.in_memory

    def error_of(self, raised: Exception) -> StateError:
        """Return the error with the file and the remedy."""
        return _error_of(self.path, raised)

    def damaged(self, why: object) -> StateError:
        """Return the error for damaged content."""
        return damaged(self.path, why)

    def keep(self) -> None:
        """Update the copy; after an error of the disk, which is logged, the old copy stays."""
        self.before_write()
        keep_copy(self.driver, self.path)

    def version(self) -> int:
        """Return SQLite's data_version, which changes when another process has changed the file; not for a snapshot."""
        with self.errors():
            return int(self.driver.execute("PRAGMA data_version").fetchone()[0])

    def lead(self, fleet: str, epoch: int | None = None) -> int:
        """Do nothing: the state directory has a lock file for each fleet."""
        return 0

    def is_led(self, fleet: str) -> bool:
        """Return False: the lock is a file in the state directory (coordinator.storage.state_dirs)."""
        return False

    def close(self) -> None:
        """Release the file."""
        self._connection.close()
        self.driver.close()

    def _roll_back(self) -> None:
        if self.driver.in_transaction:
            self.driver.execute("ROLLBACK")


def make_empty(path: Path) -> None:
    """Create an empty registry at `path`, where no file exists."""
    with sqlite_errors(path):
        path.touch(0o600)
        with closing(connect(path, "mode=rwc")) as db:
            migrate(db, 0)


@contextmanager
def alone_with(path: Path) -> Iterator[None]:
    """Keep other processes from opening the registry at `path` to write; raise UsageError if one has it open."""
    make_directory(path.parent)
    lock = SharedLock(path.with_name(f"{path.name}.lock"))
    try:
        if not lock.take():
            raise UsageError(f"{path}: another fedpatch is working with it; wait for it, or end it first")
        yield
    finally:
        lock.release()


@contextmanager
def sqlite_errors(path: Path) -> Iterator[None]:
    """Raise StateError for errors of SQLite and of the disk, with the file and the remedy."""
    try:
        yield
    except SqliteDatabase.failures as error:
        raise _error_of(path, error) from error


def _error_of(path: Path, raised: Exception) -> StateError:
    if isinstance(raised, OSError):
        remedy = remedy_of(raised, Path(raised.filename or path), "use another --state-dir")
        return StateError(f"{raised.filename or path}: {raised.strerror}; {remedy}")
    error = raised.orig if isinstance(raised, DBAPIError) else raised
    if isinstance(error, sqlite3.IntegrityError):
        why = f"refused ({error}), since what it belongs to is not in this registry"
        return StateError(f"{path}: {why}; {rebuild_hint(path)}")
    if not isinstance(error, sqlite3.OperationalError) or error_code(error) in UNREADABLE:
        return damaged(path, error)
    try:
        require_record_locks(path.parent)  # SQLite calls a file that cannot be locked a locked one
    except StateError as no_locks:
        return no_locks
    if (error_code(error) or 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StateError(
            f"{path}: cannot be used: {error}; end the program that holds it, such as a backup or sqlite3"
        )
    remedy = remedy_at(
        path.parent, "make sure that there is space and that it may be written, or use another --state-dir"
    )
    return StateError(f"{path}: cannot be used: {error}; {remedy}")


def problem_of(path: Path) -> str | None:
    """Return the problem of a registry or of a copy; None for none. Raises StateError as `SqliteDatabase` does."""
    with sqlite_errors(path):
        return registry_problem(path)


def _open_to_read(path: Path) -> SqliteConnection:
    if problem := absence(path) or header_problem(path):
        raise unusable(path, problem)
    db = connect(path, "mode=ro")
    try:
        try:
            version = version_of(db, path)
        except sqlite3.OperationalError as error:
            if (error_code(error) or 0) & 0xFF not in _NO_ROOM:
                raise
            db = _read_elsewhere(db, path, error)
            version = version_of(db, path)
        if why := tables_problem(db, path):
            raise damaged(path, why)
        if version < SCHEMA_VERSION:
            db = in_memory(db)
            migrate(db, version)
            db.execute("PRAGMA query_only = ON")
    except BaseException:
        db.close()
        raise
    return db


def _read_elsewhere(db: sqlite3.Connection, path: Path, refusal: sqlite3.OperationalError) -> SqliteConnection:
    """Open a registry whose disk is read-only or has no room for SQLite's own files beside it.

    Raises `refusal` if this process has the file open otherwise: a copy would drop that connection's locks.
    """
    db.close()
    with tempfile.TemporaryDirectory(prefix="fedpatch-registry-") as folder:
        with without_new_connections(path) as is_open:
            if is_open:
                raise refusal
            for part in ("", "-wal"):
                if (found := path.with_name(path.name + part)).is_file():
                    shutil.copyfile(found, Path(folder) / found.name)
        memory = in_memory(connect(Path(folder) / path.name, "mode=rw"))
    memory.execute("PRAGMA query_only = ON")
    return memory


def _open_to_write(path: Path) -> SqliteConnection:
    make_directory(path.parent)
    check_state_directory(path.parent)
    _make_private(path)
    with ExitStack() as stack:
        lock = SharedLock(path.with_name(f"{path.name}.lock"))
        stack.callback(lock.release)
        is_copy = False
        if lock.take():
            remove_unfinished(path.parent)  # no other process writes here, so these files are leftovers
            is_copy = restore_copy(path)
        elif problem := registry_problem(path):
            raise unusable(path, problem)
        if not path.exists():
            path.touch(0o600)
        db = stack.enter_context(closing(connect(path, "mode=rwc")))
        db.is_copy = is_copy
        version = version_of(db, path, may_be_empty=True)
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        db.execute("PRAGMA foreign_keys = ON")
        if version < SCHEMA_VERSION:
            if version > 0:
                make_copy(db, path)
            migrate(db, version)
        lock.share()
        db.lock = lock
        stack.pop_all()
    return db


def _make_private(path: Path) -> None:
    """Let only the owner read the registry, which names the devices of a fleet. SQLite gives its log the same mode."""
    if path.exists():
        # By path: opening and closing the file would drop the locks that this process has on it through SQLite.
        path.chmod(0o600)
