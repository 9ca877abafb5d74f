"""The registry in a PostgreSQL database (13 or later), for several machines and for backups by the database's own means.

Each transaction is on the server's disk when it returns (synchronous_commit). After a lost connection, connecting is retried
for PATIENCE_S. Then the transaction is repeated, unless the server has committed it: `pg_xact_status` shows this for a COMMIT
whose answer was lost. An advisory lock of the session lets only one coordinator lead a fleet; a new session takes the lock
again.

With standbys the lock is in a session of its own (coordinator.storage.leadership). Each transaction first takes a
shared lock on the row of the fleet's leader and compares its epoch. The next leader raises the epoch by an update of that row.
The update waits for open transactions, and later transactions wait for the update. So no transaction of a lower epoch commits
after it.
"""

from __future__ import annotations

import logging
import os
import secrets
import shlex
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from sqlalchemy import Connection, Engine, Executable, NullPool, create_engine, make_url, select, text
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError

from fedpatch.coordinator.storage.database.leader_epoch import (
    HELD_BY_ANOTHER,
    LEADER_LOCK,
    known_leader,
    lock,
    lost_to,
    next_epoch,
)
from fedpatch.coordinator.storage.database.migrations import SCHEMA_VERSION, script, version_problem
from fedpatch.coordinator.storage.database.pooler_refusal import refuse_pooler
from fedpatch.coordinator.storage.database.postgres_remedies import GRANT, PRIMARY, code_of, in_words, remedy_of
from fedpatch.coordinator.storage.database.tables import METADATA, leaders, runs
from fedpatch.coordinator.storage.database.transactions import Database, T, in_use
from fedpatch.coordinator.storage.run_journal import journals
from fedpatch.shared.app.store_waits import REGISTRY
from fedpatch.shared.errors import LeadershipLost, StateError, UsageError

PATIENCE_S = 60.0
"""Seconds for which a lost connection is retried."""

_PAUSE_S = 0.25
_ENDING_S = 3.0  # instead of PATIENCE_S when the process shall end
_CONNECT_ARGS = {
    "connect_timeout": 10,
    "keepalives_idle": 20,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
    # Of a database without an encoding (SQL_ASCII, as initdb makes it without a locale) the driver would return bytes.
    "client_encoding": "utf8",
}
LEASE_S = 5.0
"""Seconds without a sign of life after which the server ends the sessions of a leader with standbys."""
_FENCED = f"SET LOCAL idle_in_transaction_session_timeout = '{LEASE_S:g}s'"
_RIGHTS = (
    "SELECT current_setting('transaction_read_only') = 'on', has_schema_privilege(current_schema(), 'CREATE'),"
    " has_table_privilege(to_regclass('runs'), 'INSERT')"
)
# The server ends the session of a process a moment after the process has ended.
_LOCK_PAUSES_S = (0.05, 0.2, 1.0)
_UNDONE = {"40001", "40P01"}  # serialization failure, deadlock: the server has undone the transaction
_UNDONE_TIMES = 5

_log = logging.getLogger("fedpatch.registry")


class PostgresDatabase(Database):
    """The registry in a PostgreSQL database.

    Args:
        path: Path that the registry would have as a SQLite file, in the state directory.
        url: URL of the database, without a password.
        readonly: Change nothing. In a database without tables the first query is then an error.
        patient: Retry for PATIENCE_S if the database cannot be reached, as after a lost connection.

    Raises:
        UsageError: psycopg is not installed.
        StateError: The database cannot be reached or used, is not fedpatch's, or of an unusable version.
    """

    def __init__(self, path: Path, url: str, *, readonly: bool = False, patient: bool = False) -> None:
        # A pooler may give each read another session, which has none of our prepared statements.
        self._engine = make_engine(url, prepare_threshold=None) if readonly else make_engine(url)
        self._readonly = readonly
        self._begin = "BEGIN READ ONLY" if readonly else "BEGIN"
        self._durably: tuple[str, ...] = ()
        self._patience_s = 0.0 if readonly else PATIENCE_S
        self._fleets: set[str] = set()
        self._fence: tuple[str, int] | None = None
        self._in_doubt: str | None = None
        self._done: object = None
        self._lost: DBAPIError | None = None
        self.has_tables = True
        self.name = url
        with self.errors():
            super().__init__(path, self._connect_within(PATIENCE_S if patient else 0.0))
            self.name = url
            try:
                version = _version(self._connection, url) if readonly else SCHEMA_VERSION
                self.has_tables = version != 0
                if not readonly:
                    self._lasting(self._migrate)
                elif version not in (0, SCHEMA_VERSION):
                    raise StateError(
                        f"{url}: is of an earlier version; `fedpatch run` or `fedpatch resume` brings it forward"
                    )
            except BaseException:
                self.close()
                raise

    def read(self, query: Executable) -> list[dict[str, Any]]:
        """Return the rows of a query; reconnect after a lost connection."""
        with self.errors():
            return self._lasting(lambda: [dict(row) for row in self._connection.execute(query).mappings()])

    def change(self, work: Callable[[Connection], T]) -> T:
        """As Database.change; `work` is called again for a transaction that was lost with its connection."""
        with self.errors():
            return self._lasting(lambda: self._transaction(work))

    def error_of(self, raised: Exception) -> StateError:
        """Return the error with the URL and the remedy."""
        assert isinstance(raised, DBAPIError)
        if code_of(raised).startswith("23"):
            why = f"refused ({in_words(raised)}), since what it belongs to is not in this registry"
            return StateError(f"{self.name}: {why}; {self._rebuild} adds it")
        if code_of(raised) == "42P01" and not self.has_tables and not journals(self.path.parent):
            return StateError(f"{self.name}: no run has begun here; `fedpatch run` makes its tables")
        return StateError(f"{self.name}: cannot be used: {in_words(raised)}; {remedy_of(raised)}")

    @property
    def _rebuild(self) -> str:
        return f"`fedpatch runs --rebuild --state-dir {shlex.quote(str(self.path.parent))}`"

    def damaged(self, why: object) -> StateError:
        """Return the error for damaged content."""
        return StateError(f"{self.name}: is damaged ({why}); restore a backup, then {self._rebuild} adds what it lacks")

    def check(self) -> None:
        """Raise StateError if no coordinator could write: behind a pooler of transactions, at a standby, without rights."""
        with self.errors():
            refuse_pooler(self._engine, self._connection, self.name)
            reads_only, may_make, may_write = self._connection.exec_driver_sql(_RIGHTS).one()
        if reads_only:
            raise StateError(f"{self.name}: cannot be used: its transactions are read-only; {PRIMARY}")
        if not (may_write if self.has_tables else may_make):
            raise StateError(f"{self.name}: cannot be used: this user lacks rights; {GRANT}")

    def keep(self) -> None:
        """Do nothing: backups are the server's."""

    def version(self) -> int:
        """Return the position of the server's log, which grows with each change."""
        query = "SELECT CAST(pg_current_wal_insert_lsn() - '0/0' AS bigint) AS position"
        return int(self.read(text(query))[0]["position"])

    def lead(self, fleet: str, epoch: int | None = None) -> int:
        """As Database.lead: take the advisory lock of a fleet until the database is closed, or check `epoch` at each change."""
        if epoch is not None:
            self._fence = (fleet, epoch)
            return epoch
        with self.errors():
            for pause_s in (*_LOCK_PAUSES_S, None):
                if lock(self._connection, fleet):
                    break
                if pause_s is None:
                    raise UsageError(in_use(self.name, fleet))
                time.sleep(pause_s)
        self._fleets.add(fleet)
        if not known_leader(self._connection, fleet)[0]:
            return 0
        return self.change(lambda db: next_epoch(db, fleet, ""))  # a paused leader then writes no more

    def is_led(self, fleet: str) -> bool:
        """Return whether a session, of this machine or of another, has the fleet's lock."""
        held = self.read(HELD_BY_ANOTHER.bindparams(mode="ExclusiveLock", name=LEADER_LOCK + fleet))
        return bool(held[0]["held"])

    def close(self) -> None:
        """Release the connection and its locks."""
        with suppress(DBAPIError):
            self._connection.close()

    def _roll_back(self) -> None:
        with suppress(DBAPIError):
            if not self._connection.invalidated:
                self._connection.exec_driver_sql("ROLLBACK")

    def _transaction(self, work: Callable[[Connection], T]) -> T:
        self._in_doubt = None
        return super()._transaction(lambda db: self._noted(self._fenced(work, self._set_up(db))))

    def _set_up(self, db: Connection) -> Connection:
        """Give a transaction its settings, none of which outlives it: behind a pooler the session belongs to others next."""
        for setting in (*self._durably, *([_FENCED] if self._fence is not None else ())):
            db.exec_driver_sql(setting)
        return db

    def _fenced(self, work: Callable[[Connection], T], db: Connection) -> T:
        """Do `work` as the leader of the present epoch; raise LeadershipLost in a later one."""
        if self._fence is not None:
            fleet, epoch = self._fence
            present = db.scalar(select(leaders.c.epoch).where(leaders.c.fleet == fleet).with_for_update(read=True))
            if present != epoch:
                raise LeadershipLost(lost_to(self.name, fleet, epoch, present))
        return work(db)

    def _noted(self, done: T) -> T:
        """Note the number of the transaction that is about to be committed, and its result."""
        query = "SELECT CAST(pg_current_xact_id_if_assigned() AS text)"
        number = self._connection.exec_driver_sql(query).scalar()
        self._in_doubt, self._done = number, done
        return done

    def _lasting(self, task: Callable[[], T]) -> T:
        """Return the result of `task`, which is repeated after a lost connection unless its transaction was committed."""
        left = _UNDONE_TIMES
        self._in_doubt = None
        if self._lost is not None:
            self._reconnect(self._lost)
        while True:
            try:
                with self.ending.request(REGISTRY, self.name, PATIENCE_S, self._break_off):
                    return task()
            except DBAPIError as error:
                if error.connection_invalidated:
                    with self.ending.request(REGISTRY, self.name, PATIENCE_S):
                        committed = self._reconnect(error)
                    if committed:
                        return cast(T, self._done)
                elif getattr(error.orig, "sqlstate", None) in _UNDONE and left:
                    left -= 1
                else:
                    raise

    def _break_off(self) -> None:
        """End the connection, so that the thread that waits for a silent server gets an error. Called in another thread."""
        with suppress(Exception):  # the other thread may have closed the connection just now
            driver: Any = self._connection.connection.driver_connection
            descriptor = os.dup(driver.fileno())
            with socket.socket(fileno=descriptor) as link:
                link.shutdown(socket.SHUT_RDWR)

    def _reconnect(self, lost: DBAPIError) -> bool:
        """Connect again; return whether the transaction whose COMMIT had no answer was committed."""
        cause = " ".join(str(lost.orig).split())
        if self._patience_s:
            _log.warning("%s: the connection is lost (%s); trying again for %.0f s", self.name, cause, self._patience_s)
        since = time.monotonic()
        # If the server stays away, the next calls do not wait again.
        patience_s, self._patience_s, self._lost = self._patience_s, 0.0, lost
        while True:
            try:
                self.close()
                self._connection = self._connect()
                committed = self._take_up()
                break
            except (DBAPIError, _NotYet) as error:
                if time.monotonic() - since >= (_ENDING_S if self.ending.is_set() else patience_s):
                    raise (error.final if isinstance(error, _NotYet) else lost) from None
                time.sleep(_PAUSE_S)
        self._patience_s, self._lost = 0.0 if self._readonly else PATIENCE_S, None
        if self._patience_s:
            waited_s = time.monotonic() - since
            _log.warning("%s: connected again after %.1f s; no committed change is lost", self.name, waited_s)
        return committed

    def _take_up(self) -> bool:
        """End earlier sessions of this object, take their locks, and return whether the transaction in doubt was committed."""
        self._connection.exec_driver_sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = current_setting('application_name') AND pid <> pg_backend_pid()"
        )
        for fleet in self._fleets:
            if not lock(self._connection, fleet):
                raise _NotYet(StateError(in_use(self.name, fleet)))
        status = self._status_in_doubt()
        if status is None:  # a commit in doubt may itself have begun an epoch
            for run, epoch in self._connection.execute(select(runs.c.id, runs.c.epoch).where(runs.c.id.in_(self.led))):
                if epoch > self.led[run] and self._fence is None:
                    raise StateError(
                        f"{self.name}: another fedpatch has gone on with run {run} meanwhile; end this one"
                    )
        if status == "in progress":
            remedy = "the server waits for its disk or its own standby (synchronous_standby_names); see its log"
            raise _NotYet(StateError(f"{self.name}: a commit is still in progress; {remedy}"))
        return status == "committed"

    def _status_in_doubt(self) -> str | None:
        """Return the status of the transaction whose COMMIT had no answer; None without one."""
        if self._in_doubt is None:
            return None
        try:
            query = text("SELECT pg_xact_status(CAST(CAST(:number AS text) AS xid8))")
            return str(self._connection.execute(query, {"number": self._in_doubt}).scalar())
        except DBAPIError as error:
            if error.connection_invalidated:
                raise
            return "unknown"  # a server that crashed no longer has the transaction

    def _connect_within(self, patience_s: float) -> Connection:
        """Connect; retry for `patience_s` seconds."""
        since = time.monotonic()
        while True:
            try:
                return self._connect()
            except OperationalError as error:
                if time.monotonic() - since >= patience_s:
                    raise
                cause = " ".join(str(error.orig).split())
                _log.warning("%s: cannot be reached (%s); trying again for %.0f s", self.name, cause, patience_s)
                time.sleep(_PAUSE_S)

    def _connect(self) -> Connection:
        connection = self._engine.connect()
        if self._readonly:
            return connection
        refuse_pooler(self._engine, connection, self.name)
        durable = connection.exec_driver_sql("SELECT current_setting('synchronous_commit'), current_setting('fsync')")
        synchronous, fsync = durable.one()
        self._durably = ("SET LOCAL synchronous_commit = on",) if synchronous == "off" else ()
        if fsync == "off":
            _log.warning("%s: the server has fsync = off, so a power cut loses committed changes", self.name)
        return connection

    def _migrate(self) -> None:
        def migrate(db: Connection) -> None:
            db.exec_driver_sql("SELECT pg_advisory_xact_lock(hashtextextended('fedpatch tables', 0))")
            version = _version(db, self.name)
            if version == SCHEMA_VERSION:
                return
            if version == 0:
                METADATA.create_all(db)
                db.exec_driver_sql("CREATE TABLE registry_version (version INTEGER NOT NULL)")
                db.execute(text("INSERT INTO registry_version VALUES (:version)"), {"version": SCHEMA_VERSION})
                return
            db.exec_driver_sql(script(version))
            db.execute(text("UPDATE registry_version SET version = :version"), {"version": SCHEMA_VERSION})

        if _version(self._connection, self.name) != SCHEMA_VERSION:
            self._transaction(migrate)


class _NotYet(Exception):
    """A lock or transaction of the earlier connection is not over yet; `final` is raised if it does not end in time."""

    def __init__(self, final: StateError) -> None:
        super().__init__(str(final))
        self.final = final


def make_engine(url: str, name: str = "fedpatch", **arguments: Any) -> Engine:
    """Return an engine whose sessions have a name of their own, by which a successor can end them.

    Args:
        name: Beginning of the sessions' name.
        arguments: Arguments of the connection in place of the usual ones.

    Raises:
        UsageError: psycopg is not installed, or the URL cannot be used.
    """
    arguments = {**_CONNECT_ARGS, "application_name": f"{name} {secrets.token_hex(4)}", **arguments}
    try:
        return create_engine(
            make_url(url).set(drivername="postgresql+psycopg"),
            poolclass=NullPool,
            isolation_level="AUTOCOMMIT",
            connect_args=arguments,
        )
    except ModuleNotFoundError:
        raise UsageError(f"{url}: needs psycopg; pip install 'fedpatch[postgresql]'") from None
    except (ArgumentError, ValueError):
        raise UsageError(
            f"{url}: is no URL of a PostgreSQL database; write one such as postgresql://USER@HOST/NAME"
        ) from None


def _version(db: Connection, name: str) -> int:
    """Return the version of the tables; 0 without any."""
    found = db.exec_driver_sql("SELECT to_regclass('registry_version') IS NULL, to_regclass('runs') IS NULL").one()
    if found[0]:
        if not found[1]:
            raise StateError(f"{name}: has tables that are not fedpatch's; use an empty database")
        return 0
    version = db.exec_driver_sql("SELECT max(version) FROM registry_version").scalar() or 0
    if problem := version_problem(version):
        remedy = "use that one, or another database" if version > SCHEMA_VERSION else "use another database"
        raise StateError(f"{name}: {problem}; {remedy}")
    return int(version)
