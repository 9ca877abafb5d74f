"""The registry's SQLite file: how it is opened, checked and mended, and its errors in words.

Beside `registry.sqlite3` (and its -wal and -shm while it is open) lie

    registry.sqlite3.before     its copy, made and checked whenever a round or a run is over
    registry.sqlite3.damaged    what had to make way for the copy, with its -wal and -shm
    registry.sqlite3.lock       shared by those that write; whoever puts the copy in place has it alone

At each opening SQLite checks its pages and constraints (`quick_check`) and its foreign keys, and the values of the rows are
checked (coordinator.storage.value_checks). Any program may change rows: a change that leaves a registry valid is accepted.
What the copy lacks, and the last transactions after damage to SQLite's log, come back from the journals
(coordinator.storage.run_journal).

A copy of the registry beside it, and how it takes the place of a registry that is damaged.
"""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

from fedpatch.coordinator.storage.migrations import SCHEMA_VERSION, migrate, script
from fedpatch.coordinator.storage.run_journal import journals
from fedpatch.coordinator.storage.value_checks import first_problem
from fedpatch.shared.app.files import (
    UNFINISHED,
    check_state_directory,
    make_directory,
    remedy_at,
    remedy_for,
    remove_unfinished,
    sync_directory,
    write_atomic,
)
from fedpatch.shared.app.locks import SharedLock
from fedpatch.shared.errors import StateError, UsageError

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


_BUSY_S = 10.0
_MEND = "move it away, or use another --state-dir"
_MAGIC = b"SQLite format 3\0"
_VERSION_BYTES = slice(18, 20)  # of the header: how the file is written and read, 1 or 2
# What SQLite says of a file whose bytes are not those that were written. "No such table" may be a name that has changed.
_UNREADABLE = {sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_IOERR_SHORT_READ}
_NO_ROOM = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_FULL}
_SUSPICIOUS = {*_UNREADABLE, sqlite3.SQLITE_ERROR, None}

_log = logging.getLogger("fedpatch.registry")


class Database(sqlite3.Connection):
    """Holds the lock of those that write until it is closed. `is_copy`: a damaged registry was just replaced by its copy."""

    lock: SharedLock | None = None
    is_copy = False

    def close(self) -> None:
        """Release the file and the lock."""
        super().close()
        if self.lock is not None:
            self.lock.release()


def open_database(path: Path, readonly: bool) -> Database:
    """The database at `path`, made where absent unless `readonly`; raises UsageError if it then is absent.

    It is checked, and brought to the present version; with `readonly`, in memory. A damaged one that nobody else has open is
    replaced by its copy when it is opened to write, which is logged. Raises StateError for a file that is damaged and has no
    whole copy, that is foreign or of a newer version, and where the disk refuses. A commit is
    on the disk when it returns (WAL with synchronous=FULL); one thread at a time may use the connection.
    """
    with sqlite_errors(path):
        return _open_to_read(path) if readonly else _open_to_write(path)


def exists(path: Path) -> bool:
    """Whether there is a database at `path`, a copy to take its place, or runs that it can be rebuilt from."""
    return path.is_file() or copy_of(path).is_file() or bool(journals(path.parent))


def must_exist(path: Path) -> None:
    """Raises UsageError where there is none of them."""
    if not exists(path):
        raise UsageError(f"no runs in {path.parent} ({path.name} is not there); say where they are with --state-dir")


def keep_copy(db: sqlite3.Connection, path: Path) -> None:
    """Makes the registry as it is now its own copy. Where the disk refuses, the log tells it and the copy before stays."""
    try:
        make_copy(db, path)
    except (OSError, sqlite3.Error) as error:
        _log.warning("%s: no new copy could be made: %s; the one before stays", copy_of(path), error)


def make_empty(path: Path) -> None:
    """Make a registry with nothing in it at `path`, where no file is."""
    with sqlite_errors(path):
        path.touch(0o600)
        with closing(_connect(path, "mode=rwc")) as db:
            migrate(db, 0)


@contextmanager
def alone_with(path: Path) -> Iterator[None]:
    """Keep everybody else from opening the registry at `path` to write; UsageError where somebody has it open."""
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
    """Turns errors of SQLite and of the disk into StateError, with the file and the mend."""
    try:
        yield
    except sqlite3.IntegrityError as error:
        raise StateError(f"{path}: refused ({error}); what it belongs to is not in this registry") from error
    except sqlite3.DatabaseError as error:
        if not isinstance(error, sqlite3.OperationalError) or _code(error) in _UNREADABLE:
            raise damaged(path, error) from error
        remedy = remedy_at(
            path.parent, "make sure that there is space and that it may be written, or use another --state-dir"
        )
        raise StateError(f"{path}: cannot be used: {error}; {remedy}") from error
    except UnicodeError as error:
        raise damaged(path, error) from error
    except OSError as error:
        remedy = remedy_for(error, "use another --state-dir")
        raise StateError(f"{error.filename or path}: {error.strerror}; {remedy}") from error


def damaged(path: Path, why: object) -> StateError:
    """Error for a file that cannot be read back."""
    return _unusable(path, _damage(why))


def rebuild_hint(path: Path) -> str:
    """What to do about a registry that is damaged or gone, and has no copy to take its place."""
    if not journals(path.parent):
        return _MEND
    return f"`fedpatch runs --rebuild --state-dir {shlex.quote(str(path.parent))}` makes it again from its runs"


def problem_of(path: Path) -> str | None:
    """What is wrong with a registry or a copy of one, as `_problem` says it; StateError as `open_database`."""
    with sqlite_errors(path):
        return _problem(path)


def _open_to_read(path: Path) -> Database:
    must_exist(path)
    if problem := _absence(path) or _header_problem(path):
        raise _unusable(path, problem)
    db = _connect(path, "mode=ro")
    try:
        try:
            version = _version(db, path)
        except sqlite3.OperationalError as error:
            if (_code(error) or 0) & 0xFF not in _NO_ROOM:
                raise
            db = _read_elsewhere(db, path)
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


def _read_elsewhere(db: sqlite3.Connection, path: Path) -> Database:
    """What is at `path`, where the disk has no room for SQLite's own files beside it, or is read-only."""
    db.close()
    with tempfile.TemporaryDirectory(prefix="fedpatch-registry-") as folder:
        for part in ("", "-wal"):
            if (found := path.with_name(path.name + part)).is_file():
                shutil.copyfile(found, Path(folder) / found.name)
        memory = _in_memory(_connect(Path(folder) / path.name, "mode=rw"))
    memory.execute("PRAGMA query_only = ON")
    return memory


def _open_to_write(path: Path) -> Database:
    make_directory(path.parent)
    check_state_directory(path.parent)
    _make_private(path)
    with ExitStack() as stack:
        lock = SharedLock(path.with_name(f"{path.name}.lock"))
        stack.callback(lock.release)
        is_copy = False
        if lock.take():
            remove_unfinished(path.parent)  # nobody else is at work here, so nobody is writing them
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
    """Let only its owner read the registry: it names the devices of a fleet. SQLite gives its log the same permissions."""
    if path.exists():
        # By name: to open and close the file would drop the locks that this process has on it through SQLite.
        path.chmod(0o600)


def _connect(path: Path, how: str) -> Database:
    uri = f"{path.absolute().as_uri()}?{how}"
    return sqlite3.connect(
        uri, uri=True, timeout=_BUSY_S, isolation_level=None, check_same_thread=False, factory=Database
    )


def _in_memory(db: sqlite3.Connection | None = None) -> Database:
    memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False, factory=Database)
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
        raise StateError(f"{path}: is not a registry of fedpatch; {_MEND}")
    return version


def _restore_copy(path: Path) -> bool:
    """Puts the copy in the place of a registry that is damaged or gone, and tells if so; for whoever has it alone."""
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
    """That a registry is not there, is empty or is damaged, or None if it is whole.

    Where there is neither a copy nor a journal, one that is not there or empty may be made: None, too.
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
    except (UnicodeError, MemoryError) as error:  # a name, or the length of something, is not what it was
        why = type(error).__name__
    return None if why is None else _damage(why)


def _header_problem(path: Path) -> str | None:
    """A file whose version is another than SQLite's would be opened as one that cannot be written."""
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
        return None  # whoever made it was killed before there was anything in it
    if 0 < version <= SCHEMA_VERSION and tables >= _expected(version):
        return content_problem(db)  # other programs may have added an index or a view
    if tables >= _expected(SCHEMA_VERSION):
        return f"it says that it is of version {version}, and its tables are of {SCHEMA_VERSION}"
    _version(db, path)
    return "its tables are not those that were made"


def _expected(version: int) -> set[tuple[str, ...]]:
    with closing(_in_memory()) as like:
        like.executescript(script(0, version))
        return _schema(like)


def _schema(db: sqlite3.Connection) -> set[tuple[str, ...]]:
    rows = db.execute("SELECT type, name, tbl_name, coalesce(sql, '') FROM sqlite_schema").fetchall()
    return {tuple(" ".join(str(word).split()) for word in row) for row in rows}


def _code(error: sqlite3.Error) -> int | None:
    return getattr(error, "sqlite_errorcode", None)
