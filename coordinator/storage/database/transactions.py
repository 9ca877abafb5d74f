"""The base of the registry's tables: one connection, transactions, rows as dictionaries, errors in words."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Executable, Table, bindparam, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError

from fedpatch.coordinator.storage.database.tables import runs
from fedpatch.shared.app.store_waits import StoreWaits
from fedpatch.shared.errors import LeadershipLost, StateError, UsageError

T = TypeVar("T")
Insert = sqlite.Insert | postgresql.Insert

_COUNT_CHANGE = (
    update(runs)
    .where(runs.c.id == bindparam("run"))
    .values(changes=runs.c.changes + 1)
    .returning(runs.c.changes, runs.c.epoch)
)


class Database(ABC):
    """A registry's connection. One thread at a time may use it; changes are on disk when `change` returns.

    Args:
        path: Path that the registry has, or would have, as a SQLite file.
        connection: The connection, which commits each statement outside of `change` by itself.

    Attributes:
        name: Name of the database in messages.
        is_copy: Whether a copy has just replaced a damaged registry.
        is_snapshot: Whether it was copied when it was opened: later changes by other processes are not in it.
        ending: The requests that wait; set when the process shall end: from then on no thread waits long for a lost connection.
        failures: Errors of the database and of its disk.
        before_write: Called before each change; its exception prevents the change.
        led: Epochs of the runs that are led through this connection: a later epoch in the registry is another coordinator's.
    """

    failures: tuple[type[Exception], ...] = (DBAPIError,)
    _begin: str

    def __init__(self, path: Path, connection: Connection) -> None:
        self.path = path
        self.name = str(path)
        self.is_copy = self.is_snapshot = False
        self.ending = StoreWaits()
        self.before_write: Callable[[], None] = lambda: None
        self.led: dict[str, int] = {}
        self._connection = connection

    def read(self, query: Executable) -> list[dict[str, Any]]:
        """Return the rows of a query; raise StateError if the database refuses."""
        with self.errors():
            return [dict(row) for row in self._connection.execute(query).mappings()]

    def change(self, work: Callable[[Connection], T]) -> T:
        """Call `work` in one transaction, which is committed as a whole or not at all; return its result.

        Raises:
            StateError: The database refuses, or its disk does.
        """
        self.before_write()
        with self.errors():
            return self._transaction(work)

    def count_change(self, db: Connection, run: str) -> int:
        """Count a change of a run in the transaction that makes it; return its number, for the run's journal.

        Raises:
            UsageError: The run is not in the registry.
            LeadershipLost: Another coordinator has begun a later epoch of a run that this one leads.
        """
        found = db.execute(_COUNT_CHANGE, {"run": run}).first()
        if found is None:
            raise UsageError(f"unknown run {run!r}; `fedpatch runs` lists those of this registry")
        if found.epoch > self.led.get(run, found.epoch):
            raise LeadershipLost(f"{self.name}: another fedpatch has gone on with run {run} meanwhile; end this one")
        return int(found.changes)

    def _transaction(self, work: Callable[[Connection], T]) -> T:
        self._connection.exec_driver_sql(self._begin)
        try:
            done = work(self._connection)
            self._connection.exec_driver_sql("COMMIT")
        except BaseException:
            self._roll_back()
            raise
        return done

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Raise StateError with a remedy for errors of the database within a `with`."""
        try:
            yield
        except self.failures as error:
            raise self.error_of(error) from error

    @abstractmethod
    def error_of(self, raised: Exception) -> StateError:
        """Return the error, with a remedy, for one of `failures`."""

    @abstractmethod
    def damaged(self, why: object) -> StateError:
        """Return the error for damaged content."""

    @abstractmethod
    def keep(self) -> None:
        """Update the copy, if this database keeps one; after an error, which is logged, the old copy stays."""

    @abstractmethod
    def version(self) -> int:
        """Return a number that differs after another process has changed the database."""

    @abstractmethod
    def lead(self, fleet: str, epoch: int | None = None) -> int:
        """Keep other coordinators of a fleet from this database until it is closed.

        Returns:
            The least next epoch of a run: without standbys above the epochs of all former leaders, which may have folders in
            the store; 0 if there are none.

        Args:
            epoch: Epoch of a leader with standbys, which has the lock elsewhere (coordinator.storage.leadership): from
                now on `change` raises LeadershipLost once a later epoch has begun. None without standbys.

        Raises:
            UsageError: Another coordinator leads the fleet.
        """

    @abstractmethod
    def is_led(self, fleet: str) -> bool:
        """Return whether a coordinator has the lock of the fleet in the database."""

    @abstractmethod
    def close(self) -> None:
        """Release the database."""

    @abstractmethod
    def _roll_back(self) -> None:
        """End a transaction without a change, if one is open."""


class Tables:
    """Some tables of a database; errors of the disk and damage raise StateError."""

    def __init__(self, db: Database) -> None:
        self._db = db

    @property
    def path(self) -> Path:
        """Path that the registry has, or would have, as a SQLite file."""
        return self._db.path

    def _change(self, work: Callable[[Connection], T]) -> T:
        return self._db.change(work)

    def _read(self, query: Executable) -> list[dict[str, Any]]:
        return self._db.read(query)

    def _json(self, text: str, kind: type[T]) -> T:
        """Return the object or list in a column with JSON; raise StateError for other content, which any program may write."""
        try:
            value = json.loads(text)
        except (ValueError, TypeError, RecursionError) as error:
            raise self._db.damaged(error) from error
        if not isinstance(value, kind):
            raise self._db.damaged(f"there is no {kind.__name__} where one was written")
        return value


def in_use(place: Path | str, fleet: str) -> str:
    """Return the message for a fleet that another coordinator leads from a state directory or in a database."""
    return f"{place}: another fedpatch is working with fleet {fleet!r}; wait for it, or end it first"


def insert(db: Connection, table: Table) -> Insert:
    """Return an INSERT in the dialect of a connection, to which `on_conflict_do_...` can be added."""
    return sqlite.insert(table) if db.dialect.name == "sqlite" else postgresql.insert(table)


def insert_new(db: Connection, table: Table, rows: Sequence[Mapping[str, Any]]) -> bool:
    """Insert rows, except those whose key already exists; return whether all were inserted.

    Args:
        db: The connection, within a transaction.
        rows: The rows by column, all with the same columns.
    """
    if not rows:
        return True
    return bool(db.execute(_insert_new(db.dialect.name, table), rows).rowcount == len(rows))


@cache  # to build it in each call would cost more than SQLite's part
def _insert_new(dialect: str, table: Table) -> Insert:
    made = sqlite.insert(table) if dialect == "sqlite" else postgresql.insert(table)
    return made.on_conflict_do_nothing().execution_options(preserve_rowcount=True)
