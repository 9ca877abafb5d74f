"""The epoch of a fleet's leader in PostgreSQL, which the next leader raises, and the lock that a leader holds."""

from __future__ import annotations

from sqlalchemy import Connection, func, select, text

from fedpatch.coordinator.storage.database.tables import leaders, runs
from fedpatch.coordinator.storage.database.transactions import insert

LEADER_LOCK = "fedpatch fleet "
HELD_BY_ANOTHER = text(
    "SELECT EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted AND mode = :mode AND objsubid = 1"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND pid <> pg_backend_pid()"
    " AND ((CAST(classid AS bigint) << 32) | CAST(objid AS bigint)) = hashtextextended(:name, 0)) AS held"
)
"""The query tells whether another session has an advisory lock in this database; two columns hold the key's 64 bits."""
_HIGHEST_OF_RUNS = select(func.coalesce(func.max(runs.c.epoch), 0)).scalar_subquery()


def lock(db: Connection, fleet: str) -> bool:
    """Try to take the advisory lock of a fleet for a session; return whether it has it."""
    query = text("SELECT pg_try_advisory_lock(hashtextextended(:name, 0))")
    return bool(db.execute(query, {"name": LEADER_LOCK + fleet}).scalar())


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
        epoch: Epoch of the former leader.
        present: The present epoch.
    """
    return (
        f"{name}: another coordinator leads fleet {fleet!r} (epoch {present}, this one had {epoch}); nothing of this one is "
        "written any more; start it again as a standby"
    )
