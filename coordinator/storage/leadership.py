"""Which of several coordinators leads a fleet: an advisory lock in PostgreSQL, held by a session that has no other work.

The leader uses the session once in CHECK_S. The lock ends with the session. The server ends the session of a killed leader at
once, and the session of a paused or disconnected leader when it was idle for LEASE_S. The lock alone decides nothing: a former
leader is refused by its epoch (`next_epoch`), in the database, in the keys of objects and by devices.

A leader publishes only while it leads as far as it knows (`leads`). The seconds are those of CLOCK_BOOTTIME, which goes on in a
suspended machine. No clock goes on in a frozen virtual machine: there the broker's closed connection is the sign of a gap, and
the leader asks the server before it connects again.

A leader without a broker gives its lock up to a standby that reaches the broker (coordinator.storage.lead_by_broker_reach).
"""

from __future__ import annotations

import hashlib
import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from fedpatch.coordinator.storage.boot_clock import seconds_with_suspension
from fedpatch.coordinator.storage.database.leader_epoch import known_leader, lock, lost_to, next_epoch
from fedpatch.coordinator.storage.database.pooler_refusal import refuse_pooler
from fedpatch.coordinator.storage.database.postgres_remedies import in_words, remedy_of
from fedpatch.coordinator.storage.database.postgresql import LEASE_S, make_engine
from fedpatch.coordinator.storage.lead_by_broker_reach import REACHES_BROKER, BrokerReach
from fedpatch.shared.errors import FedpatchError, LeadershipLost, StateError, UsageError

CHECK_S = 1.0
TRY_S = 0.5
"""Seconds between attempts of a standby."""
_AFTER_OUTAGE_S = 2.0
"""Seconds in which a leader may take its lock again before a standby tries."""
_LEAST_VERSION = 140_000  # idle_session_timeout
_CONNECT_ARGS = {
    "connect_timeout": 3,
    "keepalives_idle": 1,
    "keepalives_interval": 1,
    "keepalives_count": 3,
    "tcp_user_timeout": int(1000 * LEASE_S),
}
_SETTINGS = (
    f"SET idle_session_timeout = '{LEASE_S:g}s'",
    f"SET statement_timeout = '{2 * LEASE_S:g}s'",  # limits the wait for a transaction that a paused leader has open
    f"SET tcp_user_timeout = '{LEASE_S:g}s'",
    "SET tcp_keepalives_idle = 1",
    "SET tcp_keepalives_interval = 1",
    "SET tcp_keepalives_count = 3",
)
_END_EARLIER = text(
    "SELECT pg_terminate_backend(pid, 2000) FROM pg_stat_activity"
    " WHERE application_name = current_setting('application_name') AND pid <> pg_backend_pid()"
)

_SESSIONS = text(
    "SELECT (SELECT max(mode) FROM pg_locks WHERE pid = a.pid AND locktype = 'advisory' AND granted)"
    " FROM pg_stat_activity AS a WHERE application_name LIKE :name"
)
_LEADS = "ExclusiveLock"
"""Mode of the lock of the leader."""
_log = logging.getLogger("fedpatch.leader")


class Leadership:
    """The lock of one fleet; a context manager that releases it.

    Args:
        url: URL of the database.
        fleet: Name of the fleet.

    Attributes:
        holder: Name of this coordinator, for people.
        epoch: Its epoch; 0 before it leads.
        led_by: Epoch and name of the previous leader.

    Raises:
        UsageError: psycopg is not installed, or the server is too old.
        StateError: The database cannot be reached.
    """

    def __init__(self, url: str, fleet: str) -> None:
        self._url = url
        self._fleet = fleet
        self.holder = socket.gethostname()
        self.epoch = 0
        self.led_by = (0, "")
        self._engine = make_engine(url, _name(fleet), **_CONNECT_ARGS)
        self._session: Connection | None = None
        self._proved_at = self._doubted_at = 0.0
        self._reach = BrokerReach(fleet)
        self._lost: FedpatchError | None = None
        self._closing, self._wake = threading.Event(), threading.Event()
        self._on_loss: Callable[[], object] = lambda: None
        self._thread = threading.Thread(target=self._watch, name="leadership", daemon=True)
        try:
            self._session = self._connect()
        except SQLAlchemyError as error:
            raise _unusable(url, error) from error

    @property
    def leads(self) -> bool:
        """True while the server has confirmed the lock within LEASE_S and since the last `broker_lost`, as far as is known."""
        lasts = seconds_with_suspension() < self._proved_at + LEASE_S
        return self.epoch > 0 and self._lost is None and lasts and self._proved_at > self._doubted_at

    def must_lead(self) -> None:
        """Raise LeadershipLost if the lead is lost, or UsageError if the server may not be used any more."""
        if self._lost is not None:
            raise self._lost

    def broker_lost(self) -> None:
        """Note that the broker does not answer. Until the server has confirmed the lock again, `leads` is false."""
        self._doubted_at = seconds_with_suspension()
        self._reach.lost(self._doubted_at)
        self._wake.set()

    def broker_found(self) -> None:
        """Note that the broker answers."""
        self._reach.found()

    def wait(
        self,
        say: Callable[[str], None],
        ending: threading.Event,
        reaches_broker: Callable[[], bool] = lambda: True,
        *,
        again: bool = False,
    ) -> bool:
        """Wait for the lock; return whether another coordinator had it at first.

        A standby that waits takes the lock only while it reaches the broker.

        Args:
            say: Takes a message for the operator.
            ending: Set when the process shall end.
            reaches_broker: Returns whether this standby reaches the broker now; called in this thread from the second try on.
            again: Whether this coordinator has led the fleet already, so that its first try is one of a waiting standby.

        Raises:
            KeyboardInterrupt: The process shall end.
        """
        waited, since = again, time.monotonic()
        if again:
            say(f"standby of fleet {self._fleet!r}: waiting to take over")
        while not self._take(reaches=waited and reaches_broker(), waits=waited):
            if not waited:
                epoch, holder = self.led_by
                by = f"{holder} leads it (epoch {epoch})" if holder else "another coordinator leads it"
                say(f"standby of fleet {self._fleet!r}: {by}; waiting to take over")
            waited = True
            if ending.wait(TRY_S):
                raise KeyboardInterrupt
        if waited:
            say(f"taking over fleet {self._fleet!r} after {time.monotonic() - since:.0f} s as a standby")
        return waited

    def begin(self) -> bool:
        """Begin an epoch, in a database that has its tables; from now on the lock is checked once in CHECK_S.

        Returns:
            False if the server has ended the session, and the lock with it: then `wait` again.

        Raises:
            StateError: The database refuses.
        """
        try:
            if self._session is None:
                return False
            self.epoch = next_epoch(self._session, self._fleet, self.holder)
        except SQLAlchemyError as error:
            if not (isinstance(error, DBAPIError) and error.connection_invalidated):
                raise _unusable(self._url, error) from error
            _log.warning("%s: the lock is lost before the take-over (%s); trying again", self._url, in_words(error))
            self._end_session()
            return False
        self._thread.start()
        return True

    def on_loss(self, call: Callable[[], object]) -> None:
        """Have `call` called, in a thread of its own, once another coordinator has taken over."""
        self._on_loss = call
        if self._lost is not None:
            call()

    def close(self) -> None:
        """Release the lock."""
        self._closing.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(2 * LEASE_S)
        self._end_session()

    def __enter__(self) -> Leadership:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take(self, *, reaches: bool = True, waits: bool = False) -> bool:
        """Try to take the lock; connect again where the session has ended.

        Args:
            reaches: Whether this coordinator reaches the broker.
            waits: Whether it is a standby that waits.
        """
        try:
            if self._session is None:
                self._session = self._connect()
            began = seconds_with_suspension()
            self.led_by = known_leader(self._session, self._fleet)
            self._reach.tell(self._session, reaches=reaches)
            if not self._reach.may_take_lead(self._session, reaches=reaches, waits=waits):
                return False
            if lock(self._session, self._fleet):
                self._reach.tell(self._session, reaches=False)
                self._proved_at = began
                return True
        except SQLAlchemyError as error:
            _log.warning("%s: %s; trying again", self._url, in_words(error))
            self._end_session()
            time.sleep(_AFTER_OUTAGE_S)
        return False

    def _watch(self) -> None:
        """Use the session, so that the lock stays; after a lost session take the lock again, unless another leader has it."""
        while not self._closing.is_set():
            self._wake.wait(CHECK_S if self._session is not None else TRY_S)
            self._wake.clear()
            try:
                if not self._closing.is_set():
                    self._prove()
            except SQLAlchemyError as error:
                self._proved_at = 0.0
                if self._session is not None:
                    cause = in_words(error)
                    _log.warning("%s: the lock of the leader is lost (%s); taking it again", self._url, cause)
                self._end_session()
            except FedpatchError as error:  # lost, or the server may not be used any more
                self._lost = error
                self._end_session()
                self._on_loss()
                return

    def _prove(self) -> None:
        """Ask the server whether the lock is still this session's."""
        began = seconds_with_suspension()
        if self._session is None:
            self._session = self._connect()
            self._take_again(self._session)
        else:
            self._session.exec_driver_sql("SELECT 1")
        self._reach.give_up_if_due(self._session, began)
        self._proved_at = began

    def _take_again(self, session: Connection) -> None:
        session.execute(_END_EARLIER)
        present, _ = known_leader(session, self._fleet)
        # If another coordinator has the lock, it is about to begin an epoch.
        if present != self.epoch or not lock(session, self._fleet):
            raise LeadershipLost(lost_to(self._url, self._fleet, self.epoch, max(present, self.epoch + 1)))
        if known_leader(session, self._fleet)[0] != self.epoch:  # another epoch began before the lock was free
            raise LeadershipLost(lost_to(self._url, self._fleet, self.epoch, self.epoch + 1))
        _log.warning("%s: the lock of the leader is taken again", self._url)

    def _connect(self) -> Connection:
        session = self._engine.connect()
        refuse_pooler(self._engine, session, self._url)
        version = int(session.exec_driver_sql("SHOW server_version_num").scalar_one())
        if version < _LEAST_VERSION:
            session.close()
            raise UsageError(f"{self._url}: --standby needs PostgreSQL 14 or later; this is {version // 10_000}")
        for setting in _SETTINGS:
            session.exec_driver_sql(setting)
        return session

    def _end_session(self) -> None:
        session, self._session = self._session, None
        self._reach.session_ended()
        if session is not None:
            with suppress(SQLAlchemyError):
                session.close()


def leader_in_words(url: str, fleet: str) -> str:
    """Return who leads a fleet and how many coordinators wait; "" for a fleet without standbys.

    Raises:
        StateError: The database cannot be reached.
    """
    try:
        with make_engine(url).connect() as db:
            epoch, holder = known_leader(db, fleet)
            modes = db.execute(_SESSIONS, {"name": f"{_name(fleet)} %"}).scalars().all()
    except SQLAlchemyError as error:
        raise _unusable(url, error) from error
    if not epoch and not modes:
        return ""
    leads = _LEADS in modes
    leader = f"{holder or 'a coordinator without --standby'} leads" if leads else "nobody leads"
    standbys = len(modes) - leads
    blind = standbys - modes.count(REACHES_BROKER)
    no_broker = f", without the broker: {blind}" if blind else ""
    return f"{leader} fleet {fleet!r} (epoch {epoch}); standbys: {standbys}{no_broker}"


def _unusable(url: str, error: SQLAlchemyError) -> StateError:
    return StateError(f"{url}: cannot be used: {in_words(error)}; {remedy_of(error)}")


def _name(fleet: str) -> str:
    """Return the beginning of the sessions' name; PostgreSQL cuts names at 63 bytes, and a fleet's may be longer."""
    return f"fedpatch leader {hashlib.sha256(fleet.encode()).hexdigest()[:8]}"
