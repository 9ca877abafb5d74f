"""Small files of the kernel and of services below a root, which is `/` on a device and a folder in a test."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

_MAX_BYTES = 64 * 1024
_PROGRAM_DIRS = ("usr/local/bin", "usr/bin", "usr/sbin", "bin", "sbin", "lib/systemd")


class SysFs:
    """All paths are absolute, as on the device, and looked up below the root."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.live = root == Path("/")

    def text(self, path: str) -> str | None:
        """Return the text of a file, stripped and at most 64 KiB; None where it cannot be read."""
        try:
            with self._below(path).open("rb") as file:
                return file.read(_MAX_BYTES).decode("utf-8", "replace").strip()
        except OSError:  # absent, or a driver that has no value just now
            return None

    def names(self, directory: str) -> list[str]:
        """Return the entries of a directory, sorted; none if it does not exist. Raises OSError if it cannot be read."""
        try:
            return sorted(os.listdir(self._below(directory)))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def exists(self, path: str) -> bool:
        """Return whether there is such a file, directory or link."""
        return os.path.lexists(self._below(path))

    def target_name(self, path: str) -> str:
        """Return the last part of a symbolic link's target; empty if the path is no link."""
        try:
            return os.path.basename(os.readlink(self._below(path)))
        except OSError:
            return ""

    def program(self, name: str) -> str | None:
        """Path of a program: below the root, and on the machine itself also by $PATH."""
        for directory in _PROGRAM_DIRS:
            path = self.root / directory / name
            if os.access(path, os.X_OK) and path.is_file():
                return str(path)
        return shutil.which(name) if self.live else None

    def _below(self, path: str) -> Path:
        return self.root / path.lstrip("/")
