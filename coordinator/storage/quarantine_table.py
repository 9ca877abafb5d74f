"""The tables of held devices and offences in the registry: quarantine and maintenance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fedpatch.coordinator.rounds.known_devices import DRAINED, QUARANTINED
from fedpatch.coordinator.rounds.run_records import Hold
from fedpatch.coordinator.storage.database import keep_copy
from fedpatch.coordinator.storage.sqlite_table import Tables


class HoldsTable(Tables):
    """The held devices. Each method is one transaction, on disk when it returns. Times are Unix seconds.

    Call `keep` once after holds were put or lifted.
    """

    def put(self, fleet: str, device: str, kind: str, reason: str, now: float) -> bool:
        """Hold a device back.

        Args:
            fleet: Name of the fleet.
            device: The device.
            kind: "quarantined" or "drained".
            reason: The reason, which is shown.
            now: Unix time, in seconds.

        Returns:
            False if the device has a hold of that kind already, which stays as it is.
        """
        with self._change() as db:
            sql = "INSERT OR IGNORE INTO holds (fleet, id, kind, reason, since) VALUES (?, ?, ?, ?, ?) RETURNING 1"
            return bool(db.execute(sql, (fleet, device, kind, reason, now)).fetchall())

    def lift(self, fleet: str, device: str, kind: str) -> bool:
        """End a hold; the end of a quarantine also deletes the offences of the device.

        Args:
            fleet: Name of the fleet.
            device: The device.
            kind: "quarantined" or "drained".

        Returns:
            False if there was no such hold.
        """
        key = (fleet, device)
        with self._change() as db:
            if kind == QUARANTINED:
                db.execute("DELETE FROM offences WHERE (fleet, id) = (?, ?)", key)
            sql = "DELETE FROM holds WHERE (fleet, id, kind) = (?, ?, ?) RETURNING 1"
            return bool(db.execute(sql, (*key, kind)).fetchall())

    def offend(self, fleet: str, offences: Mapping[str, tuple[int, str]]) -> None:
        """Add offences: by device, their number and the last one."""
        sql = (
            "INSERT INTO offences (fleet, id, count, last) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (fleet, id) DO UPDATE SET count = count + excluded.count, last = excluded.last"
        )
        with self._change() as db:
            db.executemany(sql, [(fleet, device, count, last) for device, (count, last) in offences.items()])

    def forgive(self, fleet: str, devices: Iterable[str]) -> None:
        """Delete the offences of devices."""
        with self._change() as db:
            db.executemany("DELETE FROM offences WHERE (fleet, id) = (?, ?)", [(fleet, device) for device in devices])

    def offences(self, fleet: str) -> dict[str, int]:
        """Return the number of offences by device."""
        rows = self._read("SELECT id, count FROM offences WHERE fleet = ?", (fleet,))
        return {row["id"]: row["count"] for row in rows}

    def last_offences(self, fleet: str) -> dict[str, str]:
        """Return the last offence by device."""
        return {row["id"]: row["last"] for row in self._read("SELECT id, last FROM offences WHERE fleet = ?", (fleet,))}

    def held(self, fleet: str) -> dict[str, str]:
        """Return the held devices with the kind of the hold; for a device with both, "quarantined"."""
        rows = self._read("SELECT id, kind FROM holds WHERE fleet = ?", (fleet,))
        drained = {row["id"]: DRAINED for row in rows if row["kind"] == DRAINED}
        return drained | {row["id"]: QUARANTINED for row in rows if row["kind"] == QUARANTINED}

    def all(self) -> dict[tuple[str, str], dict[str, Hold]]:
        """Return all holds by (fleet, device) and kind."""
        found: dict[tuple[str, str], dict[str, Hold]] = {}
        for row in self._read("SELECT fleet, id, kind, reason, since FROM holds"):
            found.setdefault((row["fleet"], row["id"]), {})[row["kind"]] = Hold(row["reason"], row["since"])
        return found

    def of_nobody(self) -> list[str]:
        """Return the names of held devices that were never seen."""
        known = "SELECT 1 FROM devices WHERE (devices.fleet, devices.id) = (holds.fleet, holds.id)"
        rows = self._read(f"SELECT DISTINCT id FROM holds WHERE NOT EXISTS ({known}) ORDER BY id")  # nosec B608
        return [row["id"] for row in rows]

    def keep(self) -> None:
        """Update the registry's copy, so that no hold is lost with a damaged file."""
        keep_copy(self._db, self.path)

    def version(self) -> int:
        """Return a number that changes when another process has changed the file (SQLite's data_version)."""
        return int(self._read("PRAGMA data_version")[0]["data_version"])
