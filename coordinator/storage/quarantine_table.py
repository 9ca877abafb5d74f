"""Which devices are held back, and what they did: quarantine and maintenance, in the registry's file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fedpatch.coordinator.rounds.known_devices import DRAINED, QUARANTINED
from fedpatch.coordinator.rounds.run_records import Hold
from fedpatch.coordinator.storage.database import keep_copy
from fedpatch.coordinator.storage.sqlite_table import Tables


class HoldsTable(Tables):
    """Every method is one transaction, on the disk when it returns. Times are unix seconds, passed in.

    Whoever has put or lifted holds calls `keep` once after them.
    """

    def put(self, fleet: str, device: str, kind: str, reason: str, now: float) -> bool:
        """Hold a device back; False where it is already, and then reason and time stay what they were."""
        with self._change() as db:
            sql = "INSERT OR IGNORE INTO holds (fleet, id, kind, reason, since) VALUES (?, ?, ?, ?, ?) RETURNING 1"
            return bool(db.execute(sql, (fleet, device, kind, reason, now)).fetchall())

    def lift(self, fleet: str, device: str, kind: str) -> bool:
        """Hold it back no more; False where it was not. A device that is released has no offences any more."""
        key = (fleet, device)
        with self._change() as db:
            if kind == QUARANTINED:
                db.execute("DELETE FROM offences WHERE (fleet, id) = (?, ?)", key)
            sql = "DELETE FROM holds WHERE (fleet, id, kind) = (?, ?, ?) RETURNING 1"
            return bool(db.execute(sql, (*key, kind)).fetchall())

    def offend(self, fleet: str, offences: Mapping[str, tuple[int, str]]) -> None:
        """Add offences: how many by device, and what the last one was."""
        sql = (
            "INSERT INTO offences (fleet, id, count, last) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (fleet, id) DO UPDATE SET count = count + excluded.count, last = excluded.last"
        )
        with self._change() as db:
            db.executemany(sql, [(fleet, device, count, last) for device, (count, last) in offences.items()])

    def forgive(self, fleet: str, devices: Iterable[str]) -> None:
        """Forget the offences of devices."""
        with self._change() as db:
            db.executemany("DELETE FROM offences WHERE (fleet, id) = (?, ?)", [(fleet, device) for device in devices])

    def offences(self, fleet: str) -> dict[str, int]:
        """How many each device has to answer for."""
        rows = self._read("SELECT id, count FROM offences WHERE fleet = ?", (fleet,))
        return {row["id"]: row["count"] for row in rows}

    def last_offences(self, fleet: str) -> dict[str, str]:
        """What the last one of each device was."""
        return {row["id"]: row["last"] for row in self._read("SELECT id, last FROM offences WHERE fleet = ?", (fleet,))}

    def held(self, fleet: str) -> dict[str, str]:
        """The devices that are held back, and how; of one that is both, the graver."""
        rows = self._read("SELECT id, kind FROM holds WHERE fleet = ?", (fleet,))
        drained = {row["id"]: DRAINED for row in rows if row["kind"] == DRAINED}
        return drained | {row["id"]: QUARANTINED for row in rows if row["kind"] == QUARANTINED}

    def all(self) -> dict[tuple[str, str], dict[str, Hold]]:
        """Every hold, by (fleet, device) and kind."""
        found: dict[tuple[str, str], dict[str, Hold]] = {}
        for row in self._read("SELECT fleet, id, kind, reason, since FROM holds"):
            found.setdefault((row["fleet"], row["id"]), {})[row["kind"]] = Hold(row["reason"], row["since"])
        return found

    def of_nobody(self) -> list[str]:
        """Names of devices that are held back and were never seen."""
        known = "SELECT 1 FROM devices WHERE (devices.fleet, devices.id) = (holds.fleet, holds.id)"
        rows = self._read(f"SELECT DISTINCT id FROM holds WHERE NOT EXISTS ({known}) ORDER BY id")  # nosec B608
        return [row["id"] for row in rows]

    def keep(self) -> None:
        """Bring the registry's copy up to date, so that no hold is lost with a file that is damaged."""
        keep_copy(self._db, self.path)

    def version(self) -> int:
        """Another number whenever another process has changed the file (SQLite's data_version); costs next to nothing."""
        return int(self._read("PRAGMA data_version")[0]["data_version"])
