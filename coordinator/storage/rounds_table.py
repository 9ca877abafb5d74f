"""The tables of rounds in the registry: records of completed rounds, the journal and the updates of the open one.

A round moves between these tables in single transactions, so that it is never both open and completed, or neither.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedpatch.coordinator.buffered.carried_work import CarriedWork
from fedpatch.coordinator.rounds.participant_transitions import MaskingEntry, RoundJournal
from fedpatch.coordinator.rounds.run_records import RoundRecord, StoredUpdate
from fedpatch.coordinator.storage.boot_clock import BootTime
from fedpatch.coordinator.storage.database import damaged, keep_copy
from fedpatch.coordinator.storage.run_journal import RunJournal
from fedpatch.coordinator.storage.sqlite_table import Tables, count_change


class RoundLedger(Tables):
    """The rounds of runs. Each method is one transaction, on disk when it returns.

    Records are also written to the run's journal file.
    """

    def __init__(self, db: sqlite3.Connection, path: Path, journal: RunJournal) -> None:
        super().__init__(db, path)
        self._journal = journal

    def open(self, run: str, ledger: RoundJournal, now: BootTime) -> None:
        """Write the journal of a round that begins, or continues in another epoch; forget updates of other rounds.

        Args:
            run: Name of the run.
            ledger: The journal of the round.
            now: The present time.
        """
        row = (
            run,
            ledger.round,
            ledger.target,
            json.dumps(ledger.invited),
            ledger.base,
            ledger.spent_s,
            ledger.closing,
            ledger.encoding,
            json.dumps(dict(ledger.negotiated)),
            json.dumps(sorted(ledger.absent)),
            json.dumps(dict(ledger.offenders)),
        )
        with self._change() as db:
            _forget(db, run, keep_updates_of=ledger.round, carried=ledger.carried)
            db.execute(
                "INSERT INTO open_rounds (run, round, target, invited, base, spent_s, closing, encoding, negotiated,"
                " absent, offenders, boot, uptime_s, unix_s) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*row, now.boot, now.uptime_s, now.unix_s),
            )
            _accept(db, run, ledger.accepted)

    def accept(self, run: str, devices: Collection[str]) -> None:
        """Note that devices take part in the open round."""
        with self._change() as db:
            _accept(db, run, devices)

    def exclude_offender(self, run: str, device: str, offence: str) -> None:
        """Note an offender of the open round, if one is open.

        Args:
            run: Name of the run.
            device: The device.
            offence: Its offence.
        """
        with self._change() as db:
            for (text,) in db.execute("SELECT offenders FROM open_rounds WHERE run = ?", (run,)).fetchall():
                offenders = json.dumps({**self._json(text, dict), device: offence})
                db.execute("UPDATE open_rounds SET offenders = ? WHERE run = ?", (offenders, run))

    def save_masking(self, run: str, round: int, entries: Sequence[MaskingEntry]) -> None:
        """Write steps of a masked round; a step that is there already stays as it is.

        Args:
            run: Name of the run.
            round: Number of the round.
            entries: The steps, in order.
        """
        with self._change() as db:
            db.executemany(
                "INSERT OR IGNORE INTO masking (run, round, team, step, device, content) VALUES (?, ?, ?, ?, ?, ?)",
                [(run, round, one.group, one.step, one.device, one.content) for one in entries],
            )

    def masking(self, run: str, round: int) -> list[MaskingEntry]:
        """Return the steps of a masked round, in the order in which they were saved."""
        query = "SELECT team, step, device, content FROM masking WHERE (run, round) = (?, ?) ORDER BY number"
        rows = self._read(query, (run, round))
        return [MaskingEntry(row["team"], row["step"], row["device"], row["content"]) for row in rows]

    def add_updates(self, run: str, updates: Sequence[StoredUpdate], accepted: Collection[str] = ()) -> dict[str, str]:
        """Add updates whose files are on disk, and the devices that accepted.

        Args:
            run: Name of the run.
            updates: The updates, at most one of a device; one that is there already is not added again.
            accepted: Devices that have accepted since the last call.

        Returns:
            By device of which another update of that round is committed: the digest of that one. Its new one is not added.
        """
        committed = {}
        with self._change() as db:
            for one in updates:
                values = (run, one.round, one.device, one.digest, one.raw_bytes, one.num_examples, one.encoding)
                if db.execute("INSERT OR IGNORE INTO updates VALUES (?, ?, ?, ?, ?, ?, ?)", values).rowcount:
                    continue
                query = "SELECT digest FROM updates WHERE (run, round, device) = (?, ?, ?)"
                [(digest,)] = db.execute(query, values[:3]).fetchall()
                if digest != one.digest:
                    committed[one.device] = digest
            _accept(db, run, accepted)
        return committed

    def updates(self, run: str, round: int) -> list[StoredUpdate]:
        """Return the updates of a round, by device."""
        columns = "round, device, digest, raw_bytes, num_examples, encoding"
        query = f"SELECT {columns} FROM updates WHERE (run, round) = (?, ?) ORDER BY device"  # our columns  # nosec B608
        return [StoredUpdate(**row) for row in self._read(query, (run, round))]

    def open_updates(self, run: str) -> list[StoredUpdate]:
        """Return the updates of the open round."""
        return [
            one
            for row in self._read("SELECT round FROM open_rounds WHERE run = ?", (run,))
            for one in self.updates(run, row["round"])
        ]

    def committed(self, run: str, round: int | None, carried: Mapping[str, CarriedWork]) -> list[StoredUpdate]:
        """Return the updates of a round, and those that came of carried work.

        Args:
            run: Name of the run.
            round: Number of the open round; None between two rounds.
            carried: The carried work by device.
        """
        own = [] if round is None else self.updates(run, round)
        rounds = sorted({work.round for work in carried.values()} - {round})
        earlier = [one for number in rounds for one in self.updates(run, number)]
        return own + [one for one in earlier if one.device in carried and carried[one.device].round == one.round]

    def carried(self, run: str) -> dict[str, CarriedWork]:
        """Return the work for rounds that are over, by device, the committed updates of a failed round among it."""
        columns = "device, round, epoch, version, base, encoding"
        query = f"SELECT {columns} FROM carried_work WHERE run = ? ORDER BY device"  # our columns  # nosec B608
        return {row.pop("device"): CarriedWork(**row) for row in map(dict, self._read(query, (run,)))}

    def drop_update(self, run: str, round: int, device: str) -> None:
        """Delete one update.

        Args:
            run: Name of the run.
            round: Number of the round.
            device: The device.
        """
        with self._change() as db:
            db.execute("DELETE FROM updates WHERE (run, round, device) = (?, ?, ?)", (run, round, device))

    def close(self, run: str, devices: Collection[str]) -> None:
        """Note that the aggregation of the updates of `devices` begins, after which no other update counts."""
        with self._change() as db:
            db.execute("UPDATE open_rounds SET closing = 1 WHERE run = ?", (run,))
            written = db.execute("SELECT device FROM updates WHERE run = ?", (run,)).fetchall()
            late = [(run, device) for (device,) in written if device not in devices]
            db.executemany("DELETE FROM updates WHERE (run, device) = (?, ?)", late)

    def pause(self, run: str, spent_s: float) -> None:
        """Note the seconds of the deadline that are spent when the operator stops the coordinator.

        The time until a resume does not count.
        """
        with self._change() as db:
            db.execute("UPDATE open_rounds SET paused = 1, spent_s = ? WHERE run = ?", (spent_s, run))

    def unfinished(self, run: str, now: BootTime) -> RoundJournal | None:
        """Return the journal of the round that was open when the coordinator ended, with the seconds spent by now."""
        rows = self._read("SELECT * FROM open_rounds WHERE run = ?", (run,))
        if not rows:
            return None
        row = rows[0]
        away_s = 0.0 if row["paused"] else now.since(BootTime(row["boot"], row["uptime_s"], row["unix_s"]))
        accepted = self._read("SELECT device FROM acceptances WHERE run = ?", (run,))
        return RoundJournal(
            round=row["round"],
            target=row["target"],
            invited=tuple(self._json(row["invited"], list)),
            base=row["base"],
            accepted=frozenset(one["device"] for one in accepted),
            spent_s=row["spent_s"] + away_s,
            closing=bool(row["closing"]),
            encoding=row["encoding"],
            negotiated=self._json(row["negotiated"], dict),
            absent=frozenset(self._json(row["absent"], list)),
            offenders=self._json(row["offenders"], dict),
            carried=self.carried(run),
        )

    def finish(self, run: str, record: RoundRecord, carried: Mapping[str, CarriedWork] | None = None) -> None:
        """Write the record of a completed round, in place of one of its number, and delete its journal and updates.

        Args:
            run: Name of the run.
            record: The record.
            carried: Work that the next round may take; its committed updates stay.
        """
        with self._change() as db:
            _forget(db, run, carried=carried)
            db.execute(
                "INSERT INTO rounds (run, round, record) VALUES (?, ?, ?)"
                " ON CONFLICT (run, round) DO UPDATE SET record = excluded.record",
                (run, record.round, json.dumps(record.to_dict(), allow_nan=False)),
            )
            change = count_change(db, run)
        self._journal.write_round(run, record, change)
        # Of a long run not after each round: all copies together are to be no more than a few times its rounds.
        if record.round % max(1, record.round // 50) == 0:
            keep_copy(self._db, self.path)

    def roll_back(self, run: str, round: int) -> None:
        """Delete all rounds after `round`, to repeat them."""
        with self._change() as db:
            _forget(db, run)
            db.execute("DELETE FROM rounds WHERE run = ? AND round > ?", (run, round))
            change = count_change(db, run)
        self._journal.write_back_to(run, round, change)
        keep_copy(self._db, self.path)

    def counts(self) -> dict[str, int]:
        """Return the number of completed rounds by run; a run without one is left out."""
        return {
            row["run"]: row["count"] for row in self._read("SELECT run, count(*) AS count FROM rounds GROUP BY run")
        }

    def records(self, run: str, after: int = 0) -> list[RoundRecord]:
        """Return the records of completed rounds with a number above `after`, by round."""
        rows = self._read("SELECT record FROM rounds WHERE run = ? AND round > ? ORDER BY round", (run, after))
        try:
            return [RoundRecord.from_dict(self._json(row["record"], dict)) for row in rows]
        except ValueError as error:
            raise damaged(self.path, error) from error


def _forget(
    db: sqlite3.Connection,
    run: str,
    keep_updates_of: int | None = None,
    carried: Mapping[str, CarriedWork] | None = None,
) -> None:
    db.execute("DELETE FROM acceptances WHERE run = ?", (run,))
    db.execute("DELETE FROM open_rounds WHERE run = ?", (run,))
    db.execute("DELETE FROM carried_work WHERE run = ?", (run,))
    rows = [
        (run, device, work.round, work.epoch, work.version, work.base, work.encoding)
        for device, work in sorted((carried or {}).items())
    ]
    db.executemany("INSERT INTO carried_work VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
    db.execute(
        "DELETE FROM updates WHERE run = ? AND round IS NOT ?"
        " AND (run, device, round) NOT IN (SELECT run, device, round FROM carried_work)",
        (run, keep_updates_of),
    )
    db.execute("DELETE FROM masking WHERE run = ? AND round IS NOT ?", (run, keep_updates_of))


def _accept(db: sqlite3.Connection, run: str, devices: Collection[str]) -> None:
    rows: list[tuple[Any, ...]] = [(run, device) for device in sorted(devices)]
    db.executemany("INSERT OR IGNORE INTO acceptances (run, device) VALUES (?, ?)", rows)
