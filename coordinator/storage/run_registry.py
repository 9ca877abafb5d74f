"""The registry: runs, their rounds and devices in one SQLite file that survives a power cut, or in PostgreSQL.

Each method is one transaction, on disk when it returns. One thread at a time may use a Registry; other processes may read it
meanwhile. Times are Unix seconds.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from sqlalchemy import Connection, Integer, Text, and_, bindparam, case, delete, func, select, update
from sqlalchemy.sql import ColumnElement

from fedpatch.coordinator.rounds.device_record import DeviceInfo
from fedpatch.coordinator.rounds.held_devices import DRAINED, QUARANTINED
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.rounds.run_summary import RunInfo
from fedpatch.coordinator.storage.database.migrations import COUNTERS
from fedpatch.coordinator.storage.database.opening import open_database
from fedpatch.coordinator.storage.database.registry_damage import rebuild_hint
from fedpatch.coordinator.storage.database.tables import (
    acceptances,
    carried_work,
    devices,
    holds,
    offences,
    open_rounds,
    rounds,
    runs,
    updates,
)
from fedpatch.coordinator.storage.database.transactions import Tables, insert
from fedpatch.coordinator.storage.quarantine_table import HoldsTable
from fedpatch.coordinator.storage.rounds_table import RoundsTable, save_records
from fedpatch.coordinator.storage.run_journal import Known, RunHistory, RunJournal, journals, read_journal
from fedpatch.shared.app.store_waits import StoreWaits
from fedpatch.shared.errors import StateError, UsageError, unknown_name

REGISTRY_FILE = "registry.sqlite3"
LAST = "last"
_RUN = [runs.c[one.name] for one in fields(RunInfo)]

_MORE = "more_{}"
# One statement for all counters, made and prepared once.
_COUNT = (
    update(devices)
    .where(devices.c.fleet == bindparam("in_fleet"), devices.c.id == bindparam("device"))
    .values(
        {
            **{what: devices.c[what] + bindparam(_MORE.format(what), type_=Integer) for what in COUNTERS},
            "last_reason": case(
                (bindparam("reason", type_=Text) == "", devices.c.last_reason), else_=bindparam("reason")
            ),
        }
    )
)

_log = logging.getLogger("fedpatch.registry")


@dataclass(frozen=True)
class Sighting:
    """A presence of a device, with the time of its arrival; `relay` if it is the relay of a site."""

    device: str
    now: float
    online: bool
    version: str
    tasks: tuple[str, ...]
    relay: bool = False


class Registry(Tables):
    """The registry of a state directory, in a SQLite file or in the database that the directory names.

    Args:
        path: Path of the file (coordinator.storage.database.opening). It is created where it is missing, unless `readonly`.
        readonly: Change nothing.
        patient: Retry for a while if a database in PostgreSQL cannot be reached.

    Attributes:
        rounds: The tables of rounds.
        holds: The tables of held devices.

    Raises:
        UsageError: The file is missing, with `readonly`.
        StateError: The registry is damaged, foreign or of an unusable version, or cannot be reached, or the disk refused.

    Example:
        >>> with Registry(Path("fedpatch-state/registry.sqlite3"), readonly=True) as registry:  # doctest: +SKIP
        ...     [run.id for run in registry.runs()]
    """

    def __init__(self, path: Path, *, readonly: bool = False, patient: bool = False) -> None:
        db = open_database(path, readonly=readonly, patient=patient)
        super().__init__(db)
        self.journal = RunJournal(path.parent, self.known)
        self._epoch = self._least_epoch = 0
        self.rounds = RoundsTable(db, self.journal)
        self.holds = HoldsTable(db)
        if not readonly:
            self._begin_journals()
            if db.is_copy:
                self.restore()

    @property
    def is_snapshot(self) -> bool:
        """True if later changes by other processes are not visible, as in a registry of an earlier version."""
        return self._db.is_snapshot

    def close(self) -> None:
        """Release the registry."""
        self._db.close()

    def guard(self, before_write: Callable[[], None]) -> None:
        """Call `before_write` before each change of the registry and of its journals; its exception prevents the change."""
        self._db.before_write = self.journal.before_write = before_write

    def lead(self, fleet: str, epoch: int | None = None, ending: StoreWaits | None = None) -> None:
        """Keep coordinators of other machines from a fleet whose registry is in a database, until the registry is closed.

        Args:
            epoch: Epoch of a leader with standbys: its changes raise LeadershipLost once a later one has begun.
            ending: The requests that wait; set when the process shall end: from then on no thread waits long for the database.

        Raises:
            UsageError: Another coordinator leads the fleet.
        """
        self._least_epoch = self._db.lead(fleet, epoch)
        self._db.ending = ending or self._db.ending
        self._epoch = epoch or 0

    def is_led(self, fleet: str) -> bool:
        """Return whether a coordinator leads the fleet by a lock in the database. A SQLite file has no such lock."""
        return self._db.is_led(fleet)

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
        """Add a run with the status "running", and with epoch 1 or the epoch of the leader.

        Unless the id is given, it has the time and a random suffix.

        Args:
            created_at: Unix time, in seconds.
            private: The patch policy.
            settings: Public settings, without secrets.
            schema: Digest of the whole model's schema.
            suffix: Random hex digits.
            run: The id of another coordinator's run, if a relay runs rounds of that run; None: a new id.
        """
        # The random end distinguishes runs on a machine whose clock stands still or starts in 1970.
        run = run or f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(created_at))}-{suffix or secrets.token_hex(3)}"
        epoch = max(1, self._epoch)
        row = {
            "id": run,
            "created_at": created_at,
            "task": task,
            "strategy": strategy,
            "private": private,
            "settings": json.dumps(dict(settings), allow_nan=False),
            "schema": schema,
            "epoch": epoch,
            "status": "running",
            "changes": 1,
        }
        self._change(lambda db: db.execute(insert(db, runs).values(row)))
        self._db.led[run] = epoch
        self._db.keep()
        self._note_run(run)
        return self.run(run)

    def next_epoch(self, run: str) -> int:
        """Return the run's next epoch, with standbys the leader's; messages of earlier epochs are refused from now on."""
        following, least = runs.c.epoch + 1, self._least_epoch
        chosen = self._epoch or case((following < least, least), else_=following)
        self._db.led[run] = epoch = self._change_run(run, epoch=chosen)
        self._db.keep()  # an older copy would give out this epoch a second time
        self._note_run(run)
        return epoch

    def finish_run(self, run: str, *, stopped_because: str, user_accuracy: float | None, model: str | None) -> None:
        """Write the end of a run; its status follows from `stopped_because`.

        A finished run has no open work. A coordinator that was killed as it saved the last round may have left carried work.

        Args:
            stopped_because: See run_summary.RunSummary.
            user_accuracy: Its user accuracy; None without one.
            model: Path of the exported model; None without one.
        """
        status = stopped_because if stopped_because in ("interrupted", "failed") else "finished"
        why = str(stopped_because)
        if status == "finished":
            self._change(lambda db: _forget_open_round(db, run))
        self._change_run(run, status=status, stopped_because=why, user_accuracy=user_accuracy, model=model)
        self._db.keep()
        self._note_run(run)

    def reopen(self, run: str) -> None:
        """Set the status of a run to "running" again."""
        self._change_run(run, status="running", stopped_because=None)
        self._note_run(run)

    def restore(self) -> list[str]:
        """Copy data that this registry lacks from the journals (runs, records, epochs, ends); return the ids of the runs.

        Used after a rebuild or a restored copy. If the journal of a run lags, the registry's data of the run are newer, and
        stay.
        """
        found = []
        for path in journals(self.path.parent):
            try:
                history = read_journal(path)
            except FileNotFoundError:
                continue
            if history.damaged_lines:
                lines = ", ".join(map(str, history.damaged_lines))
                _log.warning("%s: damaged in line %s, which is left out", path, lines)
            if history.run is not None and history.run.id == path.parent.name:
                found.append((history.run, history))
        # Runs are listed in the order in which their rows were inserted.
        for run, history in sorted(found, key=lambda one: (one[0].created_at, one[0].id)):
            self._restore_run(run, history)
        self._db.keep()
        return [run.id for run, _ in found]

    def newest(self, fleet: str) -> RunInfo | None:
        """Return the newest run of a fleet.

        Unless the run is `finished`, its coordinator is running, was stopped or killed, or failed.
        """
        return next((run for run in self.runs() if run.settings.get("fleet") == fleet), None)

    def abandon_running(self, fleet: str) -> None:
        """Set the runs of a fleet that are "running" to "interrupted". The caller has locked the fleet, so none runs."""
        left = [run.id for run in self.runs() if run.status == "running" and run.settings.get("fleet") == fleet]
        for run in left:
            self._change_run(run, status="interrupted", stopped_because="interrupted")
            self._note_run(run)

    def run(self, name: str) -> RunInfo:
        """Return the run with the id `name`, or the only run whose id begins with it, or the newest run for "last".

        Raises:
            UsageError: There is no such run, or there are several.
        """
        runs = self.runs()
        if not runs:
            raise UsageError(f"there are no runs in {self.path.parent} yet; --state-dir names another directory")
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
        except (OSError, StateError):
            return list(records.values())
        if history.changes < known.changes:
            return list(records.values())
        last = max(records, default=0)
        for number, record in sorted(history.records.items()):
            if number <= last and records.get(number) != record:
                _log.warning(
                    "%s: the record of round %d is not what was written; shown is that of %s. %s",
                    *(self._db.name, number, self.journal.path(run), rebuild_hint(self.path)),
                )
                records[number] = record
        return [record for _, record in sorted(records.items())]

    def runs(self) -> list[RunInfo]:
        """Return all runs, the newest first."""
        rows = self._read(select(*_RUN).order_by(runs.c.number.desc()))
        return [RunInfo(**{**row, "settings": self._json(row["settings"], dict)}) for row in rows]

    def seen_devices(self, fleet: str, sightings: Iterable[Sighting], most: int | None = None) -> None:
        """Note presences in one transaction; a last will leaves the device's data as they were.

        A device name belongs to its fleet: the same name in another fleet is another device. So that made-up names do not fill
        the disk, at more than `most` devices those that were never invited are deleted, the oldest presence first.

        Args:
            most: Greatest number of devices; None for no limit.
        """
        rows = [
            {
                "id": one.device,
                "fleet": fleet,
                "first_seen": one.now,
                "last_seen": one.now,
                "online": int(one.online),
                "version": one.version,
                "tasks": json.dumps(list(one.tasks)),
                "relay": int(one.relay),
            }
            for one in sightings
        ]

        def see(db: Connection) -> None:
            new = insert(db, devices)
            there = new.excluded.online == 1
            changed = {
                "last_seen": new.excluded.last_seen,
                "online": new.excluded.online,
                **{
                    name: case((there, new.excluded[name]), else_=devices.c[name])
                    for name in ("version", "tasks", "relay")
                },
            }
            if rows:
                db.execute(new.on_conflict_do_update(index_elements=["fleet", "id"], set_=changed), rows)
            if most is not None:
                _forget_devices(db, fleet, most)

        self._change(see)

    def none_online(self, fleet: str) -> None:
        """Note that no device of the fleet has been heard yet: each presence was told to an earlier coordinator."""
        self._change(lambda db: db.execute(update(devices).where(devices.c.fleet == fleet).values(online=0)))

    def count(self, fleet: str, *counts: tuple[str, str, str] | tuple[str, str, str, int]) -> None:
        """Add to counters of devices (database.migrations.COUNTERS), all in one transaction.

        The devices must have been seen in `fleet`. The reason is kept as the device's last one.

        Args:
            counts: Tuples of device, counter, reason and optionally the number to add (1).
        """
        for _, what, *_ in counts:
            if what not in COUNTERS:
                raise ValueError(f"{what!r} is no counter (known: {', '.join(COUNTERS)})")
        none = {**dict.fromkeys(map(_MORE.format, COUNTERS), 0), "in_fleet": fleet}
        rows = [
            {**none, "device": device, _MORE.format(what): times[0] if times else 1, "reason": str(reason)}
            for device, what, reason, *times in counts
        ]
        if rows:
            self._change(lambda db: db.execute(_COUNT, rows))

    def devices(self) -> list[DeviceInfo]:
        """Return all devices ever seen, by id and fleet."""
        held_back = self.holds.all()
        found = []
        total = func.coalesce(offences.c.count, 0).label("offences")
        joined = devices.outerjoin(offences, and_(offences.c.fleet == devices.c.fleet, offences.c.id == devices.c.id))
        rows = self._read(select(devices, total).select_from(joined))
        for row in sorted(rows, key=lambda row: (str(row["id"]), str(row["fleet"]))):
            held = held_back.get((row["fleet"], row["id"]), {})
            flags = {name: bool(row[name]) for name in ("online", "relay")}
            known = {**row, **flags, "tasks": tuple(self._json(row["tasks"], list))}
            found.append(DeviceInfo(**known, quarantined=held.get(QUARANTINED), drained=held.get(DRAINED)))
        return found

    def open_rounds(self, fleet: str) -> dict[str, int]:
        """Return the runs of a fleet that can be resumed, each with the number of its open round."""
        rows = self._read(select(open_rounds.c.run, open_rounds.c.round))
        left = {run.id for run in self.runs() if run.status != "finished" and run.settings.get("fleet") == fleet}
        return {row["run"]: row["round"] for row in rows if row["run"] in left}

    def changes(self, run: str) -> int:
        """Return the number of a run's last change; 0 for an unknown run."""
        return next((int(row["changes"]) for row in self._read(select(runs.c.changes).where(runs.c.id == run))), 0)

    def known(self, run: str) -> Known:
        """Return the data of a run for its journal."""
        return Known(self.run(run), self.rounds.records(run), self.changes(run))

    def _restore_run(self, run: RunInfo, history: RunHistory) -> None:
        """Copy the data of a run from its journal; delete rolled-back rounds, and an open round that is completed.

        A journal with damaged lines deletes no round. From a journal that lags, only the records that the registry lacks before
        its last one are copied.
        """
        lags = history.changes < self.changes(run.id)
        values = {
            **asdict(run),
            "settings": json.dumps(dict(run.settings), allow_nan=False),
            "changes": history.changes,
        }

        def restore(db: Connection) -> None:
            new = insert(db, runs)
            changed: dict[str, Any] = {name: new.excluded[name] for name in values if name not in ("id", "epoch")}
            later = runs.c.epoch < new.excluded.epoch
            changed["epoch"] = case((later, new.excluded.epoch), else_=runs.c.epoch)
            newer = new.excluded.changes >= runs.c.changes
            db.execute(new.values(values).on_conflict_do_update(index_elements=["id"], set_=changed, where=newer))
            records = list(history.records.values())
            if lags:
                before = db.scalar(select(func.max(rounds.c.round)).where(rounds.c.run == run.id)) or 0
                save_records(db, run.id, [one for one in records if one.round < before], replace=False)
            else:
                save_records(db, run.id, records)
                if history.forgotten_after is not None and not history.damaged_lines:
                    undone = rounds.c.round > history.forgotten_after
                    db.execute(delete(rounds).where(rounds.c.run == run.id, undone))
            _forget_open_round(db, run.id)

        self._change(restore)

    def _begin_journals(self) -> None:
        """Write a journal for each run whose journal was deleted."""
        for run in self.runs():
            journal = self.journal.path(run.id)
            if journal.parent.is_dir() and not journal.exists():
                self.journal.bring_up_to_date(run.id)

    def _note_run(self, run: str) -> None:
        """Write the run's row to its journal."""
        self.journal.write_run(self.run(run), self.changes(run))

    def _change_run(self, run: str, **values: str | float | ColumnElement[Any] | None) -> int:
        """Set columns of a run and return its epoch; UsageError for an unknown run."""

        def change(db: Connection) -> int:
            self._db.count_change(db, run)
            query = update(runs).where(runs.c.id == run).values(**values).returning(runs.c.epoch)
            return int(db.execute(query).scalar_one())

        return self._change(change)


def _forget_devices(db: Connection, fleet: str, most: int) -> None:
    """Delete the devices beyond `most` in a fleet: only those never invited and not held, the oldest presence first."""
    surplus = (db.scalar(select(func.count()).where(devices.c.fleet == fleet)) or 0) - most
    if surplus <= 0:
        return
    held = select(holds.c.id).where(holds.c.fleet == fleet)
    unknown = and_(devices.c.fleet == fleet, devices.c.invited == 0, devices.c.id.not_in(held))
    oldest = select(devices.c.id).where(unknown).order_by(devices.c.last_seen).limit(surplus)
    db.execute(delete(devices).where(devices.c.fleet == fleet, devices.c.id.in_(oldest)))


def _forget_open_round(db: Connection, run: str) -> None:
    """Delete the open round of a run if it has a record, and updates and carried work without an open round.

    Carried work that was noted between two rounds may be in a version of the model that only the journal has.
    """
    last = db.scalar(select(func.max(rounds.c.round)).where(rounds.c.run == run))
    number = db.scalar(select(open_rounds.c.round).where(open_rounds.c.run == run))
    over = number is not None and last is not None and number <= last
    if over or number is None:
        for table in (carried_work, updates):
            db.execute(delete(table).where(table.c.run == run))
    if over:
        for table in (acceptances, open_rounds):
            db.execute(delete(table).where(table.c.run == run))
