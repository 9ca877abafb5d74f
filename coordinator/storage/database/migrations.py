"""The tables of the registry by version, and the migrations from one version to the next.

Table by table:

- `runs`: `changes` is the number of the last change of a run; a journal whose last line has a lower one lags behind.
- `open_rounds`: `departed` has the devices that left the count of an open round without an offence.
- `masking`: the steps of the groups of an open masked round, in the order of their numbers.
- `carried_work`: work for rounds that are over (coordinator.buffered), in the journal of the open round and between two rounds.
- `leaders`: the coordinators that took turns in leading a fleet (coordinator.storage.leadership); empty in SQLite.
"""

from __future__ import annotations

import sqlite3

COUNTERS = ("invited", "accepted", "declined", "reported", "lost", "failed", "refused", "late", "ignored")

_VERSION_11 = """
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
    model TEXT,
    changes INTEGER NOT NULL DEFAULT 0
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
    invited INTEGER NOT NULL DEFAULT 0,
    accepted INTEGER NOT NULL DEFAULT 0,
    declined INTEGER NOT NULL DEFAULT 0,
    reported INTEGER NOT NULL DEFAULT 0,
    lost INTEGER NOT NULL DEFAULT 0,
    failed INTEGER NOT NULL DEFAULT 0,
    refused INTEGER NOT NULL DEFAULT 0,
    late INTEGER NOT NULL DEFAULT 0,
    ignored INTEGER NOT NULL DEFAULT 0,
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
    encoding TEXT NOT NULL DEFAULT 'fp32+zstd',
    PRIMARY KEY (run, round, device)
);
CREATE TABLE open_rounds (
    run TEXT PRIMARY KEY REFERENCES runs (id),
    round INTEGER NOT NULL,
    target INTEGER NOT NULL,
    invited TEXT NOT NULL,
    base TEXT NOT NULL,
    spent_s REAL NOT NULL,
    boot TEXT NOT NULL,
    uptime_s REAL NOT NULL,
    unix_s REAL NOT NULL,
    closing INTEGER NOT NULL DEFAULT 0,
    paused INTEGER NOT NULL DEFAULT 0,
    encoding TEXT NOT NULL DEFAULT '',
    negotiated TEXT NOT NULL DEFAULT '{}',
    absent TEXT NOT NULL DEFAULT '[]',
    offenders TEXT NOT NULL DEFAULT '{}',
    departed TEXT NOT NULL DEFAULT '{}'
);
CREATE TABLE acceptances (
    run TEXT NOT NULL REFERENCES runs (id),
    device TEXT NOT NULL,
    PRIMARY KEY (run, device)
);
CREATE TABLE holds (
    fleet TEXT NOT NULL,
    id TEXT NOT NULL,
    kind TEXT NOT NULL CHECK (kind IN ('quarantined', 'drained')),
    reason TEXT NOT NULL,
    since REAL NOT NULL,
    PRIMARY KEY (fleet, id, kind)
);
CREATE TABLE offences (
    fleet TEXT NOT NULL,
    id TEXT NOT NULL,
    count INTEGER NOT NULL,
    last TEXT NOT NULL,
    PRIMARY KEY (fleet, id)
);
CREATE TABLE masking (
    number INTEGER PRIMARY KEY,
    run TEXT NOT NULL REFERENCES runs (id),
    round INTEGER NOT NULL,
    team INTEGER NOT NULL,
    step TEXT NOT NULL CHECK (step IN ('terms', 'roster', 'shares', 'masking', 'reported', 'reveal')),
    device TEXT NOT NULL,
    content BLOB NOT NULL,
    UNIQUE (run, round, team, step, device)
);
CREATE TABLE carried_work (
    run TEXT NOT NULL REFERENCES runs (id),
    device TEXT NOT NULL,
    round INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    version INTEGER NOT NULL,
    base TEXT NOT NULL,
    encoding TEXT NOT NULL,
    PRIMARY KEY (run, device)
);
CREATE TABLE leaders (fleet TEXT PRIMARY KEY NOT NULL, epoch BIGINT NOT NULL, holder TEXT NOT NULL);
"""
# Whether a device is the relay of a site.
_VERSION_12 = """
ALTER TABLE devices ADD COLUMN relay INTEGER NOT NULL DEFAULT 0;
"""
OLDEST_VERSION = 11
"""The first version that can still be opened."""
# Entry i migrates version OLDEST_VERSION + i to the next one in one transaction, after a copy was made. A released entry is
# never changed.
_MIGRATIONS: tuple[str, ...] = (_VERSION_12,)
SCHEMA_VERSION = OLDEST_VERSION + len(_MIGRATIONS)


def script(before: int, version: int = SCHEMA_VERSION) -> str:
    """Return the SQL that migrates tables from version `before` (0: none, else at least OLDEST_VERSION) to `version`."""
    first = (_VERSION_11,) if before == 0 else ()
    return " ".join((*first, *_MIGRATIONS[max(before - OLDEST_VERSION, 0) : version - OLDEST_VERSION]))


def version_problem(version: int) -> str | None:
    """Return why tables of `version` cannot be used, as a predicate; None for tables that can be used or migrated."""
    if version > SCHEMA_VERSION:
        return f"was written by a newer fedpatch (version {version} of the registry)"
    if 0 < version < OLDEST_VERSION:
        return f"is of version {version} of the registry, and the oldest that can be opened is {OLDEST_VERSION}"
    return None


def migrate(db: sqlite3.Connection, version: int) -> None:
    """Migrate `db` from `version` (0: it is empty) to the present one; raise sqlite3.Error and change nothing if that fails."""
    try:
        db.executescript(f"BEGIN IMMEDIATE; {script(version)}")
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
