"""Reads files that another process may create, replace or delete at that moment.

`Path.glob` raises FileNotFoundError if a folder vanishes after it was found and before it is listed (until Python 3.13). A
check that a file exists gives no guarantee for the moment of reading.
"""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path


def listed(folder: Path, pattern: str) -> list[Path]:
    """Return the paths that `folder.glob(pattern)` finds, in order; a folder that vanishes meanwhile counts as empty.

    The pattern has a name for each level and no `**`.
    """
    found = [folder]
    for part in Path(pattern).parts:
        found = [path / name for path in found for name in _names(path) if fnmatchcase(name, part)]
    return found


def content(path: Path) -> bytes | None:
    """Return the bytes of a file; None if the file is absent or has vanished, as after the end of a process."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError, ProcessLookupError):
        return None


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def open_files(directory: Path) -> list[str]:
    """Return the files below `directory` that this process has open. Files of other tests may appear and vanish."""
    return sorted(path for path in descriptors("self") if path.startswith(f"{directory.resolve()}/"))


def descriptors(process: int | str) -> list[str]:
    """Return the open files, pipes and sockets of a process, given by its number or as "self"; none if it has ended."""
    found = []
    with suppress(FileNotFoundError, ProcessLookupError):
        for descriptor in Path(f"/proc/{process}/fd").iterdir():
            with suppress(FileNotFoundError):
                found.append(os.readlink(descriptor))
    return found


def children(*parents: int) -> list[int]:
    """Processes that one of `parents` has started and that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            if int(parent) in parents and state != "Z":
                found.append(int(path.parent.name))
    return found


def signal_tree(parent: int, number: signal.Signals) -> None:
    """Send a signal to a process, and then to all below it."""
    with suppress(ProcessLookupError):
        os.kill(parent, number)
    for child in children(parent):
        signal_tree(child, number)


class PausableServer:
    """A server whose process and child processes can be paused: its port then accepts connections, but does not answer."""

    _process: subprocess.Popen[bytes] | None

    def freeze(self) -> None:
        assert self._process is not None
        signal_tree(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        signal_tree(self._process.pid, signal.SIGCONT)
