"""The tables of held devices and offences in the registry: quarantine and maintenance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sqlalchemy import Connection, Table, and_, delete, exists, select
from sqlalchemy.sql import ColumnElement

from fedpatch.coordinator.rounds.device_record import Hold
from fedpatch.coordinator.rounds.held_devices import DRAINED, QUARANTINED
from fedpatch.coordinator.storage.database.tables import devices, holds, offences
from fedpatch.coordinator.storage.database.transactions import Tables, insert


class HoldsTable(Tables):
    """The held devices. Each method is one transaction, on disk when it returns. Times are Unix seconds.

    Call `keep` once after holds were put or lifted.
    """

    def put(self, fleet: str, device: str, kind: str, reason: str, now: float) -> bool:
        """Hold a device back.

        Args:
            kind: "quarantined" or "drained".
            reason: The reason, which is shown.
            now: Unix time, in seconds.

        Returns:
            False if the device has a hold of that kind already, which stays as it is.
        """
        row = {"fleet": fleet, "id": device, "kind": kind, "reason": reason, "since": now}

        def put(db: Connection) -> bool:
            return bool(db.execute(insert(db, holds).values(row).on_conflict_do_nothing().returning(holds.c.id)).all())

        return self._change(put)

    def lift(self, fleet: str, device: str, kind: str) -> bool:
        """End a hold; the end of a quarantine also deletes the offences of the device.

        Args:
            kind: "quarantined" or "drained".

        Returns:
            False if there was no such hold.
        """

        def lift(db: Connection) -> bool:
            if kind == QUARANTINED:
                db.execute(delete(offences).where(_is(offences, fleet, device)))
            hold = delete(holds).where(_is(holds, fleet, device), holds.c.kind == kind)
            return bool(db.execute(hold.returning(holds.c.id)).all())

        return self._change(lift)

    def offend(self, fleet: str, added: Mapping[str, tuple[int, str]]) -> None:
        """Add offences: by device, their number and the last one."""
        rows = [{"fleet": fleet, "id": device, "count": count, "last": last} for device, (count, last) in added.items()]

        def offend(db: Connection) -> None:
            new = insert(db, offences)
            changed = {"count": offences.c.count + new.excluded["count"], "last": new.excluded.last}
            db.execute(new.on_conflict_do_update(index_elements=["fleet", "id"], set_=changed), rows)

        if rows:
            self._change(offend)

    def forgive(self, fleet: str, forgiven: Iterable[str]) -> None:
        """Delete the offences of devices."""
        query = delete(offences).where(offences.c.fleet == fleet, offences.c.id.in_(list(forgiven)))
        self._change(lambda db: db.execute(query))

    def offences(self, fleet: str) -> dict[str, int]:
        """Return the number of offences by device."""
        rows = self._read(select(offences).where(offences.c.fleet == fleet))
        return {row["id"]: row["count"] for row in rows}

    def last_offences(self, fleet: str) -> dict[str, str]:
        """Return the last offence by device."""
        return {row["id"]: row["last"] for row in self._read(select(offences).where(offences.c.fleet == fleet))}

    def held(self, fleet: str) -> dict[str, str]:
        """Return the held devices with the kind of the hold; for a device with both, "quarantined"."""
        rows = self._read(select(holds).where(holds.c.fleet == fleet))
        drained = {row["id"]: DRAINED for row in rows if row["kind"] == DRAINED}
        return drained | {row["id"]: QUARANTINED for row in rows if row["kind"] == QUARANTINED}

    def all(self) -> dict[tuple[str, str], dict[str, Hold]]:
        """Return all holds by (fleet, device) and kind."""
        found: dict[tuple[str, str], dict[str, Hold]] = {}
        for row in self._read(select(holds)):
            found.setdefault((row["fleet"], row["id"]), {})[row["kind"]] = Hold(row["reason"], row["since"])
        return found

    def of_nobody(self) -> list[str]:
        """Return the names of held devices that were never seen."""
        known = exists().where(_is(devices, holds.c.fleet, holds.c.id))
        return [row["id"] for row in self._read(select(holds.c.id).distinct().where(~known).order_by(holds.c.id))]

    def keep(self) -> None:
        """Update the registry's copy, if it has one, so that no hold is lost with a damaged file."""
        self._db.keep()

    def version(self) -> int:
        """Return a number that changes when another process has changed the registry."""
        return self._db.version()


def _is(table: Table, fleet: str | ColumnElement[str], device: str | ColumnElement[str]) -> ColumnElement[bool]:
    return and_(table.c.fleet == fleet, table.c.id == device)
