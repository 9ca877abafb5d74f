"""Blobs as files of a directory: each replaced by one rename, after its bytes are on the disk."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedpatch.shared.app.files import (
    UNFINISHED,
    make_directory,
    open_atomic,
    remedy_for,
    remove_unfinished,
    sync_directory,
)
from fedpatch.shared.errors import StateError


class FileBlobs:
    """The blob store of a run in a directory, which need not exist.

    Args:
        directory: The directory.
        modes: Permissions of files, and of directories less the umask.
    """

    concurrency = 1

    def __init__(self, directory: Path, modes: tuple[int, int] = (0o600, 0o700)) -> None:
        self._directory = directory
        self._file_mode, self._directory_mode = modes

    def where(self, key: str = "") -> str:
        """Return the path of a file, or of the directory."""
        return str(self._directory / key)

    def check(self) -> None:
        """Do nothing: the state directory is checked elsewhere, and another one at the first write."""

    def put(self, key: str, *parts: bytes, durable: bool = True, durable_name: bool = True) -> None:
        """Replace a file, or make it."""
        path = self._directory / key
        with _disk_errors(path):
            make_directory(path.parent, self._directory_mode)
            if path.is_dir():  # a repaired file system may hold anything; a rename cannot replace a directory by a file
                path.rename(path.with_name(f"{path.name}.damaged"))
            if durable and durable_name:
                remove_unfinished(path.parent)  # of a process that was killed; only the run's process writes here
            with open_atomic(path, mode=self._file_mode, durable=durable, durable_name=durable_name) as file:
                for part in parts:
                    file.write(part)

    def sync(self, folder: str) -> None:
        """Flush a directory, so that one wait for the disk covers many names."""
        path = self._directory / folder
        with _disk_errors(path):
            sync_directory(path)

    def get(self, key: str) -> bytes | None:
        """Return the content of a file."""
        path = self._directory / key
        with _disk_errors(path, "make sure that it may be read"):
            try:
                return path.read_bytes()
            except (FileNotFoundError, NotADirectoryError):
                return None

    def list(self, folder: str = "") -> list[str]:
        """Return the names in a directory, without unfinished files."""
        path = self._directory / folder
        with _disk_errors(path):
            if not path.is_dir():
                return []
            with os.scandir(path) as found:
                names = [one.name + "/" * one.is_dir() for one in found]
        return sorted(name for name in names if not name.endswith(UNFINISHED))

    def delete(self, *keys: str) -> None:
        """Delete files and whole directories. A directory in the place of a file stays."""
        for key in keys:
            path = self._directory / key
            with _disk_errors(path):
                if not key.endswith("/"):
                    if not path.is_dir():
                        path.unlink(missing_ok=True)
                elif path.is_dir():
                    shutil.rmtree(path)


@contextmanager
def _disk_errors(path: Path, remedy: str = "make sure there is space and that it may be written") -> Iterator[None]:
    """Raise StateError for errors of the disk, with the path, the system's message and a remedy."""
    try:
        yield
    except FileNotFoundError as error:
        raise StateError(f"{error.filename or path}: is not there") from error
    except OSError as error:
        raise StateError(f"{error.filename or path}: {error.strerror or error}; {remedy_for(error, remedy)}") from error
