"""Processor time and parents of other processes, read from Linux."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

_PROC = Path("/proc")


def cpu_s(pids: Iterable[int]) -> float:
    """Return the processor seconds of all threads of these processes so far; a process that has ended counts as 0."""
    return sum(_cpu_s(pid) for pid in pids)


def _cpu_s(pid: int) -> float:
    # The number of a process's CPU clock as clock_getcpuclockid(3) computes it on Linux; Python lacks this function.
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0


def family(pid: int) -> list[int]:
    """Return a process and all its running descendants."""
    children = _children()
    found, todo = [], [pid]
    while todo:
        found.append(todo.pop())
        todo += children.get(found[-1], [])
    return found


def children_of(pid: int) -> list[int]:
    """Return child processes that `pid` has not waited for; until it does, their writes do not count as its own."""
    return _children().get(pid, [])


def _children() -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (parent := _parent(entry)) is not None:
            children.setdefault(parent, []).append(int(entry.name))
    return children


def _parent(entry: Path) -> int | None:
    try:
        return int((entry / "stat").read_text("utf-8").rpartition(")")[2].split()[1])
    except OSError:  # the process has ended meanwhile
        return None
