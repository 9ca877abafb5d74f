"""Runs, rounds, devices and stored updates, in one SQLite file that survives a power cut.

Every method is one transaction, on the disk when it returns (WAL, synchronous=FULL). One thread at a time may use a
Registry; other processes may read the file meanwhile. Times are unix seconds, passed in.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from coordinator.database import COUNTERS, damaged, open_database, told
from coordinator.records import DeviceInfo, RoundRecord, RunInfo, StoredUpdate
from shared.errors import UpdateRefused, UsageError, unknown_name
from shared.messages import RefuseReason

REGISTRY_FILE = "registry.sqlite3"
LAST = "last"
_RUN = "id, created_at, task, strategy, private, settings, schema, epoch, status, stopped_because, user_accuracy, model"
_DEVICE = f"id, fleet, first_seen, last_seen, online, version, tasks, {', '.join(COUNTERS)}, last_reason"


class Registry:
    """The registry in the file `path`, made where absent.

    With `readonly` nothing is made or changed, and an absent file is a UsageError. Raises StateError for a file that is
    damaged, foreign or of a newer version, and wherever the disk refuses.
    """

    def __init__(self, path: Path, *, readonly: bool = False) -> None:
        self.path = path
        self._db = open_database(path, readonly)

    def close(self) -> None:
        """Release the file."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def create_run(
        self, *, created_at: float, task: str, strategy: str, private: str, settings: Mapping[str, Any], schema: str
    ) -> RunInfo:
        """A new running run of epoch 1, under a new id. `settings` must hold no secret; `schema` is a digest."""
        # The random end tells runs apart on a machine whose clock stands still or starts in 1970.
        run = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(created_at))}-{secrets.token_hex(3)}"
        row = (run, created_at, task, strategy, private, json.dumps(dict(settings), allow_nan=False), schema)
        with self._change() as db:
            db.execute(
                "INSERT INTO runs (id, created_at, task, strategy, private, settings, schema, epoch, status)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, 1, 'running')",
                row,
            )
        return self.run(run)

    def next_epoch(self, run: str) -> int:
        """Take the next epoch of a run, for whoever carries it on: what answers an older one is refused."""
        with self._change() as db:
            rows = db.execute("UPDATE runs SET epoch = epoch + 1 WHERE id = ? RETURNING epoch", (run,)).fetchall()
        return int(_only(rows, run)[0])

    def finish_run(self, run: str, *, stopped_because: str, user_accuracy: float | None, model: str | None) -> None:
        """Write down how a run ended; its status follows from `stopped_because` (as in records.RunSummary)."""
        status = stopped_because if stopped_because in ("interrupted", "failed") else "finished"
        with self._change() as db:
            rows = db.execute(
                "UPDATE runs SET status = ?, stopped_because = ?, user_accuracy = ?, model = ?"
                " WHERE id = ? RETURNING 1",
                (status, str(stopped_because), user_accuracy, model, run),
            ).fetchall()
        _only(rows, run)

    def reopen(self, run: str) -> None:
        """Mark a run that ended as running again."""
        with self._change() as db:
            rows = db.execute(
                "UPDATE runs SET status = 'running', stopped_because = NULL WHERE id = ? RETURNING 1", (run,)
            ).fetchall()
        _only(rows, run)

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

    def runs(self) -> list[RunInfo]:
        """All runs, the newest first."""
        rows = self._read(f"SELECT {_RUN} FROM runs ORDER BY number DESC")
        return [RunInfo(**{**row, "settings": self._json(row["settings"])}) for row in rows]

    def add_round(self, run: str, record: RoundRecord) -> None:
        """Keep the record of a round; one that is played again after a crash replaces what was known of it."""
        with self._change() as db:
            db.execute(
                "INSERT INTO rounds (run, round, record) VALUES (?, ?, ?)"
                " ON CONFLICT (run, round) DO UPDATE SET record = excluded.record",
                (run, record.round, json.dumps(record.to_dict(), allow_nan=False)),
            )

    def rounds(self, run: str) -> list[RoundRecord]:
        """The records of a run, by round."""
        rows = self._read("SELECT record FROM rounds WHERE run = ? ORDER BY round", (run,))
        try:
            return [RoundRecord.from_dict(self._json(row["record"])) for row in rows]
        except (KeyError, TypeError, AttributeError) as error:
            raise damaged(self.path, error) from error

    def seen_device(
        self, device: str, *, fleet: str, now: float, online: bool, version: str = "", tasks: Sequence[str] = ()
    ) -> None:
        """Note a device's presence and what it can train; one that goes keeps what it had said of itself.

        `device` is a name within `fleet`: another fleet's device of that name is another device.
        """
        values = {"id": device, "fleet": fleet, "now": now, "online": online, "version": version}
        with self._change() as db:
            db.execute(
                "INSERT INTO devices (id, fleet, first_seen, last_seen, online, version, tasks)"
                " VALUES (:id, :fleet, :now, :now, :online, :version, :tasks) ON CONFLICT (fleet, id) DO UPDATE SET"
                " last_seen = :now, online = :online,"
                " version = iif(:online, :version, version), tasks = iif(:online, :tasks, tasks)",
                {**values, "tasks": json.dumps(list(tasks))},
            )

    def count(self, fleet: str, *counts: tuple[str, str, str]) -> None:
        """Add one to a counter (database.COUNTERS) of a device that `fleet` has seen, for each (device, counter, reason).

        A reason is kept as the device's last. Many at once are one transaction, and so one wait for the disk.
        """
        for _, what, _ in counts:
            if what not in COUNTERS:
                raise ValueError(f"{what!r} is no counter (known: {', '.join(COUNTERS)})")
        with self._change() as db:
            for device, what, reason in counts:
                db.execute(
                    f"UPDATE devices SET {what} = {what} + 1, last_reason = iif(:reason = '', last_reason, :reason)"
                    " WHERE (fleet, id) = (:fleet, :id)",
                    {"fleet": fleet, "id": device, "reason": str(reason)},
                )

    def devices(self) -> list[DeviceInfo]:
        """All devices ever seen, by id, and by fleet where several have one of that id."""
        rows = self._read(f"SELECT {_DEVICE} FROM devices ORDER BY id, fleet")
        return [
            DeviceInfo(**{**row, "online": bool(row["online"]), "tasks": tuple(self._json(row["tasks"]))})
            for row in rows
        ]

    def add_update(self, run: str, update: StoredUpdate) -> bool:
        """Keep an update whose blob is on the disk; False where the very same is there already.

        Raises UpdateRefused for other bytes from a device whose update of that round is committed.
        """
        key = (run, update.round, update.device)
        with self._change() as db:
            found = db.execute("SELECT digest FROM updates WHERE (run, round, device) = (?, ?, ?)", key).fetchone()
            if found is None:
                values = (*key, update.digest, update.raw_bytes, update.num_examples)
                db.execute("INSERT INTO updates VALUES (?, ?, ?, ?, ?, ?)", values)
        if found is not None and found[0] != update.digest:
            detail = f"{update.device} has already given {found[0][:12]} in round {update.round}"
            raise UpdateRefused(RefuseReason.ALREADY_COMMITTED, detail)
        return found is None

    def updates(self, run: str, round: int) -> list[StoredUpdate]:
        """The updates of a round, by device."""
        columns = "round, device, digest, raw_bytes, num_examples"
        query = f"SELECT {columns} FROM updates WHERE (run, round) = (?, ?) ORDER BY device"
        return [StoredUpdate(**row) for row in self._read(query, (run, round))]

    def drop_updates(self, run: str, round: int) -> None:
        """Forget the updates of a round; their blobs are checkpoint.drop_round's."""
        with self._change() as db:
            db.execute("DELETE FROM updates WHERE (run, round) = (?, ?)", (run, round))

    @contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        """One transaction: all of it, or nothing."""
        with told(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def _read(self, query: str, values: Sequence[Any] = ()) -> list[dict[str, Any]]:
        with told(self.path):
            answer = self._db.execute(query, values)
            names = [column[0] for column in answer.description]
            return [dict(zip(names, row, strict=True)) for row in answer]

    def _json(self, text: str) -> Any:
        try:
            return json.loads(text)
        except ValueError as error:
            raise damaged(self.path, error) from error


def _only(rows: list[Any], run: str) -> Any:
    if not rows:
        raise UsageError(f"unknown run {run!r}")
    return rows[0]
