"""The base of the registry's tables: transactions, rows as dictionaries, errors in words."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from fedpatch.coordinator.storage.database import damaged, sqlite_errors
from fedpatch.shared.errors import UsageError

T = TypeVar("T")


class Tables:
    """Some tables of a database; errors of the disk and damage raise StateError."""

    def __init__(self, db: sqlite3.Connection, path: Path) -> None:
        self.path = path
        self._db = db

    @contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        """One transaction: all of it or nothing."""
        with sqlite_errors(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def _read(self, query: str, values: Sequence[Any] = ()) -> list[dict[str, Any]]:
        with sqlite_errors(self.path):
            answer = self._db.execute(query, values)
            names = [column[0] for column in answer.description]
            return [dict(zip(names, row, strict=True)) for row in answer]

    def _json(self, text: str, kind: type[T]) -> T:
        """Return the object or list in a column with JSON; raise StateError for other content, which SQLite permits."""
        try:
            value = json.loads(text)
        except (ValueError, TypeError, RecursionError) as error:
            raise damaged(self.path, error) from error
        if not isinstance(value, kind):
            raise damaged(self.path, f"there is no {kind.__name__} where one was written")
        return value


def count_change(db: sqlite3.Connection, run: str) -> int:
    """Count a change of a run in the transaction that makes it; return its number, for the run's journal.

    Raises:
        UsageError: The run is not in the registry.
    """
    rows = db.execute("UPDATE runs SET changes = changes + 1 WHERE id = ? RETURNING changes", (run,)).fetchall()
    if not rows:
        raise UsageError(f"unknown run {run!r}")
    return int(rows[0][0])
