"""The tables of rounds in the registry: records of completed rounds, the journal and the updates of the open one.

A round moves between these tables in single transactions, so that it is never both open and completed, or neither.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import Connection, Select, Table, delete, exists, func, select, update
from sqlalchemy import insert as insert_into

from fedpatch.coordinator.buffered.carried_work import CarriedWork
from fedpatch.coordinator.masking.masked_groups import REGISTER
from fedpatch.coordinator.rounds.participant_transitions import State
from fedpatch.coordinator.rounds.round_journal import MaskingEntry, RoundJournal
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.rounds.stored_update import StoredUpdate
from fedpatch.coordinator.storage.boot_clock import BootTime
from fedpatch.coordinator.storage.database.tables import (
    acceptances,
    carried_work,
    masking,
    open_rounds,
    rounds,
    updates,
)
from fedpatch.coordinator.storage.database.transactions import Database, Tables, insert, insert_new
from fedpatch.coordinator.storage.database.value_checks import row_problem
from fedpatch.coordinator.storage.run_journal import RunJournal
from fedpatch.shared.wire.messages import ENCODINGS

_LATER_STEPS, _LATER_TEAM = {"codes": "shares", "agreement": "reveal"}, 1_000_000
"""Steps that the constraint of the table does not know: they are rows of these steps, with this much added to the group."""
_STEP_OF_ROW = {row: step for step, row in _LATER_STEPS.items()}


def _masking_entry(team: int, step: str, device: str, content: bytes) -> MaskingEntry:
    if team < _LATER_TEAM:
        return MaskingEntry(team, step, device, content)
    return MaskingEntry(team - _LATER_TEAM, _STEP_OF_ROW[step], device, content)


class RoundsTable(Tables):
    """The rounds of runs. Each method is one transaction, on disk when it returns.

    Records are also written to the run's journal file.
    """

    def __init__(self, db: Database, journal: RunJournal) -> None:
        super().__init__(db)
        self._journal = journal

    def open(self, run: str, journal: RoundJournal, now: BootTime) -> None:
        """Write the journal of a round that begins, or continues in another epoch; forget updates of other rounds."""
        row = {
            "run": run,
            "round": journal.round,
            "target": journal.target,
            "invited": json.dumps(journal.invited),
            "base": journal.base,
            "spent_s": journal.spent_s,
            "closing": int(journal.closing),
            "encoding": journal.encoding,
            "negotiated": json.dumps(dict(journal.negotiated)),
            "absent": json.dumps(sorted(journal.absent)),
            "offenders": json.dumps(dict(journal.offenders)),
            "departed": json.dumps(dict(journal.departed)),
            "boot": now.boot,
            "uptime_s": now.uptime_s,
            "unix_s": now.unix_s,
        }

        def begin(db: Connection) -> None:
            _forget(db, run, keep_updates_of=journal.round, carried=journal.carried)
            db.execute(insert_into(open_rounds).values(row))
            _accept(db, run, journal.accepted)

        self._change(begin)

    def accept(self, run: str, devices: Collection[str]) -> None:
        """Note that devices take part in the open round."""
        self._change(lambda db: _accept(db, run, devices))

    def exclude_offender(self, run: str, device: str, offence: str) -> None:
        """Note an offender of the open round, if a round is open."""
        self._add_to("offenders", run, {device: offence})

    def depart(self, run: str, devices: Mapping[str, tuple[str, str]]) -> None:
        """Note the devices that left the count of the open round without an offence, if a round is open.

        Args:
            devices: The devices, each with its state and the reason.
        """
        self._add_to("departed", run, devices)

    def _add_to(self, name: str, run: str, added: Mapping[str, Any]) -> None:
        """Add entries to an object in a column of the open round."""

        def add(db: Connection) -> None:
            for text in db.scalars(select(open_rounds.c[name]).where(open_rounds.c.run == run)).all():
                known = json.dumps({**self._json(text, dict), **added})
                db.execute(update(open_rounds).where(open_rounds.c.run == run).values({name: known}))

        self._change(add)

    def save_masking(self, run: str, round: int, entries: Sequence[MaskingEntry]) -> None:
        """Write steps of a masked round; an existing step stays as it is.

        Args:
            entries: The steps, in order.
        """
        rows = [
            {
                "run": run,
                "round": round,
                "team": one.group + _LATER_TEAM * (one.step in _LATER_STEPS),
                "step": _LATER_STEPS.get(one.step, one.step),
                "device": one.device,
                "content": one.content,
            }
            for one in entries
        ]
        self._change(lambda db: insert_new(db, masking, rows))

    def masking(self, run: str, round: int) -> list[MaskingEntry]:
        """Return the steps of a masked round, in the order in which they were saved."""
        its_own = select(masking).where(masking.c.run == run, masking.c.round == round)
        rows = self._rows(masking, its_own.order_by(masking.c.number))
        return [_masking_entry(row["team"], row["step"], row["device"], row["content"]) for row in rows]

    def groups(self, run: str) -> list[tuple[int, str]]:
        """Return the number of the masked group of each device of a run, as far as devices have joined one."""
        return [(one.group, one.device) for one in self.masking(run, REGISTER)]

    def add_updates(self, run: str, added: Sequence[StoredUpdate], accepted: Collection[str] = ()) -> dict[str, str]:
        """Add updates whose files are on disk, and the devices that accepted.

        Args:
            added: The updates, at most one of a device; an existing update is not added again.
            accepted: Devices that have accepted since the last call.

        Returns:
            For each device that has another committed update of that round: the digest of that update. The new one is not
            added.
        """
        rows = [{"run": run, **asdict(one)} for one in added]

        def add(db: Connection) -> dict[str, str]:
            all_new = insert_new(db, updates, rows)
            _accept(db, run, accepted)
            return {} if all_new else dict(_other_digests(db, run, added))

        return self._change(add)

    def updates(self, run: str, round: int) -> list[StoredUpdate]:
        """Return the updates of a round, by device."""
        query = select(updates).where(updates.c.run == run, updates.c.round == round)
        rows = sorted(self._rows(updates, query), key=lambda row: str(row["device"]))
        return [StoredUpdate(**_without_run(row)) for row in rows]

    def open_updates(self, run: str) -> list[StoredUpdate]:
        """Return the updates of the open round."""
        return [
            one
            for row in self._read(select(open_rounds.c.round).where(open_rounds.c.run == run))
            for one in self.updates(run, row["round"])
        ]

    def committed(self, run: str, round: int | None, carried: Mapping[str, CarriedWork]) -> list[StoredUpdate]:
        """Return the updates of a round, and those of carried work.

        Args:
            round: Number of the open round; None between two rounds.
            carried: The carried work by device.
        """
        own = [] if round is None else self.updates(run, round)
        rounds = sorted({work.round for work in carried.values()} - {round})
        earlier = [one for number in rounds for one in self.updates(run, number)]
        return own + [one for one in earlier if one.device in carried and carried[one.device].round == one.round]

    def carried(self, run: str) -> dict[str, CarriedWork]:
        """Return the work for rounds that are over, by device, including the committed updates of a failed round.

        Work in an encoding that only earlier versions have is left out: its update could not be read, and would count as an
        offence of its device.
        """
        rows = self._rows(carried_work, select(carried_work).where(carried_work.c.run == run))
        works = [_without_run(row) for row in sorted(rows, key=lambda row: str(row["device"]))]
        return {work.pop("device"): CarriedWork(**work) for work in works if work["encoding"] in ENCODINGS}

    def drop_update(self, run: str, round: int, device: str) -> None:
        """Delete one update."""
        its_own = (updates.c.run == run, updates.c.round == round, updates.c.device == device)
        self._change(lambda db: db.execute(delete(updates).where(*its_own)))

    def close(self, run: str, devices: Collection[str]) -> None:
        """Note that the aggregation of the updates of `devices` begins; other updates no longer count."""

        def close(db: Connection) -> None:
            db.execute(update(open_rounds).where(open_rounds.c.run == run).values(closing=1))
            db.execute(delete(updates).where(updates.c.run == run, updates.c.device.not_in(list(devices))))

        self._change(close)

    def pause(self, run: str, spent_s: float) -> None:
        """Note the seconds of the deadline that are spent when the operator stops the coordinator.

        The time until a resume does not count.
        """
        query = update(open_rounds).where(open_rounds.c.run == run).values(paused=1, spent_s=spent_s)
        self._change(lambda db: db.execute(query))

    def unfinished(self, run: str, now: BootTime) -> RoundJournal | None:
        """Return the journal of the round that was open when the coordinator ended, with the seconds spent by now."""
        rows = self._rows(open_rounds, select(open_rounds).where(open_rounds.c.run == run))
        if not rows:
            return None
        row = rows[0]
        away_s = 0.0 if row["paused"] else now.since(BootTime(row["boot"], row["uptime_s"], row["unix_s"]))
        accepted = self._rows(acceptances, select(acceptances).where(acceptances.c.run == run))
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
            departed=self._departed(row["departed"]),
            carried=self.carried(run),
        )

    def _rows(self, table: Table, query: Select[Any]) -> list[dict[str, Any]]:
        """Return whole rows of a table; raise StateError for a row with a value that was not written."""
        rows = self._read(query)
        if problem := next(filter(None, (row_problem(table.name, row) for row in rows)), None):
            raise self._db.damaged(problem)
        return rows

    def _departed(self, text: str) -> dict[str, tuple[State, str]]:
        try:
            return {device: (State(what), why) for device, (what, why) in self._json(text, dict).items()}
        except (ValueError, TypeError) as error:
            raise self._db.damaged(error) from error

    def finish(self, run: str, record: RoundRecord, carried: Mapping[str, CarriedWork] | None = None) -> None:
        """Write the record of a completed round, replacing one with its number, and delete its journal and updates.

        Args:
            carried: Work that the next round may take; its committed updates stay.
        """

        def finish(db: Connection) -> int:
            _forget(db, run, carried=carried)
            save_records(db, run, [record])
            return self._db.count_change(db, run)

        change = self._change(finish)
        self._journal.write_round(run, record, change)
        # In a long run not after each round, so that the cost of all copies is only linear in the number of rounds.
        if record.round % max(1, record.round // 50) == 0:
            self._db.keep()

    def roll_back(self, run: str, round: int) -> None:
        """Delete all rounds after `round`, to repeat them."""

        def roll_back(db: Connection) -> int:
            _forget(db, run)
            db.execute(delete(rounds).where(rounds.c.run == run, rounds.c.round > round))
            return self._db.count_change(db, run)

        self._journal.write_back_to(run, round, self._change(roll_back))
        self._db.keep()

    def counts(self) -> dict[str, int]:
        """Return the number of completed rounds by run; a run without one is left out."""
        query = select(rounds.c.run, func.count().label("count")).group_by(rounds.c.run)
        return {row["run"]: row["count"] for row in self._read(query)}

    def records(self, run: str, after: int = 0) -> list[RoundRecord]:
        """Return the records of completed rounds with a number above `after`, by round."""
        later = select(rounds.c.record).where(rounds.c.run == run, rounds.c.round > after)
        rows = self._read(later.order_by(rounds.c.round))
        try:
            return [RoundRecord.from_dict(self._json(row["record"], dict)) for row in rows]
        except ValueError as error:
            raise self._db.damaged(error) from error


def _without_run(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "run"}


def save_records(db: Connection, run: str, records: Collection[RoundRecord], *, replace: bool = True) -> None:
    """Write records of rounds.

    Args:
        db: The connection, within a transaction.
        replace: Replace records with the same number; if not, an existing record stays.
    """
    rows = [{"run": run, "round": one.round, "record": json.dumps(one.to_dict(), allow_nan=False)} for one in records]
    if not replace:
        insert_new(db, rounds, rows)
    elif rows:
        new = insert(db, rounds)
        changed = {"record": new.excluded.record}
        db.execute(new.on_conflict_do_update(index_elements=["run", "round"], set_=changed), rows)


def _other_digests(db: Connection, run: str, added: Sequence[StoredUpdate]) -> Iterator[tuple[str, str]]:
    for one in added:
        its_own = (updates.c.run == run, updates.c.round == one.round, updates.c.device == one.device)
        digest = db.scalar(select(updates.c.digest).where(*its_own))
        if digest is not None and digest != one.digest:
            yield one.device, digest


def _forget(
    db: Connection,
    run: str,
    keep_updates_of: int | None = None,
    carried: Mapping[str, CarriedWork] | None = None,
) -> None:
    for table in (acceptances, open_rounds, carried_work):
        db.execute(delete(table).where(table.c.run == run))
    work = {device: asdict(one) for device, one in sorted((carried or {}).items())}
    columns = ("round", "epoch", "version", "base", "encoding")
    rows = [{"run": run, "device": device, **{name: one[name] for name in columns}} for device, one in work.items()]
    if rows:
        insert_new(db, carried_work, rows)
    kept = exists().where(*(carried_work.c[name] == updates.c[name] for name in ("run", "device", "round")))
    other = updates.c.round.is_distinct_from(keep_updates_of)
    db.execute(delete(updates).where(updates.c.run == run, other, ~kept))
    other_steps = masking.c.round.is_distinct_from(keep_updates_of) & (masking.c.round != REGISTER)
    db.execute(delete(masking).where(masking.c.run == run, other_steps))


def _accept(db: Connection, run: str, devices: Collection[str]) -> None:
    if devices:
        insert_new(db, acceptances, [{"run": run, "device": device} for device in sorted(devices)])
