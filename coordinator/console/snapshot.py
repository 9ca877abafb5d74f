"""The state that the page shows at a moment, and the events that bring a page from an earlier state to it.

A stream keeps a `Cursor` and no queue: a slow page gets the newest state when it reads again, and costs no memory meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedpatch.coordinator.rounds.round_record import RoundRecord


@dataclass(frozen=True)
class Snapshot:
    """The state of a fleet and its newest run.

    Attributes:
        live: The live status (documents.live_document) with the state of the connection.
        live_number: Number of its last change.
        runs: Rows of the list of runs.
        runs_number: Number of its last change.
        run: Id of the newest run; "" for none.
        fleet: The fleet of that run.
        metric: The metric of that run.
        rounds: Rows of its completed rounds.
        rounds_since: Number of the change that replaced `rounds`; later changes only append.
        records: The records of these rounds.
        devices: Rows of the fleet by device, each with the number of its last change.
        devices_since: Number of the last change that removed a device; a page then replaces all its devices.
    """

    live: Mapping[str, Any] = field(default_factory=dict)
    live_number: int = 0
    runs: Sequence[Mapping[str, Any]] = ()
    runs_number: int = 0
    run: str = ""
    fleet: str = ""
    metric: Mapping[str, Any] = field(default_factory=dict)
    rounds: Sequence[Mapping[str, Any]] = ()
    rounds_since: int = 0
    records: Sequence[RoundRecord] = ()
    devices: Mapping[str, tuple[int, Mapping[str, Any]]] = field(default_factory=dict)
    devices_since: int = 0
    devices_number: int = 0


@dataclass(frozen=True)
class Cursor:
    """The state that a page has received; by default none."""

    live_number: int = -1
    runs_number: int = -1
    rounds_since: int = -1
    rounds: int = 0
    devices_since: int = -1
    devices_number: int = -1


def events_since(cursor: Cursor, snapshot: Snapshot) -> tuple[bytes, Cursor]:
    """Return the events that bring a page from `cursor` to `snapshot`, as bytes of an event stream, and the new cursor."""
    events = [*_live(cursor, snapshot), *_runs(cursor, snapshot), *_rounds(cursor, snapshot), *_fleet(cursor, snapshot)]
    now = Cursor(
        live_number=snapshot.live_number,
        runs_number=snapshot.runs_number,
        rounds_since=snapshot.rounds_since,
        rounds=len(snapshot.rounds),
        devices_since=snapshot.devices_since,
        devices_number=snapshot.devices_number,
    )
    return b"".join(_event(name, data) for name, data in events), now


def _live(cursor: Cursor, snapshot: Snapshot) -> list[tuple[str, Any]]:
    return [("live", snapshot.live)] if cursor.live_number != snapshot.live_number else []


def _runs(cursor: Cursor, snapshot: Snapshot) -> list[tuple[str, Any]]:
    return [("runs", snapshot.runs)] if cursor.runs_number != snapshot.runs_number else []


def _rounds(cursor: Cursor, snapshot: Snapshot) -> list[tuple[str, Any]]:
    whole = cursor.rounds_since != snapshot.rounds_since
    rows = list(snapshot.rounds if whole else snapshot.rounds[cursor.rounds :])
    if not whole and not rows:
        return []
    return [("rounds", {"run": snapshot.run, "metric": snapshot.metric, "whole": whole, "rows": rows})]


def _fleet(cursor: Cursor, snapshot: Snapshot) -> list[tuple[str, Any]]:
    whole = cursor.devices_since != snapshot.devices_since
    rows = [row for number, row in snapshot.devices.values() if whole or number > cursor.devices_number]
    return [("fleet", {"whole": whole, "rows": rows})] if whole or rows else []


def with_live(snapshot: Snapshot, live: Mapping[str, Any], *, news: bool) -> Snapshot:
    """Return the snapshot with another live status; without `news` only times differ, and no event is sent."""
    return replace(snapshot, live=live, live_number=snapshot.live_number + news)


def with_runs(snapshot: Snapshot, runs: Sequence[Mapping[str, Any]]) -> Snapshot:
    """Return the snapshot with another list of runs."""
    if list(runs) == list(snapshot.runs):
        return snapshot
    return replace(snapshot, runs=tuple(runs), runs_number=snapshot.runs_number + 1)


def with_devices(snapshot: Snapshot, rows: Sequence[Mapping[str, Any]]) -> Snapshot:
    """Return the snapshot with another fleet; only changed rows get a new number."""
    number = snapshot.devices_number + 1
    devices = {}
    for row in rows:
        key = f"{row['fleet']}/{row['id']}"
        known = snapshot.devices.get(key)
        devices[key] = known if known is not None and known[1] == row else (number, row)
    if devices == snapshot.devices:
        return snapshot
    gone = not snapshot.devices.keys() <= devices.keys()
    since = snapshot.devices_since + gone
    return replace(snapshot, devices=devices, devices_number=number, devices_since=since)


def _event(name: str, data: Any) -> bytes:
    # JSON on one line: a value with a line break cannot end the event.
    text = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=True)
    return f"event: {name}\ndata: {text}\n\n".encode("ascii")
