"""Runs, rounds, devices and the live status as plain data for the page: bounded, without secrets, reasons in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedpatch.coordinator.console.words import STATE_WORDS, reason_words
from fedpatch.coordinator.observability.round_text import troubles
from fedpatch.coordinator.report.series import phase_seconds
from fedpatch.coordinator.rounds.device_record import DeviceInfo
from fedpatch.coordinator.rounds.learning_alone import measure_words
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.rounds.run_summary import RunInfo, status_words
from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared.config.fields import settings_of
from fedpatch.shared.tasks.gains import gain_words
from fedpatch.shared.tasks.metric_spec import ACCURACY

MAX_RUNS = 50
"""Runs in the list of the page, the newest."""
MAX_HISTORY = 500
"""Rounds in the history of a device, the newest."""

_SECRET = frozenset(one.name for one in settings_of(RunSettings) if one.rules.secret)
_DIGITS = 4


def run_row(info: RunInfo, rounds: int) -> dict[str, Any]:
    """Return a run for the list of runs; `rounds` is the number of its completed rounds."""
    return {
        "id": info.id,
        "task": info.task,
        "strategy": info.strategy,
        "private": info.private,
        "created_at": info.created_at,
        "status": info.status,
        "words": status_words(info),
        "ua": _short(info.user_accuracy),
        "rounds": rounds,
        "rounds_in_all": info.settings.get("rounds"),
        "target": info.settings.get("target_ua"),
    }


def settings_rows(info: RunInfo) -> list[list[str]]:
    """Return the settings of a run as (name, value), sorted, without secrets."""
    shown = {name: value for name, value in info.settings.items() if name not in _SECRET}
    terms = {"task": info.task, "strategy": info.strategy, "private": info.private}
    return [[name, "not set" if value is None else str(value)] for name, value in sorted({**shown, **terms}.items())]


def metric_of(records: Sequence[RoundRecord]) -> dict[str, Any]:
    """Return the name of the user accuracies of a run, and whether they lie between 0 and 1."""
    last = records[-1] if records else None
    return {
        "name": measure_words(records),
        "fraction": last is None or last.metric == ACCURACY,
    }


def round_row(record: RoundRecord) -> dict[str, Any]:
    """Return a completed round for charts and tables. Values that are None or empty are left out."""
    ordered = [value for value in record.user_accuracies.values() if value is not None]
    phases = phase_seconds(record)
    best = None if not ordered else (max if record.metric_goal == "max" else min)(ordered)
    row: dict[str, Any] = {
        "n": record.round,
        "ok": record.succeeded,
        "evaluation": record.is_evaluation or None,
        "failure": reason_words(record.failure) if record.failure else None,
        "cohort": record.cohort,
        "reported": record.reported,
        "ua": _short(record.user_accuracy),
        "worst": _short(record.user_accuracy_min),
        "best": _short(best),
        "after": _short(record.user_accuracy_after),
        "gaining": _short(record.independent.get("gaining")),
        "gain": gain_words(record.independent["gain"], record.label) if record.independent else None,
        "s": round(sum(phases), 3),
        "phases": [round(value, 3) for value in phases],
        "down": record.bytes_down,
        "up": record.bytes_up,
        "notes": "; ".join(_notes(record)) or None,
    }
    return {name: value for name, value in row.items() if value is not None}


def _notes(record: RoundRecord) -> list[str]:
    """Return the troubles of a round, with the reasons of devices in words."""
    counts = (("declined", record.decline_reasons), ("failed", record.failures), ("refused", record.refused))
    words = [
        f"{word}: {', '.join(f'{count} × {reason_words(reason)}' for reason, count in sorted(reasons.items()))}"
        for word, reasons in counts
        if reasons
    ]
    return [*words, *troubles(replace(record, decline_reasons={}, failures={}, refused={}))]


def device_row(device: DeviceInfo) -> dict[str, Any]:
    """Return a device for the table of the fleet."""
    hold = device.quarantined or device.drained
    return {
        "id": device.id,
        "fleet": device.fleet,
        "online": device.online,
        "seen": device.last_seen,
        "hold": None if hold is None else ("quarantined" if device.quarantined else "drained"),
        "hold_reason": None if hold is None else hold.reason,
        "quarantined": device.quarantined is not None,
        "drained": device.drained is not None,
        "offences": device.offences,
        "reason": reason_words(device.last_reason) if device.last_reason else "",
        "version": device.version,
        "tasks": list(device.tasks),
        "first_seen": device.first_seen,
        "counts": {
            name: getattr(device, name)
            for name in ("invited", "accepted", "declined", "reported", "lost", "failed", "refused", "late", "ignored")
        },
    }


def device_history(device: str, records: Sequence[RoundRecord]) -> list[dict[str, Any]]:
    """Return the entries about a device in the rounds: its user accuracy, or its rounds missed in a row."""
    found = []
    for record in records[-MAX_HISTORY:]:
        ua, missed = record.user_accuracies.get(device), record.absent.get(device)
        if ua is None and not missed:
            continue
        found.append({"n": record.round, "ua": _short(ua), "missed": missed or 0})
    return found


def live_document(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document of a status (StatusFollower.document) with words for states and reasons.

    The completed rounds of the status are left out: they come from the registry, or from the records of the message.
    """
    plain = {name: value for name, value in document.items() if name not in ("rounds", "earlier")}
    plain["devices"] = [
        {**device, "words": STATE_WORDS.get(device["state"], device["state"]), "why": _why(device["reason"])}
        for device in document["devices"]
    ]
    plain["others"] = [
        {**count, "words": STATE_WORDS.get(count["state"], count["state"]), "why": _why(count["reason"])}
        for count in document["others"]
    ]
    plain["unwilling"] = [{**reason, "why": _why(reason["reason"])} for reason in document["unwilling"]]
    return plain


def _why(reason: str) -> str:
    return reason_words(reason) if reason else ""


def _short(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(float(value), _DIGITS)
