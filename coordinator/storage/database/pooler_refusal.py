"""The refusal of a pooler, such as PgBouncer, that gives each transaction another session."""

from __future__ import annotations

from typing import Any, cast

from sqlalchemy import Connection, Engine

from fedpatch.shared.errors import StateError

_PROCESS = "SELECT pg_backend_pid()"


def refuse_pooler(engine: Engine, session: Connection, url: str) -> None:
    """Refuse a pooler that gives each transaction another session: locks and settings of a session would be those of others.

    A pooler announces another number of a process than the server's. It keeps sessions apart if a second connection has
    another process, and the first one still its own.

    Args:
        engine: Makes the second connection.
        session: The first one, outside of a transaction; it is closed if the pooler is refused.

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
