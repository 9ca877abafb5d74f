"""The registry's SQLite file: its tables, how it is opened, and its errors in words."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shared.errors import StateError, UsageError

SCHEMA_VERSION = 1
COUNTERS = ("invited", "accepted", "declined", "reported", "lost", "failed", "refused", "late", "ignored")

_TABLES = f"""
CREATE TABLE runs (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    created_at REAL NOT NULL,
    task TEXT NOT NULL,
    strategy TEXT NOT NULL,
    private TEXT NOT NULL,
    settings TEXT NOT NULL,
    schema TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('running', 'finished', 'interrupted', 'failed')),
    stopped_because TEXT,
    user_accuracy REAL,
    model TEXT
);
CREATE TABLE rounds (
    run TEXT NOT NULL REFERENCES runs (id),
    round INTEGER NOT NULL,
    record TEXT NOT NULL,
    PRIMARY KEY (run, round)
);
CREATE TABLE devices (
    id TEXT NOT NULL,
    fleet TEXT NOT NULL,
    first_seen REAL NOT NULL,
    last_seen REAL NOT NULL,
    online INTEGER NOT NULL,
    version TEXT NOT NULL,
    tasks TEXT NOT NULL,
    {" ".join(f"{counter} INTEGER NOT NULL DEFAULT 0," for counter in COUNTERS)}
    last_reason TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (fleet, id)
);
CREATE TABLE updates (
    run TEXT NOT NULL REFERENCES runs (id),
    round INTEGER NOT NULL,
    device TEXT NOT NULL,
    digest TEXT NOT NULL,
    raw_bytes INTEGER NOT NULL,
    num_examples INTEGER NOT NULL,
    PRIMARY KEY (run, round, device)
);
"""
_BUSY_S = 10.0
_MEND = "move it away, or use another --state-dir"


def open_database(path: Path, readonly: bool) -> sqlite3.Connection:
    """The database at `path`, made where absent unless `readonly`; raises UsageError if it then is absent.

    Raises StateError for a file that is damaged, foreign or of a newer version, and where the disk refuses. A commit
    is on the disk when it returns (WAL with synchronous=FULL); one thread at a time may use the connection.
    """
    if readonly and not path.is_file():
        raise UsageError(f"no runs in {path.parent} ({path.name} is not there); say where they are with --state-dir")
    with told(path):
        if not readonly:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        uri = f"{path.absolute().as_uri()}?mode={'ro' if readonly else 'rwc'}"
        db = sqlite3.connect(uri, uri=True, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        with told(path):
            _prepare(db, path, readonly)
    except BaseException:
        db.close()
        raise
    return db


@contextmanager
def told(path: Path) -> Iterator[None]:
    """Turns errors of SQLite and of the disk into StateError, with the file and the mend."""
    try:
        yield
    except sqlite3.IntegrityError as error:
        raise StateError(f"{path}: refused ({error}); what it belongs to is not in this registry") from error
    except sqlite3.OperationalError as error:
        mend = "make sure that there is space and that it may be written, or use another --state-dir"
        raise StateError(f"{path}: cannot be used: {error}; {mend}") from error
    except sqlite3.DatabaseError as error:
        raise damaged(path, error) from error
    except OSError as error:
        raise StateError(f"{error.filename or path}: {error.strerror}; use another --state-dir") from error


def damaged(path: Path, why: object) -> StateError:
    """Error for a file that cannot be read back."""
    return StateError(f"{path}: is damaged ({why}); {_MEND}")


def _prepare(db: sqlite3.Connection, path: Path, readonly: bool) -> None:
    version = db.execute("PRAGMA user_version").fetchone()[0]
    tables = db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    if version > SCHEMA_VERSION:
        mend = "use that one, or another --state-dir"
        raise StateError(f"{path}: was written by a newer fedpatch (version {version} of the registry); {mend}")
    if version == 0 and (tables or readonly):
        raise StateError(f"{path}: is not a registry of fedpatch; {_MEND}")
    if not readonly:
        db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA foreign_keys = ON")
    if version == 0:
        db.executescript(f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
