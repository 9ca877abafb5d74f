"""Rows of a registry: runs, devices, and changes by other programs."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from fedpatch.coordinator.rounds.run_summary import RunInfo
from fedpatch.coordinator.storage.database.sqlite_file import SqliteDatabase
from fedpatch.coordinator.storage.run_registry import Registry, Sighting


def new_run(registry: Registry, created_at: float = 0.0, **changes: Any) -> RunInfo:
    """Add a FedAvg run of digits; `changes` replace some of its terms."""
    terms = {"task": "digits", "strategy": "fedavg", "private": "none", "settings": {}, "schema": "5c" * 32}
    return registry.create_run(created_at=created_at, **{**terms, **changes})


def seen(
    registry: Registry,
    device: str,
    *,
    fleet: str = "lab",
    now: float = 1.0,
    online: bool = True,
    version: str = "",
    tasks: Sequence[str] = (),
) -> None:
    """Record the presence of one device."""
    registry.seen_devices(fleet, [Sighting(device, now, online, version, tuple(tasks))])


def driver_of(registry: Registry) -> sqlite3.Connection:
    """Return the sqlite3 connection of a registry in SQLite."""
    assert isinstance(registry._db, SqliteDatabase)
    return registry._db.driver


def change(path: Path, *statements: str) -> None:
    """Change a database as another SQLite program would."""
    with closing(sqlite3.connect(path, timeout=10)) as db:
        for statement in statements:
            db.execute(statement)
        db.commit()
