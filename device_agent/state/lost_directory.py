"""Finds a running agent whose state directory was deleted or replaced, from outside of its process.

The agent goes on with the lock file of the lost directory, so that the lock in the new directory, if there is one, is free.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from fedpatch.device_agent.state.status_file import LOCK_NAME, status_pid

_DELETED = " (deleted)"


def agent_of_lost_directory(directory: Path, proc: Path = Path("/proc")) -> int | None:
    """Return the pid of an agent that began in `directory` and whose lock file is no longer there; None for none.

    Processes of other users are seen by root only.

    Args:
        directory: The state directory, absolute; it may be absent.
        proc: The file system of the kernel's processes.
    """
    lock = directory / LOCK_NAME
    writer = status_pid(directory)
    for process in proc.glob("[0-9]*"):
        pid = int(process.name)
        for name in _open_locks(process):
            if name == f"{lock}{_DELETED}" or (pid == writer and name != str(lock)):
                return pid
    return None


def _open_locks(process: Path) -> list[str]:
    """Return the paths of the lock files of agents that a process has open, as the kernel names them."""
    found = []
    with suppress(OSError):  # it has ended, or belongs to another user
        for descriptor in (process / "fd").iterdir():
            with suppress(OSError):
                found.append(os.readlink(descriptor))
    return [name for name in found if name.removesuffix(_DELETED).endswith(f"/{LOCK_NAME}")]
