"""Command-line options that several commands of the simulator share: task, data, clients, workers, device."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from fedpatch.shared.errors import UsageError, unknown_name

DEVICES = ("cpu", "cuda")
STOPPING = "stops after this round; Ctrl-C again stops at once"

TaskName = Annotated[str, typer.Option(metavar="NAME", help="Task to train, by name or as module:attribute.")]
Clients = Annotated[int, typer.Option(metavar="W", help="Number of clients.")]
Participation = Annotated[float, typer.Option(metavar="C", help="Share of the clients selected per round.")]
Epochs = Annotated[int, typer.Option(metavar="N", help="Passes over a client's data per round.")]
Data = Annotated[
    str,
    typer.Option(
        metavar="TEMPLATE",
        help="Data spec with {index}, {count} and {seed}, instead of the task's.",
    ),
]
DataRoot = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Data sets; default: FEDPATCH_DATA, else the user's cache."),
]
Workers = Annotated[int | None, typer.Option(metavar="N", help="Number of processes; default: one per CPU core.")]
Device = Annotated[str, typer.Option(metavar="DEVICE", help="Device to compute on: cpu or cuda.")]


def worker_count(wanted: int | None) -> int:
    """Processes to compute with: as many as there are cores at hand, unless the user says. Raises UsageError below 1."""
    if wanted is None:
        return len(os.sched_getaffinity(0))
    if wanted < 1:
        raise UsageError(f"--workers: {wanted} is too few; at least 1")
    return wanted


def device_name(name: str) -> str:
    """The name, if a device can be called so. Raises UsageError."""
    if name not in DEVICES:
        raise unknown_name("device", name, DEVICES)
    return name
