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
        directory: The state directory; it may be absent.
        proc: The file system of the kernel's processes.
    """
    lock = directory.resolve() / LOCK_NAME
    writer = status_pid(directory)
    for process in proc.glob("[0-9]*"):
        pid = int(process.name)
        for name, descriptor in _open_locks(process):
            if name == f"{lock}{_DELETED}" or (pid == writer and not _is_same(descriptor, lock)):
                return pid
    return None


def _is_same(descriptor: Path, lock: Path) -> bool:
    # A directory may have several names, such as a link or another mount of it.
    with suppress(OSError):
        return descriptor.samefile(lock)
    return False


def loss_of(directory: Path) -> tuple[str, str] | None:
    """Return the problem of an agent at work whose state directory was deleted or replaced, and the remedy; None for none.

    Args:
        directory: The state directory; it may be absent.
    """
    place = directory.absolute()
    if (pid := agent_of_lost_directory(place)) is None:
        return None
    text = f"the agent with pid {pid} began in {place}, which was deleted or replaced since; it declines every round"
    return text, "restore the directory, then restart the agent"


def _open_locks(process: Path) -> list[tuple[str, Path]]:
    """Return the lock files of agents that a process has open: the path as the kernel names it, and the descriptor."""
    found = []
    with suppress(OSError):  # it has ended, or belongs to another user
        for descriptor in (process / "fd").iterdir():
            with suppress(OSError):
                found.append((os.readlink(descriptor), descriptor))
    return [one for one in found if one[0].removesuffix(_DELETED).endswith(f"/{LOCK_NAME}")]
