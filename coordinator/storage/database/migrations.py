"""The tables of the registry by version, and the migrations from one version to the next."""

from __future__ import annotations

import sqlite3

COUNTERS = ("invited", "accepted", "declined", "reported", "lost", "failed", "refused", "late", "ignored")

_VERSION_1 = """
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
    PRIMARY KEY (run, round, device)
);
"""
_VERSION_2 = """
CREATE TABLE sums (name TEXT PRIMARY KEY, total INTEGER NOT NULL, changes INTEGER NOT NULL);
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
    paused INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE acceptances (
    run TEXT NOT NULL REFERENCES runs (id),
    device TEXT NOT NULL,
    PRIMARY KEY (run, device)
);
"""
_VERSION_3 = """
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
"""
# A registry of version 3 holds updates in the encoding of their run.
_VERSION_4 = """
ALTER TABLE updates ADD COLUMN encoding TEXT NOT NULL DEFAULT 'fp32+zstd';
UPDATE updates SET encoding = coalesce(
    (SELECT json_extract(settings, '$.encoding') FROM runs WHERE id = updates.run AND json_valid(settings)), encoding
);
ALTER TABLE open_rounds ADD COLUMN encoding TEXT NOT NULL DEFAULT '';
ALTER TABLE open_rounds ADD COLUMN negotiated TEXT NOT NULL DEFAULT '{}';
"""
# Versions 2 to 4 had checksums of rows. A change of a row by any other program made its checksum wrong.
_VERSION_5 = """
DROP TABLE sums;
"""
# The number of the last change of a run: a journal whose last line has a lower one lags behind the registry.
_VERSION_6 = """
ALTER TABLE runs ADD COLUMN changes INTEGER NOT NULL DEFAULT 0;
"""
_VERSION_7 = """
ALTER TABLE open_rounds ADD COLUMN absent TEXT NOT NULL DEFAULT '[]';
ALTER TABLE open_rounds ADD COLUMN offenders TEXT NOT NULL DEFAULT '{}';
"""
# The steps of the groups of an open masked round, in the order of their numbers.
_VERSION_8 = """
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
"""
# Work for rounds that are over (coordinator.buffered), in the journal of the open round and between two rounds.
_VERSION_9 = """
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
"""
# The coordinators that took turns in leading a fleet (coordinator.storage.leadership); empty in SQLite.
_VERSION_10 = """
CREATE TABLE leaders (fleet TEXT PRIMARY KEY NOT NULL, epoch BIGINT NOT NULL, holder TEXT NOT NULL);
"""
# Devices that left the count of an open round without an offence.
_VERSION_11 = """
ALTER TABLE open_rounds ADD COLUMN departed TEXT NOT NULL DEFAULT '{}';
"""
# Whether a device is the relay of a site.
_VERSION_12 = """
ALTER TABLE devices ADD COLUMN relay INTEGER NOT NULL DEFAULT 0;
"""
# Entry i migrates version i + 1 to i + 2 in one transaction, after a copy was made. A released entry is never changed.
_MIGRATIONS: tuple[str, ...] = (
    _VERSION_2,
    _VERSION_3,
    _VERSION_4,
    _VERSION_5,
    _VERSION_6,
    _VERSION_7,
    _VERSION_8,
    _VERSION_9,
    _VERSION_10,
    _VERSION_11,
    _VERSION_12,
)
SCHEMA_VERSION = 1 + len(_MIGRATIONS)
VALUES_SINCE = 4
"""The first version whose rows can be checked as they are; in open rounds the columns of versions 7 and 11 may be absent."""


def script(before: int, version: int = SCHEMA_VERSION) -> str:
    """Return the SQL that migrates tables from version `before` (0: none) to `version`."""
    return " ".join((_VERSION_1, *_MIGRATIONS)[before:version])


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
