"""Who leads by reach of the broker: a leader without a broker for BROKERLESS_S gives the lead up to a standby that reaches it.

A standby tells by a shared advisory lock in PostgreSQL that it reaches the broker. It takes the lead only while it does. So two
coordinators without a broker do not pass the lead to and fro.
"""

from __future__ import annotations

from sqlalchemy import Connection, text

from fedpatch.coordinator.storage.database.leader_epoch import HELD_BY_ANOTHER
from fedpatch.shared.errors import LeadershipGivenUp

BROKERLESS_S = 30.0
"""Seconds without a broker after which a leader lets a standby that reaches the broker take over."""
REACHES_BROKER = "ShareLock"
"""Mode of the lock of a standby that reaches the broker."""
_LOCK = "fedpatch broker "
_TELL = {
    True: text("SELECT pg_try_advisory_lock_shared(hashtextextended(:name, 0))"),
    False: text("SELECT NOT pg_advisory_unlock_shared(hashtextextended(:name, 0))"),
}


class BrokerReach:
    """Compares how this coordinator and the others of its fleet reach the broker.

    Args:
        fleet: Name of the fleet.
    """

    def __init__(self, fleet: str) -> None:
        self._fleet = fleet
        self._lost_at: float | None = None
        self._told = False

    def lost(self, now: float) -> None:
        """Note that the broker does not answer this leader; `now` is in seconds."""
        if self._lost_at is None:
            self._lost_at = now

    def found(self) -> None:
        """Note that the broker answers this leader."""
        self._lost_at = None

    def tell(self, session: Connection, *, reaches: bool) -> None:
        """Tell the leader whether this standby reaches the broker."""
        if reaches != self._told:
            self._told = bool(session.execute(_TELL[reaches], self._name).scalar())

    def session_ended(self) -> None:
        """Note that the session has ended, and with it the lock by which this standby told that it reaches the broker."""
        self._told = False

    def may_take_lead(self, session: Connection, *, reaches: bool, waits: bool) -> bool:
        """Return whether this coordinator may take a free lead.

        Args:
            reaches: Whether it reaches the broker.
            waits: Whether it is a standby that waits.
        """
        return reaches or not (waits or self._another_reaches(session))

    def give_up_if_due(self, session: Connection, now: float) -> None:
        """Raise LeadershipGivenUp if a standby shall take over.

        Args:
            session: The leader's session.
            now: The time, in seconds.
        """
        since = self._lost_at
        if since is not None and now >= since + BROKERLESS_S and self._another_reaches(session):
            raise LeadershipGivenUp(
                f"fleet {self._fleet!r}: this coordinator has had no broker for {BROKERLESS_S:.0f} s and a standby reaches "
                "it, so the standby takes over; nothing of this one is written any more"
            )

    def _another_reaches(self, session: Connection) -> bool:
        return bool(session.execute(HELD_BY_ANOTHER, {"mode": REACHES_BROKER, **self._name}).scalar())

    @property
    def _name(self) -> dict[str, str]:
        return {"name": _LOCK + self._fleet}
