"""What the kernel knows of another process: its memory, its processor time, its children, what it wrote."""

from __future__ import annotations

import contextlib
import os
from dataclasses import asdict, dataclass
from pathlib import Path

_KIB = 1024


@dataclass(frozen=True)
class Memory:
    """`rss_bytes` is resident; `pss_bytes` counts what is shared in parts; `peak_bytes` is the most RSS there ever was."""

    rss_bytes: int
    pss_bytes: int
    peak_bytes: int

    def most(self, other: Memory) -> Memory:
        """The larger of each."""
        return Memory(
            max(self.rss_bytes, other.rss_bytes),
            max(self.pss_bytes, other.pss_bytes),
            max(self.peak_bytes, other.peak_bytes),
        )

    def to_dict(self) -> dict[str, int]:
        """For JSON."""
        return asdict(self)


def memory_of(pid: int) -> Memory | None:
    """None where the process ends just now."""
    try:
        status = _kib(Path(f"/proc/{pid}/status").read_text())
        rollup = _kib(Path(f"/proc/{pid}/smaps_rollup").read_text())
        return Memory(status["VmRSS"] * _KIB, rollup["Pss"] * _KIB, status["VmHWM"] * _KIB)
    except (OSError, KeyError):
        return None


def cpu_seconds(pid: int) -> float | None:
    """Processor time that all its threads have used; None where the process ends just now."""
    try:
        user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    except OSError:
        return None
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def children_of(pid: int) -> list[int]:
    """Processes that it started and has not taken leave of: until then, what they wrote is not counted as its own."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(path.parent.name))
    return found


def bytes_written(pid: int) -> int:
    """All that it, and children that it took leave of, ever handed to write(2): to files, pipes and sockets alike."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("wchar:")).split()[1])


def _kib(text: str) -> dict[str, int]:
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: int(value.split()[0]) for name, _, value in pairs if value.strip().endswith("kB")}
