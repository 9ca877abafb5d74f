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
    """Return the number of processes to compute with.

    If `wanted` is None, it is the number of usable processor cores. A rank of `torchrun` is one process.

    Raises:
        UsageError: `wanted` is below 1, or above 1 for a rank.
    """
    if wanted is not None and wanted < 1:
        raise UsageError(f"--workers: {wanted} is too few; at least 1")
    if rank_count() == 1:
        return wanted or len(os.sched_getaffinity(0))
    if (wanted or 1) > 1:
        raise UsageError("--workers: each rank of torchrun is one process; use torchrun --nproc-per-node N instead")
    return 1


def rank_count() -> int:
    """Return the number of ranks of the launcher (WORLD_SIZE); 1 without one. Raises UsageError for an invalid value."""
    return _number_in("WORLD_SIZE", 1)


def rank_number() -> int:
    """Return the number of this rank, from 0 (RANK); 0 without a launcher. Raises UsageError for an invalid value."""
    return _number_in("RANK", 0) if rank_count() > 1 else 0


def _number_in(variable: str, default: int) -> int:
    text = os.environ.get(variable, str(default))
    if not text.isdecimal():
        raise UsageError(f"environment variable {variable}: {text!r} is not a number; torchrun sets it")
    return int(text)


def device_name(name: str) -> str:
    """Return the name if it is one of DEVICES; else raise UsageError."""
    if name not in DEVICES:
        raise unknown_name("device", name, DEVICES)
    return name
