"""A lock on a file that one process holds; the kernel frees it when the process ends, however it ends."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from pathlib import Path
from typing import Self

from fedpatch.shared.errors import UsageError

# Whoever only asks whether the lock is free holds it for an instant.
_PAUSES_S = (0.05, 0.2)


class _LockFile:
    """The file of a lock, open until `release`: made (mode 0600) where absent, and never deleted.

    Raises UsageError where `path` is a symbolic link, which is not followed, and OSError where the file cannot be made.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise UsageError(f"{path} is a symbolic link, which no lock is; delete it if it is not yours") from None
            raise

    def release(self) -> None:
        """For the next one; once is enough, more do nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class FileLock(_LockFile):
    """Held from its construction to `release`, or to the end of a `with` block.

    `path` is made (mode 0600) where absent and stays. Raises UsageError(held) when another process has it, and OSError
    where the file cannot be made.
    """

    def __init__(self, path: Path, held: str) -> None:
        super().__init__(path)
        try:
            self._acquire(held)
        except BaseException:
            self.release()
            raise

    def _acquire(self, held: str) -> None:
        for pause_s in (*_PAUSES_S, None):
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if pause_s is None:
                    raise UsageError(held) from None
                time.sleep(pause_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def is_held(path: Path) -> bool:
    """Whether a process holds the lock. A shared lock is tried, so that two who ask do not see each other.

    Raises OSError where the file is absent or cannot be read.
    """
    fd = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


class SharedLock(_LockFile):
    """A lock that many processes share, or that one has alone; held from `take` to `release`.

    `path` is made (mode 0600) where absent and stays. Raises OSError where it cannot be made.
    """

    def take(self) -> bool:
        """Take it alone where nobody has it (True); or else share it, once nobody has it alone (False)."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(self._fd, fcntl.LOCK_SH)
            return False
        return True

    def share(self) -> None:
        """Let others share what was had alone."""
        fcntl.flock(self._fd, fcntl.LOCK_SH)
