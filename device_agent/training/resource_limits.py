"""Resource limits of the training process, so that other programs of the device come first."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import re
import resource
from collections.abc import Iterator
from pathlib import Path

from fedpatch.device_agent.job.training_messages import WorkerSetup

# Half of the highest score: if memory runs out, a round is lost rather than an application of the owner.
_OOM_SCORE_ADJ = 500
_OOM_FILE = Path("/proc/self/oom_score_adj")
# A mapping in /proc/self/smaps: addresses, permissions, offset, device, inode (0 without a file), path.
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ (\d+)")


def apply_limits(setup: WorkerSetup) -> None:
    """Apply the limits of `setup` to this process, for good; limits that the system refuses are left as they are.

    `max_memory_mib` limits the data of the process (RLIMIT_DATA), not its addresses: torch maps files that are many times
    larger than the part that it uses.
    """
    with contextlib.suppress(OSError):
        os.nice(setup.nice)
    with contextlib.suppress(OSError):
        if int(_OOM_FILE.read_text()) < _OOM_SCORE_ADJ:
            _OOM_FILE.write_text(str(_OOM_SCORE_ADJ))
    if setup.max_memory_mib:
        wanted = setup.max_memory_mib * 2**20
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def give_memory_back() -> None:
    """Return memory to the system: freed memory that the C library keeps for later, and pages of files that are in no use.

    Loading torch reads 60 MB of its libraries that no training needs; a page that is needed again is read again. No other
    thread may load a library meanwhile: its mappings would change between their reading and the return of the pages.
    """
    with contextlib.suppress(OSError, AttributeError):  # not every C library is glibc
        ctypes.CDLL(None).malloc_trim(0)
    with contextlib.suppress(OSError, AttributeError, ValueError):
        madvise = ctypes.CDLL(None).madvise
        for start, end in _unchanged_mappings(Path("/proc/self/smaps").read_text()):
            madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED)


def _unchanged_mappings(smaps: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of the mappings of files that cannot be written, and in which no page was changed before.

    Pages with relocated addresses are changed pages, in memory (`Anonymous`) or swapped out (`Swap`). Dropping such a page
    would restore the bytes of the file, and the next call through such an address would end the process.
    """
    found: tuple[int, int] | None = None
    for line in smaps.splitlines():
        if heading := _MAPPING.match(line):
            readonly_file = heading[4] != "0" and "w" not in heading[3]
            found = (int(heading[1], 16), int(heading[2], 16)) if readonly_file else None
        elif line.startswith(("Anonymous:", "Swap:")) and line.split()[1] != "0":
            found = None
        elif found and line.startswith("VmFlags:"):  # the last line of a mapping
            yield found


def limit_in_words(setup: WorkerSetup) -> str:
    """End of a sentence about a process that failed, with its memory limit; "" where there is none."""
    return f"; training may hold {setup.max_memory_mib} MiB (max_memory_mib)" if setup.max_memory_mib else ""
