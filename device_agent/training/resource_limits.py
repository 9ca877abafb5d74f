"""Resource limits of the training process, so that other programs of the device come first."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
from pathlib import Path

from fedpatch.device_agent.job.training_messages import WorkerSetup

# Halfway to "kill this one first": where memory runs out, a round is lost rather than an application of the owner's.
_OOM_SCORE_ADJ = 500
_OOM_FILE = Path("/proc/self/oom_score_adj")


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
    """Return freed memory, which the C library otherwise keeps for later, to the system."""
    with contextlib.suppress(OSError, AttributeError):  # not every C library is glibc
        ctypes.CDLL(None).malloc_trim(0)


def limit_in_words(setup: WorkerSetup) -> str:
    """End of a sentence about a process that failed, with its memory limit; "" where there is none."""
    return f"; training may hold {setup.max_memory_mib} MiB (max_memory_mib)" if setup.max_memory_mib else ""
