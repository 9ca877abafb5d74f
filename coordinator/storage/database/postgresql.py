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
import re
import secrets
import shlex
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from sqlalchemy import Connection, Engine, Executable, NullPool, create_engine, func, make_url, select, text
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError, SQLAlchemyError

from fedpatch.coordinator.storage.database.migrations import SCHEMA_VERSION, script
from fedpatch.coordinator.storage.database.tables import METADATA, leaders, runs
from fedpatch.coordinator.storage.database.transactions import Database, T, in_use, insert
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
_PROCESS = "SELECT pg_backend_pid()"
_RIGHTS = (
    "SELECT current_setting('transaction_read_only') = 'on', has_schema_privilege(current_schema(), 'CREATE'),"
    " has_table_privilege(to_regclass('runs'), 'INSERT')"
)
_LOCK = "fedpatch fleet "
HELD_BY_ANOTHER = text(
    "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted AND mode = :mode AND objsubid = 1"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND pid <> pg_backend_pid()"
    " AND ((CAST(classid AS bigint) << 32) | CAST(objid AS bigint)) = hashtextextended(:name, 0)) AS held"
)
"""The query tells whether another session has an advisory lock in this database; two columns hold the key's 64 bits."""
# The server ends the session of a process a moment after the process has ended.
_LOCK_PAUSES_S = (0.05, 0.2, 1.0)
_HIGHEST_OF_RUNS = select(func.coalesce(func.max(runs.c.epoch), 0)).scalar_subquery()
_UNDONE = {"40001", "40P01"}  # serialization failure, deadlock: the server has undone the transaction
_UNDONE_TIMES = 5
_CONNECTIONS = "end other clients of the server, or raise its max_connections"
_GRANT = "have its owner grant this user USAGE and CREATE on the schema, and ALL on its tables"
_OTHER_TABLES = (
    "its tables are gone or changed; restore a backup, or use an empty database and `fedpatch runs --rebuild`"
)
_NO_PATH = "check the network and firewalls between this machine and the server"
_IN_URL = "correct the options in the URL"
_PRIMARY = "use the address of the primary server, or take default_transaction_read_only from this user and database"
_DAMAGED = "the server's files are damaged: see its log, and restore a backup"
_REMEDIES = {
    "42501": _GRANT,
    "25006": f"it was opened to read, or the server is a standby: {_PRIMARY}",
    "08P01": "if a pooler refuses this, use the address of the server itself",
    "53100": "make room on the server's disk",
    "53200": "give the server more memory, or lower its work_mem and max_connections",
    "53300": _CONNECTIONS,
    "58030": "check the server's disk and its log",
    "22P05": "make a database with the encoding UTF8 (createdb -T template0 -E UTF8)",
    "42P01": _OTHER_TABLES,
    "42703": _OTHER_TABLES,
    "55P03": "take lock_timeout from this user and database, or raise it",
    "57014": "take statement_timeout from this user and database, or raise it",
    "XX001": _DAMAGED,
    "XX002": _DAMAGED,
}
# psycopg gives no code for a connection that the server refuses, only its words: patterns of these.
_REFUSALS = {
    "password authentication failed|no password supplied": "correct the password in ~/.pgpass (mode 0600) or PGPASSWORD",
    "Peer authentication failed": "name a host in the URL (USER@localhost), or run as the system user of this name",
    "Ident authentication failed": "let this user in with a password (scram-sha-256) in the server's pg_hba.conf",
    "is not permitted to log in": "let it log in (ALTER ROLE NAME LOGIN), or correct the user name in the URL",
    "permission denied for database": "have its owner grant this user CONNECT on the database",
    r"no pg_hba\.conf entry": "let this user and this address in with a line in the server's pg_hba.conf",
    "too many connections for": "raise the CONNECTION LIMIT of this database and user (ALTER DATABASE, ALTER ROLE)",
    "too many connections|too many clients|connection slots": _CONNECTIONS,
    "not currently accepting connections": "use another database in the URL: this one is a template",
    "no more connections": "end other clients of the pooler, or raise its max_client_conn",
    "unsupported startup parameter": "take `options` out of the URL, or let PgBouncer ignore it (ignore_startup_parameters)",
    "bouncer config error|no such database": "add the database to the pooler ([databases]), or correct its name in the URL",
    "database system is": "it is starting, stopping or recovering: repeat in a moment, and see the server's log",
    "certificate verify failed": "name the CA of the server's certificate in the URL (sslrootcert=FILE), and compare its "
    "dates with the clock here",
    "root certificate file": "name the CA of the server's certificate in the URL (sslrootcert=FILE)",
    "does not match host name": "use a host name of the server's certificate in the URL",
    "server does not support SSL": "turn TLS on in the server (ssl = on); sslmode in the URL requires it",
    "resolve host|translate host": "correct the host name in the URL, or its DNS entry",
    r'role ".*" does not exist': "make the user (createuser NAME), or correct the user name in the URL",
    r'database ".*" does not exist': "make the database (createdb NAME), or correct its name in the URL",
    "Connection refused": "start the server, and let it listen at this address (listen_addresses, port)",
    "No such file": "start the server, or correct the folder of its socket in the URL",
    "terminating connection": "start the server; its log has the reason",
    "closed the connection": "start the server; its log has the reason. Or correct the port: another program answers there",
    "fe80:.*Invalid argument": "name the interface of this address in the URL ([fe80::1%25eth0]), or use a host name",
    "invalid response|expected authentication request": "correct host and port in the URL: another program answers there",
    "invalid .* value|invalid connection option|unrecognized configuration parameter": _IN_URL,
    "certificate file|private key file": "correct sslcert, sslkey and sslrootcert in the URL",
    "session is read-only": _PRIMARY,
    "timeout|No route to host|Network is unreachable": _NO_PATH,
}
UNREACHABLE = "make sure that the server runs and lets this user in (a password: ~/.pgpass or PGPASSWORD)"

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
        StateError: The database cannot be reached or used, is not fedpatch's, or of a newer version.
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
        if _code(raised).startswith("23"):
            why = f"refused ({in_words(raised)}), since what it belongs to is not in this registry"
            return StateError(f"{self.name}: {why}; {self._rebuild} adds it")
        if _code(raised) == "42P01" and not self.has_tables and not journals(self.path.parent):
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
            raise StateError(f"{self.name}: cannot be used: its transactions are read-only; {_PRIMARY}")
        if not (may_write if self.has_tables else may_make):
            raise StateError(f"{self.name}: cannot be used: this user lacks rights; {_GRANT}")

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
        held = self.read(HELD_BY_ANOTHER.bindparams(mode="ExclusiveLock", name=_LOCK + fleet))
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
        url: URL of the database.
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
        raise UsageError(f"{url}: is no URL of a PostgreSQL database such as postgresql://USER@HOST/NAME") from None


def in_words(error: SQLAlchemyError) -> str:
    """Return the server's words on one line."""
    return " ".join(str(getattr(error, "orig", None) or error).split())


def remedy_of(error: SQLAlchemyError) -> str:
    """Return the remedy for an error of the server, by its code or else by its words."""
    words = in_words(error)
    code = _code(error)
    known = _REMEDIES.get(code) or next((one for part, one in _REFUSALS.items() if re.search(part, words)), None)
    return known or (UNREACHABLE if not code else "see the server's log")


def _code(error: SQLAlchemyError) -> str:
    return str(getattr(getattr(error, "orig", None), "sqlstate", None) or "")


def refuse_pooler(engine: Engine, session: Connection, url: str) -> None:
    """Refuse a pooler that gives each transaction another session: locks and settings of a session would be those of others.

    A pooler announces another number of a process than the server's. It keeps sessions apart if a second connection has
    another process, and the first one still its own.

    Args:
        engine: Makes the second connection.
        session: The first one, outside of a transaction; it is closed if the pooler is refused.
        url: URL of the database.

    Raises:
        StateError: The pooler does so.
    """
    driver = cast(Any, session.connection.dbapi_connection)
    own = session.exec_driver_sql(_PROCESS).scalar()
    if driver.info.backend_pid == own:
        return
    with engine.connect() as other:
        other.exec_driver_sql("BEGIN")
        try:
            apart = other.exec_driver_sql(_PROCESS).scalar() != own
            apart = apart and session.exec_driver_sql(_PROCESS).scalar() == own
        finally:
            other.exec_driver_sql("ROLLBACK")
    if not apart:
        session.close()
        raise StateError(
            f"{url}: a pooler is there that gives each transaction another session (PgBouncer: pool_mode = transaction), "
            "without which no lock of a fleet lasts; use the address of the server itself, or pool_mode = session for this "
            "database"
        )


def _version(db: Connection, name: str) -> int:
    """Return the version of the tables; 0 without any."""
    found = db.exec_driver_sql("SELECT to_regclass('registry_version') IS NULL, to_regclass('runs') IS NULL").one()
    if found[0]:
        if not found[1]:
            raise StateError(f"{name}: has tables that are not fedpatch's; use an empty database")
        return 0
    version = db.exec_driver_sql("SELECT max(version) FROM registry_version").scalar() or 0
    if version > SCHEMA_VERSION:
        remedy = "use that one, or another database"
        raise StateError(f"{name}: was written by a newer fedpatch (version {version} of the registry); {remedy}")
    return int(version)


def lock(db: Connection, fleet: str) -> bool:
    """Try to take the advisory lock of a fleet for a session; return whether it has it."""
    query = text("SELECT pg_try_advisory_lock(hashtextextended(:name, 0))")
    return bool(db.execute(query, {"name": _LOCK + fleet}).scalar())


def known_leader(db: Connection, fleet: str) -> tuple[int, str]:
    """Return epoch and name of the last leader of a fleet with standbys; 0 and "" without one, or without tables."""
    if db.exec_driver_sql("SELECT to_regclass('leaders')").scalar() is None:
        return 0, ""
    found = db.execute(select(leaders.c.epoch, leaders.c.holder).where(leaders.c.fleet == fleet)).first()
    return (0, "") if found is None else (found.epoch, found.holder)


def next_epoch(db: Connection, fleet: str, holder: str) -> int:
    """Begin the next epoch of a fleet's leaders; transactions of earlier ones are refused from now on.

    Args:
        db: The connection, whose session has the fleet's lock.
        fleet: Name of the fleet.
        holder: Name of the leader, for people.

    Returns:
        The epoch: higher than all earlier epochs of leaders and of runs. A rebuilt registry has only the epochs of runs.
    """
    row = insert(db, leaders).values(fleet=fleet, epoch=_HIGHEST_OF_RUNS + 1, holder=holder)
    changed = {"epoch": func.greatest(leaders.c.epoch, _HIGHEST_OF_RUNS) + 1, "holder": holder}
    again = row.on_conflict_do_update(index_elements=["fleet"], set_=changed)
    return int(db.execute(again.returning(leaders.c.epoch)).scalar_one())


def lost_to(name: str, fleet: str, epoch: int, present: int | None) -> str:
    """Return the message for a former leader.

    Args:
        name: Name of the database.
        fleet: Name of the fleet.
        epoch: Epoch of the former leader.
        present: The present epoch.
    """
    return (
        f"{name}: another coordinator leads fleet {fleet!r} (epoch {present}, this one had {epoch}); nothing of this one is "
        "written any more; start it again as a standby"
    )
