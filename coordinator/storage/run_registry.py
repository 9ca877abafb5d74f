"""Runs, their rounds and devices, in one SQLite file that survives a power cut.

Every method is one transaction, on the disk when it returns (WAL, synchronous=FULL). One thread at a time may use a
Registry; other processes may read the file meanwhile. Times are unix seconds, passed in.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from fedpatch.coordinator.rounds.known_devices import DRAINED, QUARANTINED
from fedpatch.coordinator.rounds.run_records import DeviceInfo, RoundRecord, RunInfo
from fedpatch.coordinator.storage.database import keep_copy, open_database, rebuild_hint
from fedpatch.coordinator.storage.migrations import COUNTERS
from fedpatch.coordinator.storage.quarantine_table import HoldsTable
from fedpatch.coordinator.storage.rounds_table import RoundLedger
from fedpatch.coordinator.storage.run_journal import Known, RunHistory, RunJournal, journals, read_journal
from fedpatch.coordinator.storage.sqlite_table import Tables, count_change
from fedpatch.shared.errors import UsageError, unknown_name

REGISTRY_FILE = "registry.sqlite3"
LAST = "last"
_RUN = "id, created_at, task, strategy, private, settings, schema, epoch, status, stopped_because, user_accuracy, model"
_DEVICE = f"id, fleet, first_seen, last_seen, online, version, tasks, {', '.join(COUNTERS)}, last_reason"
_DEVICES = (
    f"SELECT {_DEVICE}, coalesce("  # our columns  # nosec B608
    "(SELECT count FROM offences WHERE (fleet, id) = (devices.fleet, devices.id)), 0) AS offences"
    " FROM devices ORDER BY id, fleet"
)
_FORGET = (
    "DELETE FROM devices WHERE fleet = :fleet AND id IN (SELECT id FROM devices WHERE fleet = :fleet AND invited = 0"
    " AND id NOT IN (SELECT id FROM holds WHERE fleet = :fleet) ORDER BY last_seen"
    " LIMIT max(0, (SELECT count(*) FROM devices WHERE fleet = :fleet) - :most))"
)

_log = logging.getLogger("fedpatch.registry")


@dataclass(frozen=True)
class Sighting:
    """A presence that was heard."""

    device: str
    now: float
    online: bool
    version: str
    tasks: tuple[str, ...]


class Registry(Tables):
    """The registry in the file `path`, made where absent.

    With `readonly` nothing is made or changed, and an absent file is a UsageError. Raises StateError for a file that is
    damaged, foreign or of a newer version, and wherever the disk refuses. `rounds` is what it knows of rounds,
    `holds` which devices are held back.
    """

    def __init__(self, path: Path, *, readonly: bool = False) -> None:
        db = open_database(path, readonly)
        super().__init__(db, path)
        self.journal = RunJournal(path.parent, self.known)
        self.rounds = RoundLedger(self._db, path, self.journal)
        self.holds = HoldsTable(self._db, path)
        if not readonly:
            self._begin_journals()
            if db.is_copy:
                self.restore()

    def close(self) -> None:
        """Release the file."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def create_run(
        self,
        *,
        created_at: float,
        task: str,
        strategy: str,
        private: str,
        settings: Mapping[str, Any],
        schema: str,
        suffix: str | None = None,
    ) -> RunInfo:
        """Add a running run of epoch 1 under a new id, the time and a random `suffix`.

        `settings` must hold no secret; `schema` is a digest.
        """
        # The random end tells runs apart on a machine whose clock stands still or starts in 1970.
        run = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(created_at))}-{suffix or secrets.token_hex(3)}"
        row = (run, created_at, task, strategy, private, json.dumps(dict(settings), allow_nan=False), schema)
        with self._change() as db:
            db.execute(
                "INSERT INTO runs (id, created_at, task, strategy, private, settings, schema, epoch, status, changes)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, 1, 'running', 1)",
                row,
            )
        keep_copy(self._db, self.path)
        self._note_run(run)
        return self.run(run)

    def next_epoch(self, run: str) -> int:
        """Take the next epoch of a run, for whoever carries it on: what answers an older one is refused."""
        epoch = self._change_run(run, "epoch = epoch + 1")
        keep_copy(self._db, self.path)  # an older copy would give out this epoch a second time
        self._note_run(run)
        return epoch

    def finish_run(self, run: str, *, stopped_because: str, user_accuracy: float | None, model: str | None) -> None:
        """Write down how a run ended; its status follows from `stopped_because` (as in records.RunSummary)."""
        status = stopped_because if stopped_because in ("interrupted", "failed") else "finished"
        columns = "status = ?, stopped_because = ?, user_accuracy = ?, model = ?"
        self._change_run(run, columns, status, str(stopped_because), user_accuracy, model)
        keep_copy(self._db, self.path)
        self._note_run(run)

    def reopen(self, run: str) -> None:
        """Mark a run that ended as running again."""
        self._change_run(run, "status = 'running', stopped_because = NULL")
        self._note_run(run)

    def restore(self) -> list[str]:
        """Take over what the journals know and this registry does not: runs, records, epochs, ends; returns the runs' ids.

        For a registry that was rebuilt, or replaced by its copy. What it has of a run whose journal lags is newer, and stays.
        """
        found = []
        for path in journals(self.path.parent):
            try:
                history = read_journal(path)
            except OSError as error:
                _log.warning("%s: cannot be read: %s", path, error.strerror)
                continue
            if history.damaged_lines:
                lines = ", ".join(map(str, history.damaged_lines))
                _log.warning("%s: damaged in line %s, which is left out", path, lines)
            if history.run is not None and history.run.id == path.parent.name:
                found.append((history.run, history))
        # Runs are listed by the order in which they were written down.
        for run, history in sorted(found, key=lambda one: (one[0].created_at, one[0].id)):
            self._restore_run(run, history)
        keep_copy(self._db, self.path)
        return [run.id for run, _ in found]

    def newest(self, fleet: str) -> RunInfo | None:
        """The newest run of a fleet. Unless it is `finished`, its coordinator is at work, was killed or stopped, or failed."""
        return next((run for run in self.runs() if run.settings.get("fleet") == fleet), None)

    def abandon_running(self, fleet: str) -> None:
        """Runs of a fleet that were cut short are over; called by whoever holds the fleet, so none is at work."""
        left = [(run.id,) for run in self.runs() if run.status == "running" and run.settings.get("fleet") == fleet]
        with self._change() as db:
            sql = "UPDATE runs SET status = 'interrupted', stopped_because = 'interrupted', changes = changes + 1"
            db.executemany(f"{sql} WHERE id = ?", left)
        for (run,) in left:
            self._note_run(run)

    def run(self, name: str) -> RunInfo:
        """The run with that id, or whose id alone begins so, or the newest for "last"; UsageError if there is none."""
        runs = self.runs()
        if not runs:
            raise UsageError(f"there are no runs in {self.path.parent} yet")
        if name == LAST:
            return runs[0]
        found = [one for one in runs if one.id == name] or [one for one in runs if name and one.id.startswith(name)]
        if len(found) > 1:
            raise UsageError(
                f"run {name!r} could be any of {', '.join(one.id for one in found[:5])}; write more of the id"
            )
        if not found:
            raise unknown_name("run", name, [LAST, *(one.id for one in runs[:20])])
        return found[0]

    def records_as_written(self, run: str) -> list[RoundRecord]:
        """The records of a run, by round; where the registry's differ from those of the journal, which have checksums, those.

        Each difference is logged as a warning. A journal that lags is not asked.
        """
        known = self.known(run)
        records = {one.round: one for one in known.records}
        try:
            history = read_journal(self.journal.path(run))
        except OSError:
            return list(records.values())
        if history.changes < known.changes:
            return list(records.values())
        last = max(records, default=0)
        for number, record in sorted(history.records.items()):
            if number <= last and records.get(number) != record:
                _log.warning(
                    "%s: the record of round %d is not what was written; shown is that of %s. %s",
                    *(self.path, number, self.journal.path(run), rebuild_hint(self.path)),
                )
                records[number] = record
        return [record for _, record in sorted(records.items())]

    def runs(self) -> list[RunInfo]:
        """All runs, the newest first."""
        rows = self._read(f"SELECT {_RUN} FROM runs ORDER BY number DESC")  # our columns  # nosec B608
        return [RunInfo(**{**row, "settings": self._json(row["settings"], dict)}) for row in rows]

    def seen_devices(self, fleet: str, sightings: Iterable[Sighting], most: int | None = None) -> None:
        """Note devices' presences, in one transaction; one that goes keeps what it had said of itself.

        Devices are names within `fleet`: another fleet's device of that name is another device.
        Of devices that were never asked for anything, those that were not heard for longest are forgotten where there are more
        than `most` in all: whoever invents names does not fill the disk.
        """
        with self._change() as db:
            for one in sightings:
                db.execute(
                    "INSERT INTO devices (id, fleet, first_seen, last_seen, online, version, tasks)"
                    " VALUES (:id, :fleet, :now, :now, :online, :version, :tasks) ON CONFLICT (fleet, id) DO UPDATE SET"
                    " last_seen = :now, online = :online,"
                    " version = iif(:online, :version, version), tasks = iif(:online, :tasks, tasks)",
                    {**asdict(one), "id": one.device, "fleet": fleet, "tasks": json.dumps(list(one.tasks))},
                )
            if most is not None:
                db.execute(_FORGET, {"fleet": fleet, "most": most})

    def count(self, fleet: str, *counts: tuple[str, str, str] | tuple[str, str, str, int]) -> None:
        """Add one, or a fourth value, to a counter (registry_tables.COUNTERS) of a device, for each (device, counter, reason).

        `fleet` must have seen it. A reason is kept as the device's last. Many at once are one wait for the disk.
        """
        for _, what, *_ in counts:
            if what not in COUNTERS:
                raise ValueError(f"{what!r} is no counter (known: {', '.join(COUNTERS)})")
        with self._change() as db:
            for device, what, reason, *times in counts:
                db.execute(
                    # `what` is of a closed set of columns; everything else is bound.
                    f"UPDATE devices SET {what} = {what} + :times,"  # nosec B608
                    " last_reason = iif(:reason = '', last_reason, :reason) WHERE (fleet, id) = (:fleet, :id)",
                    {"fleet": fleet, "id": device, "reason": str(reason), "times": times[0] if times else 1},
                )

    def devices(self) -> list[DeviceInfo]:
        """All devices ever seen, by id, and by fleet where several have one of that id."""
        holds = self.holds.all()
        found = []
        for row in self._read(_DEVICES):
            held = holds.get((row["fleet"], row["id"]), {})
            known = {**row, "online": bool(row["online"]), "tasks": tuple(self._json(row["tasks"], list))}
            found.append(DeviceInfo(**known, quarantined=held.get(QUARANTINED), drained=held.get(DRAINED)))
        return found

    def open_rounds(self, fleet: str) -> dict[str, int]:
        """Runs of a fleet that did not come to their end and can be resumed, each with the round that was open."""
        rows = self._read("SELECT run, round FROM open_rounds")
        left = {run.id for run in self.runs() if run.status != "finished" and run.settings.get("fleet") == fleet}
        return {row["run"]: row["round"] for row in rows if row["run"] in left}

    def changes(self, run: str) -> int:
        """The number of a run's last change; 0 for a run that is not here."""
        return next((int(row["changes"]) for row in self._read("SELECT changes FROM runs WHERE id = ?", (run,))), 0)

    def known(self, run: str) -> Known:
        """All of a run; `run` is its id."""
        return Known(self.run(run), self.rounds.records(run), self.changes(run))

    def _restore_run(self, run: RunInfo, history: RunHistory) -> None:
        """All of a run, as its journal has it; an open round that is over by now, and rounds rolled back, are forgotten.

        A journal with damaged lines makes no round forgotten. Of a journal that lags only records are taken that the registry
        lacks before its last one.
        """
        lags = history.changes < self.changes(run.id)
        values = {
            **asdict(run),
            "settings": json.dumps(dict(run.settings), allow_nan=False),
            "changes": history.changes,
        }
        changed = ", ".join(f"{name} = excluded.{name}" for name in values if name not in ("id", "epoch"))
        rows = [(run.id, one.round, json.dumps(one.to_dict(), allow_nan=False)) for one in history.records.values()]
        last = "(SELECT max(round) FROM rounds WHERE run = ?1)"
        with self._change() as db:
            db.execute(
                f"INSERT INTO runs ({', '.join(values)}) VALUES (:{', :'.join(values)})"  # our columns  # nosec B608
                f" ON CONFLICT (id) DO UPDATE SET {changed}, epoch = max(epoch, excluded.epoch)"
                " WHERE excluded.changes >= changes",
                values,
            )
            if lags:
                db.executemany(f"INSERT OR IGNORE INTO rounds SELECT ?1, ?2, ?3 WHERE ?2 < {last}", rows)  # nosec B608
            else:
                sql = (
                    "INSERT INTO rounds (run, round, record) VALUES (?, ?, ?)"
                    " ON CONFLICT (run, round) DO UPDATE SET record = excluded.record"
                )
                db.executemany(sql, rows)
                if history.forgotten_after is not None and not history.damaged_lines:
                    db.execute("DELETE FROM rounds WHERE run = ? AND round > ?", (run.id, history.forgotten_after))
            over = f"(SELECT 1 FROM open_rounds WHERE run = ?1 AND round <= {last})"  # nosec B608
            for table in ("acceptances", "updates", "open_rounds"):
                db.execute(f"DELETE FROM {table} WHERE run = ?1 AND EXISTS {over}", (run.id,))  # nosec B608

    def _begin_journals(self) -> None:
        """Give a run that has none its journal: one of an earlier version, or whose journal was deleted."""
        for run in self.runs():
            journal = self.journal.path(run.id)
            if journal.parent.is_dir() and not journal.exists():
                self.journal.bring_up_to_date(run.id)

    def _note_run(self, run: str) -> None:
        """Write the run's row into its journal."""
        self.journal.write_run(self.run(run), self.changes(run))

    def _change_run(self, run: str, columns: str, *values: object) -> int:
        """Sets `columns` of the run, and returns its epoch; UsageError for one that is not here."""
        with self._change() as db:
            count_change(db, run)
            sql = f"UPDATE runs SET {columns} WHERE id = ? RETURNING epoch"  # our columns  # nosec B608
            return int(db.execute(sql, (*values, run)).fetchone()[0])
