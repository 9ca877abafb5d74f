"""Connections to SQLite files, without the loss of their locks.

SQLite's locks are those of POSIX: if a process closes any descriptor of a file, it loses all its locks on this file. So the
file itself is read only while no connection of this process has it open.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from fedpatch.shared.app.locks import SharedLock

_BUSY_S = 10.0

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


def connect(path: Path, how: str) -> SqliteConnection:
    """Return a connection to a file.

    Args:
        how: The query of its URI, such as "mode=ro".
    """
    uri = f"{path.absolute().as_uri()}?{how}"
    with _opening:
        db = sqlite3.connect(
            uri, uri=True, timeout=_BUSY_S, isolation_level=None, check_same_thread=False, factory=SqliteConnection
        )
        db.file = _identity(path)
        _connections[db.file] += 1
    return db


@contextmanager
def without_new_connections(path: Path) -> Iterator[bool]:
    """Let this process open no file through SQLite meanwhile; yield whether a connection has the file at `path` open."""
    with _opening:
        yield _connections[_identity(path)] > 0


def _identity(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def in_memory(db: sqlite3.Connection | None = None) -> SqliteConnection:
    """Return an empty database in memory, or a copy of `db`, which is closed."""
    memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False, factory=SqliteConnection)
    memory.in_memory = True
    if db is not None:
        with closing(db):
            db.backup(memory)
    return memory


def error_code(error: sqlite3.Error) -> int | None:
    """Return SQLite's code of an error; None for an error of the driver."""
    return getattr(error, "sqlite_errorcode", None)
