"""The registry: runs, their rounds and devices in one SQLite file that survives a power cut.

Each method is one transaction, on disk when it returns (WAL, synchronous=FULL). One thread at a time may use a Registry; other
processes may read the file meanwhile. Times are Unix seconds.
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
    """A presence of a device, with the time of its arrival."""

    device: str
    now: float
    online: bool
    version: str
    tasks: tuple[str, ...]


class Registry(Tables):
    """The registry in a file.

    Args:
        path: Path of the file. It is created where it is missing, unless `readonly`.
        readonly: Change nothing.

    Attributes:
        rounds: The tables of rounds.
        holds: The tables of held devices.

    Raises:
        UsageError: The file is missing, with `readonly`.
        StateError: The file is damaged, foreign or of a newer version, or the disk refused.

    Example:
        >>> with Registry(Path("fedpatch-state/registry.sqlite3"), readonly=True) as registry:  # doctest: +SKIP
        ...     [run.id for run in registry.runs()]
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
        run: str | None = None,
    ) -> RunInfo:
        """Add a run of epoch 1 with the status "running"; its id has the time and a random suffix, unless it is given.

        Args:
            created_at: Unix time, in seconds.
            task: Name of the task.
            strategy: Name of the strategy.
            private: The patch policy.
            settings: Public settings, without secrets.
            schema: Digest of the whole model's schema.
            suffix: Random hex digits.
            run: The id: that of another coordinator's run, of which a relay plays rounds.
        """
        # The random end distinguishes runs on a machine whose clock stands still or starts in 1970.
        run = run or f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(created_at))}-{suffix or secrets.token_hex(3)}"
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
        """Return the next epoch of a run; messages of earlier epochs are refused from now on."""
        epoch = self._change_run(run, "epoch = epoch + 1")
        keep_copy(self._db, self.path)  # an older copy would give out this epoch a second time
        self._note_run(run)
        return epoch

    def finish_run(self, run: str, *, stopped_because: str, user_accuracy: float | None, model: str | None) -> None:
        """Write the end of a run; its status follows from `stopped_because`.

        Args:
            run: Name of the run.
            stopped_because: See run_records.RunSummary.
            user_accuracy: Its user accuracy; None without one.
            model: Path of the exported model; None without one.
        """
        status = stopped_because if stopped_because in ("interrupted", "failed") else "finished"
        columns = "status = ?, stopped_because = ?, user_accuracy = ?, model = ?"
        self._change_run(run, columns, status, str(stopped_because), user_accuracy, model)
        keep_copy(self._db, self.path)
        self._note_run(run)

    def reopen(self, run: str) -> None:
        """Set the status of a run to "running" again."""
        self._change_run(run, "status = 'running', stopped_because = NULL")
        self._note_run(run)

    def restore(self) -> list[str]:
        """Copy data that this registry lacks from the journals (runs, records, epochs, ends); return the ids of the runs.

        Used after a rebuild or a restored copy. The registry's data of a run whose journal lags is newer, and stays.
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
        """Return the newest run of a fleet.

        Unless it is `finished`, its coordinator is at work, was stopped or killed, or failed.
        """
        return next((run for run in self.runs() if run.settings.get("fleet") == fleet), None)

    def abandon_running(self, fleet: str) -> None:
        """Set the runs of a fleet that are "running" to "interrupted". The caller has locked the fleet, so none is at work."""
        left = [(run.id,) for run in self.runs() if run.status == "running" and run.settings.get("fleet") == fleet]
        with self._change() as db:
            sql = "UPDATE runs SET status = 'interrupted', stopped_because = 'interrupted', changes = changes + 1"
            db.executemany(f"{sql} WHERE id = ?", left)
        for (run,) in left:
            self._note_run(run)

    def run(self, name: str) -> RunInfo:
        """Return the run with that id, or the only one whose id begins so, or the newest for "last".

        Raises:
            UsageError: There is no such run, or there are several.
        """
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
        """Return the records of a run, by round.

        If registry and journal differ, the journal's record is returned, since it has a checksum, and a warning is logged. A
        journal that lags is not used.
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
        """Return all runs, the newest first."""
        rows = self._read(f"SELECT {_RUN} FROM runs ORDER BY number DESC")  # our columns  # nosec B608
        return [RunInfo(**{**row, "settings": self._json(row["settings"], dict)}) for row in rows]

    def seen_devices(self, fleet: str, sightings: Iterable[Sighting], most: int | None = None) -> None:
        """Note presences in one transaction; a last will leaves the device's data as they were.

        A device name belongs to its fleet: the same name in another fleet is another device. So that invented names do not fill
        the disk, devices that were never invited are deleted beyond `most`, those with the oldest presence first.

        Args:
            fleet: Name of the fleet.
            sightings: The presences.
            most: Greatest number of devices; None for no limit.
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
        """Add to counters of devices (registry_tables.COUNTERS), all in one transaction.

        `fleet` must have seen the devices. The reason is kept as the device's last one.

        Args:
            fleet: Name of the fleet.
            counts: Tuples of device, counter, reason and optionally the number to add (1).
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
        """Return all devices ever seen, by id and fleet."""
        holds = self.holds.all()
        found = []
        for row in self._read(_DEVICES):
            held = holds.get((row["fleet"], row["id"]), {})
            known = {**row, "online": bool(row["online"]), "tasks": tuple(self._json(row["tasks"], list))}
            found.append(DeviceInfo(**known, quarantined=held.get(QUARANTINED), drained=held.get(DRAINED)))
        return found

    def open_rounds(self, fleet: str) -> dict[str, int]:
        """Return the runs of a fleet that can be resumed, each with the number of its open round."""
        rows = self._read("SELECT run, round FROM open_rounds")
        left = {run.id for run in self.runs() if run.status != "finished" and run.settings.get("fleet") == fleet}
        return {row["run"]: row["round"] for row in rows if row["run"] in left}

    def changes(self, run: str) -> int:
        """Return the number of a run's last change; 0 for an unknown run."""
        return next((int(row["changes"]) for row in self._read("SELECT changes FROM runs WHERE id = ?", (run,))), 0)

    def known(self, run: str) -> Known:
        """Return the data of a run for its journal."""
        return Known(self.run(run), self.rounds.records(run), self.changes(run))

    def _restore_run(self, run: RunInfo, history: RunHistory) -> None:
        """Copy the data of a run from its journal; a completed open round and rolled-back rounds are deleted.

        A journal with damaged lines deletes no round. From a journal that lags, only records are copied that the registry lacks
        before its last one.
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
            # Carried work that was noted between two rounds may have entered a version that only the journal knows.
            noted = "EXISTS (SELECT 1 FROM open_rounds WHERE run = ?1)"
            db.execute(f"DELETE FROM carried_work WHERE run = ?1 AND (EXISTS {over} OR NOT {noted})", (run.id,))  # nosec B608
            db.execute(f"DELETE FROM updates WHERE run = ?1 AND NOT {noted}", (run.id,))  # nosec B608
            for table in ("acceptances", "updates", "open_rounds"):
                db.execute(f"DELETE FROM {table} WHERE run = ?1 AND EXISTS {over}", (run.id,))  # nosec B608

    def _begin_journals(self) -> None:
        """Write a journal for each run without one: a run of an earlier version, or with a deleted journal."""
        for run in self.runs():
            journal = self.journal.path(run.id)
            if journal.parent.is_dir() and not journal.exists():
                self.journal.bring_up_to_date(run.id)

    def _note_run(self, run: str) -> None:
        """Write the run's row to its journal."""
        self.journal.write_run(self.run(run), self.changes(run))

    def _change_run(self, run: str, columns: str, *values: object) -> int:
        """Set columns of a run and return its epoch; UsageError for an unknown run."""
        with self._change() as db:
            count_change(db, run)
            sql = f"UPDATE runs SET {columns} WHERE id = ? RETURNING epoch"  # our columns  # nosec B608
            return int(db.execute(sql, (*values, run)).fetchone()[0])
