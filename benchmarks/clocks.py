"""Processor time and memory of other processes, as Linux tells them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

_PROC = Path("/proc")


def cpu_s(pids: Iterable[int]) -> float:
    """Processor seconds that these processes have used so far, all their threads together; one that is gone counts as 0."""
    return sum(_cpu_s(pid) for pid in pids)


def _cpu_s(pid: int) -> float:
    # What clock_getcpuclockid(3) computes on Linux, and Python does not offer: the number of a process's CPU clock.
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def family(pid: int) -> list[int]:
    """A process and all its descendants that run."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (parent := _parent(entry)) is not None:
            children.setdefault(parent, []).append(int(entry.name))
    found, todo = [], [pid]
    while todo:
        found.append(todo.pop())
        todo += children.get(found[-1], [])
    return found


def _parent(entry: Path) -> int | None:
    try:
        return int((entry / "stat").read_text("utf-8").rpartition(")")[2].split()[1])
    except OSError:  # it has ended meanwhile
        return None


def memory_bytes(field: str) -> int:
    """`VmHWM` (the most that this process ever had resident) or `VmRSS` (what it has now)."""
    for line in (_PROC / "self" / "status").read_text("utf-8").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(field)


def cpu_model() -> str:
    """Name of the processor."""
    for line in (_PROC / "cpuinfo").read_text("utf-8").splitlines():
        if line.startswith(("model name", "Model")):
            return line.partition(":")[2].strip()
    return os.uname().machine
