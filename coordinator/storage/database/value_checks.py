"""Checks of the values in a registry's rows, since SQLite stores any type in any column and any text as JSON.

A valid value may still differ from the written value; only the comparison with a run's journal shows a difference.
"""

from __future__ import annotations

import json
import math
import re
import sqlite3
from collections.abc import Callable, Mapping
from itertools import chain
from typing import Any

from fedpatch.coordinator.rounds.held_devices import DRAINED, QUARANTINED
from fedpatch.coordinator.rounds.participant_transitions import State
from fedpatch.coordinator.rounds.round_record import EVALUATION_OUTCOMES, RoundRecord
from fedpatch.coordinator.rounds.run_summary import RunInfo
from fedpatch.coordinator.storage.database.migrations import COUNTERS
from fedpatch.shared.config.fields import NAME

STATUSES = ("running", "finished", "interrupted", "failed")
OUTCOMES = ("aggregated", "failed", *EVALUATION_OUTCOMES)

RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_NAMES = re.compile(NAME.regex)

Row = Mapping[str, Any]


def first_problem(db: sqlite3.Connection) -> str | None:
    """Return the problem of the first invalid row; None for none. Reads every row of the registry."""
    for table, check in _CHECKS.items():
        columns = [row[1] for row in db.execute(f"PRAGMA main.table_info({table})")]
        for values in db.execute(f"SELECT * FROM main.{table}"):  # our tables  # nosec B608
            if problem := row_problem(table, dict(zip(columns, values, strict=True)), check):
                return problem
    return None


def row_problem(table: str, row: Row, check: Callable[[Row], None] | None = None) -> str | None:
    """Return the problem of one row; None for none.

    Args:
        check: Checks the values; the table's own check if left out.
    """
    check = check or _CHECKS.get(table)
    try:
        if check is not None:
            check(row)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        return f"a row of {table} does not hold what was written ({type(error).__name__}: {error})"
    return None


def check_run(run: RunInfo) -> None:
    """Raise ValueError or TypeError for values that no run has."""
    _require_text(run.id, "id")
    _require(RUN_ID.fullmatch(run.id), "id", run.id)
    for name in ("task", "strategy", "private", "schema"):
        _require(isinstance(getattr(run, name), str), name, getattr(run, name))
    _require_number(run.created_at, "created_at")
    _require_count(run.epoch, "epoch", least=1)
    _require(run.status in STATUSES, "status", run.status)
    _require(
        run.stopped_because is None or isinstance(run.stopped_because, str), "stopped_because", run.stopped_because
    )
    _require(run.model is None or isinstance(run.model, str), "model", run.model)
    _require(isinstance(run.settings, Mapping), "settings", run.settings)
    if run.user_accuracy is not None:
        _require_number(run.user_accuracy, "user_accuracy")


def check_record(record: RoundRecord, number: int) -> None:
    """Raise ValueError for an invalid record, or one that is not of round `number`."""
    _require(record.round == number, "round", record.round)
    _require(record.outcome in OUTCOMES, "outcome", record.outcome)


def _check_run_row(row: Row) -> None:
    known = {name: value for name, value in row.items() if name in RunInfo.__dataclass_fields__}
    check_run(RunInfo(**{**known, "settings": _loaded(row["settings"], dict)}))
    _require_count(row["changes"], "changes")


def _check_round_row(row: Row) -> None:
    _require_text(row["run"], "run")
    check_record(RoundRecord.from_dict(_loaded(row["record"], dict)), row["round"])


def _check_device_row(row: Row) -> None:
    _require_name(row["id"], "id")
    _require_name(row["fleet"], "fleet")
    for name in ("first_seen", "last_seen"):
        _require_number(row[name], name)
    for name in COUNTERS:
        _require_count(row[name], name)
    _require(row["online"] in (0, 1), "online", row["online"])
    _require(row.get("relay", 0) in (0, 1), "relay", row.get("relay"))  # not there before version 12
    for name in ("version", "last_reason"):
        _require_text(row[name], name)
    _require(all(isinstance(task, str) for task in _loaded(row["tasks"], list)), "tasks", row["tasks"])


def _check_update_row(row: Row) -> None:
    _require_text(row["run"], "run")
    _require_name(row["device"], "device")
    for name in ("round", "raw_bytes", "num_examples"):
        _require_count(row[name], name)
    _require(isinstance(row["digest"], str) and _DIGEST.fullmatch(row["digest"]), "digest", row["digest"])
    _require_text(row["encoding"], "encoding")


def _check_open_row(row: Row) -> None:
    for name in ("run", "base", "boot", "encoding"):
        _require_text(row[name], name)
    for name in ("round", "target"):
        _require_count(row[name], name)
    lists = (_loaded(row["invited"], list), _loaded(row["absent"], list))
    departed = _loaded(row["departed"], dict)
    maps = (_loaded(row["negotiated"], dict), _loaded(row["offenders"], dict), departed)
    for device in chain(*lists, *maps):
        _require_name(device, "device")
    _require(all(map(_is_departure, departed.values())), "departed", row["departed"])
    for name in ("spent_s", "uptime_s", "unix_s"):
        _require_number(row[name], name)
    for name in ("closing", "paused"):
        _require(row[name] in (0, 1), name, row[name])


def _is_departure(value: object) -> bool:
    """Return whether a value is the state and the reason of a device that left the count."""
    match value:
        case [str(state), str()]:
            return state in set(State)
    return False


def _check_acceptance_row(row: Row) -> None:
    _require_text(row["run"], "run")
    _require_name(row["device"], "device")


def _check_masking_row(row: Row) -> None:
    for name in ("run", "step"):
        _require_text(row[name], name)
    for name in ("round", "team"):
        _require_count(row[name], name)
    if row["device"]:
        _require_name(row["device"], "device")
    _require(isinstance(row["content"], bytes), "content", row["content"])


def _check_carried_row(row: Row) -> None:
    for name in ("run", "base", "encoding"):
        _require_text(row[name], name)
    _require_name(row["device"], "device")
    for name in ("round", "epoch"):
        _require_count(row[name], name, least=1)
    _require_count(row["version"], "version")


def _check_hold_row(row: Row) -> None:
    _require_name(row["fleet"], "fleet")
    _require_name(row["id"], "id")
    _require(row["kind"] in (QUARANTINED, DRAINED), "kind", row["kind"])
    _require_text(row["reason"], "reason")
    _require_number(row["since"], "since")


def _check_offence_row(row: Row) -> None:
    _require_name(row["fleet"], "fleet")
    _require_name(row["id"], "id")
    _require_count(row["count"], "count")
    _require_text(row["last"], "last")


def _check_leader_row(row: Row) -> None:
    _require_name(row["fleet"], "fleet")
    _require_count(row["epoch"], "epoch", least=1)
    _require_text(row["holder"], "holder")


_CHECKS: Mapping[str, Callable[[Row], None]] = {
    "runs": _check_run_row,
    "rounds": _check_round_row,
    "devices": _check_device_row,
    "updates": _check_update_row,
    "open_rounds": _check_open_row,
    "acceptances": _check_acceptance_row,
    "masking": _check_masking_row,
    "carried_work": _check_carried_row,
    "holds": _check_hold_row,
    "offences": _check_offence_row,
    "leaders": _check_leader_row,
}


def _loaded(text: Any, kind: type) -> Any:
    value = json.loads(text)
    if not isinstance(value, kind):
        raise TypeError(f"there is no {kind.__name__} where one was written")
    return value


def _require(fine: object, name: str, value: object) -> None:
    if not fine:
        raise ValueError(f"{name} is {value!r:.100}")


def _require_text(value: object, name: str) -> None:
    _require(isinstance(value, str), name, value)


def _require_name(value: object, name: str) -> None:
    _require(isinstance(value, str) and _NAMES.fullmatch(value), name, value)


def _require_number(value: object, name: str) -> None:
    fine = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    _require(fine, name, value)


def _require_count(value: object, name: str, least: int = 0) -> None:
    _require(isinstance(value, int) and not isinstance(value, bool) and value >= least, name, value)
