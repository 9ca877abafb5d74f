"""Resources of a running fleet: memory, open files, files on its disks, rows of its registry, topics on its broker."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Collection, Iterable
from pathlib import Path

from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE
from fedpatch.shared.mqtt.client import Received
from fedpatch.shared.wire import topics
from tests.support.brokers import client
from tests.support.listing import children

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# This table has one row for each round by design; other rows belong to the open round, or to devices and runs.
_LEDGER = "rounds"


def resident_kib(pid: int) -> float:
    """Return the resident memory of a process in KiB; ProcessLookupError if the process has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES / 1024
    except (FileNotFoundError, IndexError):
        raise ProcessLookupError(pid) from None


def open_files(pid: int) -> int:
    """Return the number of open file descriptors of a process; ProcessLookupError if the process has ended."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except FileNotFoundError:
        raise ProcessLookupError(pid) from None


def training_processes(agents: Collection[int]) -> list[int]:
    """Return the ids of the training processes of some agents; ProcessLookupError if an agent has none."""
    found = children(*agents)
    if len(found) != len(agents):
        raise ProcessLookupError(f"{len(agents)} agents have {len(found)} training processes")
    return found


def files(directories: Iterable[Path]) -> int:
    """Return the number of files in and below some directories."""
    return sum(len(names) for directory in directories for _, _, names in os.walk(directory))


def rows_beyond_the_account(state_dir: Path) -> int:
    """Return the number of rows of the coordinator's registry that are not records of ended rounds."""
    with contextlib.closing(sqlite3.connect(f"file:{state_dir / REGISTRY_FILE}?mode=ro", uri=True)) as registry:
        tables = registry.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        wanted = [name for (name,) in tables if name != _LEDGER and not name.startswith("sqlite_")]
        return sum(int(registry.execute(f"SELECT count(*) FROM {name}").fetchone()[0]) for name in wanted)


def registry_kib_beyond_the_account(state_dir: Path) -> float:
    """Return the size of the registry's used pages without the text of the rounds' records, in KiB."""
    with contextlib.closing(sqlite3.connect(f"file:{state_dir / REGISTRY_FILE}?mode=ro", uri=True)) as registry:
        (pages,), (page_bytes,), (free,) = (
            registry.execute(f"PRAGMA {one}").fetchone() for one in ("page_count", "page_size", "freelist_count")
        )
        (records,) = registry.execute("SELECT coalesce(sum(length(record)), 0) FROM rounds").fetchone()
    return float((pages - free) * page_bytes - records) / 1024


def retained_topics(broker: str, fleet: str) -> int:
    """Return the number of topics of a fleet for which its broker retains a message."""
    everything = topics.device_state(fleet, "x").partition("/dev/")[0] + "/#"
    # With a new session each time: messages that an earlier session has not acknowledged would arrive once more.
    with client(broker, "gauge", everything, clean_start=True) as gauge:
        gauge.settle()
        seen = {event.topic for event in gauge.seen if isinstance(event, Received) and event.retained and event.payload}
    return len(seen - {"barrier/gauge"})
