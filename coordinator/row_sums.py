"""Checksums over the rows of the registry, since SQLite keeps none: a bit that turns over in a value looks like a value.

Each table has one sum over the checksums of its rows, and a count of its changes, in the table `sums`. Triggers that live
in the connection, not in the file, keep them with every change and in the same transaction; so the file opens in any
SQLite program.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterator

import msgpack

TABLE = "CREATE TABLE sums (name TEXT PRIMARY KEY, total INTEGER NOT NULL, changes INTEGER NOT NULL);"


def fill(db: sqlite3.Connection) -> None:
    """Sum every table up as it is now, in the caller's transaction."""
    _define(db)
    for table in _tables(db):
        db.execute(
            f"INSERT INTO main.sums SELECT '{table}', {_total(db, table)}, 1 FROM main.{table} WHERE true"  # our tables  # nosec B608
            " ON CONFLICT (name) DO UPDATE SET total = excluded.total, changes = changes + 1"
        )


def keep(db: sqlite3.Connection) -> None:
    """From now on, every change through this connection changes the sums too."""
    _define(db)
    db.execute("PRAGMA temp_store = MEMORY")
    # Otherwise a row that makes way for another would go without its trigger.
    db.execute("PRAGMA recursive_triggers = ON")
    for table in _tables(db):
        for event, change in (
            ("INSERT", f"+ {_row(db, table, 'NEW')}"),
            ("DELETE", f"- {_row(db, table, 'OLD')}"),
            ("UPDATE", f"+ {_row(db, table, 'NEW')} - {_row(db, table, 'OLD')}"),
        ):
            db.execute(
                f"CREATE TEMP TRIGGER {table}_{event.lower()} AFTER {event} ON main.{table} BEGIN"  # our tables  # nosec B608
                f" UPDATE sums SET total = total {change}, changes = changes + 1 WHERE name = '{table}'; END"
            )


def wrong(db: sqlite3.Connection) -> str | None:
    """The first table whose rows are not those that were written, or None; reads everything."""
    _define(db)
    known = dict(db.execute("SELECT name, total FROM main.sums"))
    for table in _tables(db):
        if db.execute(f"SELECT {_total(db, table)} FROM main.{table}").fetchone()[0] != known.get(table):  # our tables  # nosec B608
            return table
    return None


def changes(db: sqlite3.Connection) -> int:
    """How often a row was changed: of two states of one registry, the later one has more."""
    return int(db.execute("SELECT coalesce(sum(changes), 0) FROM main.sums").fetchone()[0])


def _define(db: sqlite3.Connection) -> None:
    db.create_function("row_sum", -1, _row_sum, deterministic=True)


def _row_sum(*values: object) -> int:
    return zlib.crc32(msgpack.packb(values, unicode_errors="surrogatepass"))


def _tables(db: sqlite3.Connection) -> Iterator[str]:
    names = "SELECT name FROM main.sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite~_%' ESCAPE '~'"
    yield from (name for (name,) in db.execute(f"{names} AND name <> 'sums' ORDER BY name").fetchall())


def _total(db: sqlite3.Connection, table: str) -> str:
    return f"coalesce(sum({_row(db, table)}), 0)"


def _row(db: sqlite3.Connection, table: str, of: str = "") -> str:
    columns = [f"{of}.{row[1]}" if of else row[1] for row in db.execute(f"PRAGMA main.table_info({table})")]
    return f"row_sum({', '.join(columns)})"
