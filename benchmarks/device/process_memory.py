"""Memory and disk writes of a process, from the kernel."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_KIB = 1024


@dataclass(frozen=True)
class Memory:
    """`rss_bytes` is resident memory; `pss_bytes` counts shared memory in parts; `peak_bytes` is the greatest RSS so far."""

    rss_bytes: int
    pss_bytes: int
    peak_bytes: int

    def most(self, other: Memory) -> Memory:
        """Return the larger of each value."""
        return Memory(
            max(self.rss_bytes, other.rss_bytes),
            max(self.pss_bytes, other.pss_bytes),
            max(self.peak_bytes, other.peak_bytes),
        )


def memory_of(pid: int) -> Memory | None:
    """Return the memory of a process; None if it has just ended."""
    try:
        status = _kib(Path(f"/proc/{pid}/status").read_text())
        rollup = _kib(Path(f"/proc/{pid}/smaps_rollup").read_text())
        return Memory(status["VmRSS"] * _KIB, rollup["Pss"] * _KIB, status["VmHWM"] * _KIB)
    except (OSError, KeyError):
        return None


def memory_bytes(field: str) -> int:
    """Return `VmHWM` (the greatest resident memory of this process so far) or `VmRSS` (the present one)."""
    return _kib(Path("/proc/self/status").read_text())[field] * _KIB


def bytes_written(pid: int) -> int:
    """Return all bytes that a process, and children that it waited for, passed to write(2), also for pipes and sockets."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("wchar:")).split()[1])


def _kib(text: str) -> dict[str, int]:
    pairs = (line.partition(":") for line in text.splitlines())
    return {name: int(value.split()[0]) for name, _, value in pairs if value.strip().endswith("kB")}
