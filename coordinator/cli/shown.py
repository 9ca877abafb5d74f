"""What `fedpatch ca show` and `fedpatch device list` print: tables for people, JSON for programs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import typer
from rich.table import Table

from coordinator.identity.index import DEVICE
from coordinator.identity.index_file import must_read
from coordinator.identity.standing import Row, rows
from coordinator.printing import print_json, print_table
from shared.tls_faults import expiry_of

_DAY_S = 86_400


def show_authority(directory: Path, *, as_json: bool) -> None:
    """The CA itself and all its holders. UsageError where there is no CA."""
    index, now = must_read(directory), time.time()
    found, ends = rows(index, now), expiry_of(directory / "ca.crt")
    if as_json:
        print_json(
            {
                "fleet": index.fleet,
                "directory": str(directory),
                "expires_at": ends,
                "holders": [asdict(one) for one in found],
            }
        )
        return
    typer.echo(f"CA of fleet {index.fleet} in {directory}, good until {_date(ends, now)}")
    _print(found, now)


def show_devices(directory: Path, *, as_json: bool) -> None:
    """The devices alone."""
    now = time.time()
    found = rows(must_read(directory), now, DEVICE)
    if as_json:
        print_json([asdict(one) for one in found])
    else:
        _print(found, now)


def _print(found: Sequence[Row], now: float) -> None:
    table = Table("part", "name", "has", "state", "good until", "others still good", "reason", box=None)
    for one in found:
        until = _date(one.expires_at, now) if one.state != "revoked" else ""
        table.add_row(one.part, one.name, one.kind, one.state, until, str(one.others_good or ""), one.reason)
    print_table(table)


def _date(ends: float | None, now: float) -> str:
    if ends is None:
        return ""
    return f"{time.strftime('%Y-%m-%d', time.gmtime(ends))} ({int((ends - now) // _DAY_S)} days)"
