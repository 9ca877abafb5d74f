"""The registry's SQLite file: opening, checking, restoring from a copy, and errors in words.

Beside `registry.sqlite3` (and its -wal and -shm while it is open) are

    registry.sqlite3.before     its copy, made and checked at the end of rounds and runs
    registry.sqlite3.damaged    a damaged registry that the copy has replaced, with its -wal and -shm
    registry.sqlite3.lock       locked shared by processes that write, exclusively while the copy replaces the registry

At each opening SQLite checks pages and constraints (`quick_check`) and foreign keys, and the values of the rows are checked
(coordinator.storage.database.value_checks). Any program may change rows: a change that leaves a registry valid is accepted. The
journals (coordinator.storage.run_journal) restore changes that the copy lacks, and the last transactions after damage to
SQLite's log.
"""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import sqlite3
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

from sqlalchemy import StaticPool, create_engine
from sqlalchemy.exc import DBAPIError

from fedpatch.coordinator.storage.database.migrations import SCHEMA_VERSION, migrate, script
from fedpatch.coordinator.storage.database.transactions import Database
from fedpatch.coordinator.storage.database.value_checks import first_problem
from fedpatch.coordinator.storage.run_journal import journals
from fedpatch.shared.app.files import (
    UNFINISHED,
    check_state_directory,
    make_directory,
    remedy_at,
    remedy_of,
    remove_unfinished,
    stamp_of,
    sync_directory,
    write_atomic,
)
from fedpatch.shared.app.locks import SharedLock, require_record_locks
from fedpatch.shared.errors import StateError, UsageError

_PARTS = ("", "-wal", "-shm")


def stamp_of_parts(path: Path) -> tuple[int, ...]:
    """Return a value that changes with the content of the registry at `path` or of its log."""
    log = path.with_name(f"{path.name}-wal")
    try:
        is_empty = not log.stat().st_size  # a connection that only reads makes an empty log anew
    except OSError:
        is_empty = True
    return stamp_of(path) if is_empty else (*stamp_of(path), *stamp_of(log))


def copy_of(path: Path) -> Path:
    """Return the path of the copy of the registry at `path`."""
    return path.with_name(f"{path.name}.before")


def damaged_of(path: Path) -> Path:
    """Return the path to which a damaged registry is moved with its log; an older one there is replaced."""
    return path.with_name(f"{path.name}.damaged")


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


def content_problem(db: sqlite3.Connection) -> str | None:
    """Return the problem of a registry's pages, constraints, references or values; None for none."""
    found = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    if found != "ok":
        return str(found).splitlines()[-1]
    stray = db.execute("PRAGMA foreign_key_check").fetchone()
    if stray is not None:
        return f"a row of {stray[0]} belongs to one of {stray[2]} that is not there"
    return first_problem(db)


def put_copy_in_place(path: Path) -> None:
    """Move the file at `path` aside and put the copy there. The copy stays; an interrupted call can be repeated."""
    set_aside(path)
    write_atomic(path, copy_of(path).read_bytes())


def set_aside(path: Path) -> None:
    """Rename a registry, with its log, to `damaged_of(path)`, if it exists."""
    aside = damaged_of(path)
    # The log is moved last: a registry whose damage is in its log would look whole without the log.
    for part in _PARTS:
        found = path.with_name(path.name + part)
        if found.exists():
            os.replace(found, aside.with_name(aside.name + part))


_BUSY_S = 10.0
_REMEDY = "move it away, or use another --state-dir"
_MAGIC = b"SQLite format 3\0"
_VERSION_BYTES = slice(18, 20)  # of the header: how the file is written and read, 1 or 2
# SQLite's errors for a damaged file. The cause of "no such table" may be a damaged name.
# A file that is too short was read and is wrong; any other error of the disk says nothing about the content.
_UNREADABLE = {sqlite3.SQLITE_IOERR_SHORT_READ}
_NO_ROOM = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_FULL}
_SUSPICIOUS = {*_UNREADABLE, sqlite3.SQLITE_ERROR, None}

_log = logging.getLogger("fedpatch.registry")

# SQLite's locks are those of POSIX: if a process closes any descriptor of a file, it loses all its locks on this file. So the
# file itself is read only while no connection of this process has it open.
_opening = threading.Lock()
_connections: Counter[tuple[int, int]] = Counter()
"""Open connections of this process to each file, by device and inode; `_opening` guards it."""


class SqliteConnection(sqlite3.Connection):
    """A connection that holds the writers' lock until it is closed.

    Attributes:
        is_copy: Whether the copy has just replaced a damaged registry.
        in_memory: Whether it is a copy in memory, which no other process changes.
        file: Device and inode of its file; None in memory, and once it is closed.
    """

    lock: SharedLock | None = None
    is_copy: bool = False
    in_memory: bool = False
    file: tuple[int, int] | None = None

    def close(self) -> None:
        """Release the file and the lock."""
        with _opening:
            super().close()
            if self.file is not None:
                _connections[self.file] -= 1
                self.file = None
        if self.lock is not None:
            self.lock.release()


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
        StateError: The file is damaged without an undamaged copy, foreign or of a newer version, or the disk refused.
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


def keep_copy(db: sqlite3.Connection, path: Path) -> None:
    """Make the copy of the registry; after an error of the disk, which is logged, the old copy stays."""
    try:
        make_copy(db, path)
    except (OSError, sqlite3.Error) as error:
        _log.warning("%s: no new copy could be made: %s; the one before stays", copy_of(path), error)


def make_empty(path: Path) -> None:
    """Create an empty registry at `path`, where no file exists."""
    with sqlite_errors(path):
        path.touch(0o600)
        with closing(_connect(path, "mode=rwc")) as db:
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
    if not isinstance(error, sqlite3.OperationalError) or _code(error) in _UNREADABLE:
        return damaged(path, error)
    try:
        require_record_locks(path.parent)  # SQLite calls a file that cannot be locked a locked one
    except StateError as no_locks:
        return no_locks
    if (_code(error) or 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StateError(
            f"{path}: cannot be used: {error}; end the program that holds it, such as a backup or sqlite3"
        )
    remedy = remedy_at(
        path.parent, "make sure that there is space and that it may be written, or use another --state-dir"
    )
    return StateError(f"{path}: cannot be used: {error}; {remedy}")


def damaged(path: Path, why: object) -> StateError:
    """Return the error for a damaged file."""
    return _unusable(path, _damage(why))


def rebuild_hint(path: Path) -> str:
    """Return the remedy for a registry that is damaged or missing and has no copy."""
    if not journals(path.parent):
        return _REMEDY
    return f"`fedpatch runs --rebuild --state-dir {shlex.quote(str(path.parent))}` makes it again from its runs"


def problem_of(path: Path) -> str | None:
    """Return the problem of a registry or of a copy; None for none. Raises StateError as `SqliteDatabase` does."""
    with sqlite_errors(path):
        return _problem(path)


def _open_to_read(path: Path) -> SqliteConnection:
    if problem := _absence(path) or _header_problem(path):
        raise _unusable(path, problem)
    db = _connect(path, "mode=ro")
    try:
        try:
            version = _version(db, path)
        except sqlite3.OperationalError as error:
            if (_code(error) or 0) & 0xFF not in _NO_ROOM:
                raise
            db = _read_elsewhere(db, path, error)
            version = _version(db, path)
        if why := _check(db, path):
            raise damaged(path, why)
        if version < SCHEMA_VERSION:
            db = _in_memory(db)
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
        with _opening:
            if _connections[_identity(path)]:
                raise refusal
            for part in ("", "-wal"):
                if (found := path.with_name(path.name + part)).is_file():
                    shutil.copyfile(found, Path(folder) / found.name)
        memory = _in_memory(_connect(Path(folder) / path.name, "mode=rw"))
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
            is_copy = _restore_copy(path)
        elif problem := _problem(path):
            raise _unusable(path, problem)
        if not path.exists():
            path.touch(0o600)
        db = stack.enter_context(closing(_connect(path, "mode=rwc")))
        db.is_copy = is_copy
        version = _version(db, path, may_be_empty=True)
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


def _connect(path: Path, how: str) -> SqliteConnection:
    uri = f"{path.absolute().as_uri()}?{how}"
    with _opening:
        db = sqlite3.connect(
            uri, uri=True, timeout=_BUSY_S, isolation_level=None, check_same_thread=False, factory=SqliteConnection
        )
        db.file = _identity(path)
        _connections[db.file] += 1
    return db


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def _in_memory(db: sqlite3.Connection | None = None) -> SqliteConnection:
    memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False, factory=SqliteConnection)
    memory.in_memory = True
    if db is not None:
        with closing(db):
            db.backup(memory)
    return memory


def _version(db: sqlite3.Connection, path: Path, *, may_be_empty: bool = False) -> int:
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    tables = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    if version > SCHEMA_VERSION:
        remedy = "use that one, or another --state-dir"
        raise StateError(f"{path}: was written by a newer fedpatch (version {version} of the registry); {remedy}")
    if version <= 0 and (tables or not may_be_empty):
        raise StateError(f"{path}: is not a registry of fedpatch; {_REMEDY}")
    return version


def _restore_copy(path: Path) -> bool:
    """Replace a damaged or missing registry by its copy; return whether that was done. The caller has the exclusive lock."""
    copy = copy_of(path)
    problem = _problem(path)
    if problem is None:
        return False
    if not copy.is_file():
        raise StateError(f"{path}: {problem}; {rebuild_hint(path)}")
    of_copy = _problem(copy)
    if of_copy is not None:
        hint = rebuild_hint(path) if journals(path.parent) else "move both away"
        raise StateError(f"{path}: {problem}, and its copy {copy} {of_copy}; {hint}")
    kept = f"it is now {damaged_of(path).name}, and " if path.is_file() else ""
    put_copy_in_place(path)
    _log.warning("%s: %s; %sits copy %s is in its place", path, problem, kept, copy.name)
    return True


def _unusable(path: Path, problem: str) -> StateError:
    copy = copy_of(path)
    remedy = f"`fedpatch run` or `fedpatch resume` puts its copy {copy.name} in its place"
    use_copy = copy.is_file() and _problem(copy) is None
    return StateError(f"{path}: {problem}; {remedy if use_copy else rebuild_hint(path)}")


def _damage(why: object) -> str:
    return f"is damaged ({why})"


def _problem(path: Path) -> str | None:
    """Return the problem of a registry that is missing, empty or damaged; None for none.

    A missing or empty registry without copy and journals is no problem, since it may be created.
    """
    absence = _absence(path)
    if absence or not path.is_file() or not path.stat().st_size:
        return absence
    if problem := _header_problem(path):
        return problem
    try:
        with closing(_connect(path, "mode=ro")) as db:
            why = _check(db, path)
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError) and _code(error) not in _SUSPICIOUS:
            raise
        why = str(error)
    except (UnicodeError, MemoryError) as error:  # a damaged name or length
        why = type(error).__name__
    return None if why is None else _damage(why)


def _header_problem(path: Path) -> str | None:
    """Return the problem of a header whose version is not SQLite's; SQLite would open such a file as read-only.

    The header of a file that this process has open through SQLite was checked when it was opened.
    """
    with _opening:
        if _connections[_identity(path)]:
            return None
        with path.open("rb") as file:
            header = file.read(100)
    if not header or (header[:16] == _MAGIC and set(header[_VERSION_BYTES]) <= {1, 2}):
        return None
    return _damage("file is not a database")


def _absence(path: Path) -> str | None:
    known = copy_of(path).is_file() or journals(path.parent)
    if not known or (path.is_file() and path.stat().st_size):
        return None
    return "is empty" if path.is_file() else "is not there"


def _check(db: sqlite3.Connection, path: Path) -> str | None:
    tables = _schema(db)
    if not tables and copy_of(path).is_file():
        return "it holds nothing"
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if not tables and version == 0:
        return None  # the process that made it was killed before it wrote anything
    present = tables >= _expected(SCHEMA_VERSION)
    if 0 < version <= SCHEMA_VERSION and tables >= _expected(version) and (version == SCHEMA_VERSION or not present):
        return content_problem(db)  # other programs may have added an index or a view
    # A later version may have added a table only; damage to the number adds nothing.
    if present and not (version > SCHEMA_VERSION and _added(tables)):
        return f"it says that it is of version {version}, and its tables are of {SCHEMA_VERSION}"
    _version(db, path)
    return "its tables are not those that were made"


def _expected(version: int) -> set[tuple[str, ...]]:
    with closing(_in_memory()) as like:
        like.executescript(script(0, version))
        return _schema(like)


def _added(tables: set[tuple[str, ...]]) -> set[tuple[str, ...]]:
    """Return what a registry has beside the tables of the present version, without SQLite's own tables."""
    return {one for one in tables - _expected(SCHEMA_VERSION) if not one[1].startswith("sqlite_")}


def _schema(db: sqlite3.Connection) -> set[tuple[str, ...]]:
    rows = db.execute("SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_schema").fetchall()
    return {tuple(" ".join(str(word).split()) for word in row) for row in rows}


def _code(error: sqlite3.Error) -> int | None:
    return getattr(error, "sqlite_errorcode", None)
