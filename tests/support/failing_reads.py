"""Files that cannot be read for a while, as with a failing card, too many open files, or other permissions."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from fedpatch.shared.app import files

ERRORS = (errno.EIO, errno.EMFILE, errno.ENFILE, errno.EACCES)


class FailingReads:
    """Makes reads of chosen files fail; nothing waits between two attempts.

    Args:
        patch: Undoes it at the end of the test.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._left: dict[Path, int] = {}
        self.error = errno.EIO
        read = Path.read_bytes

        def read_bytes(path: Path) -> bytes:
            if self._left.get(path, 0) > 0:
                self._left[path] -= 1
                raise OSError(self.error, os.strerror(self.error), str(path))
            return read(path)

        patch.setattr(Path, "read_bytes", read_bytes)
        patch.setattr(files, "READ_PAUSES_S", (0.0, 0.0, 0.0))

    def fail(self, path: Path, times: int = 1_000_000) -> None:
        """Let the next reads of a file fail."""
        self._left[path] = times

    def recover(self) -> None:
        """Let all reads succeed again."""
        self._left.clear()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> FailingReads:
    return FailingReads(monkeypatch)
