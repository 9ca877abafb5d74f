"""What a simulation computes with, as the command line says it."""

from __future__ import annotations

import os

from shared.errors import UsageError, unknown_name

DEVICES = ("cpu", "cuda")
STOPPING = "stops after this round; Ctrl-C again stops at once"


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
