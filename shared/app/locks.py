"""File locks between processes. The kernel releases a lock when its process ends, also by a crash."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
import time
from pathlib import Path
from typing import Self

from fedpatch.shared.errors import StateError, UsageError

# `is_held` in another process holds the lock for an instant, so a failure is retried.
_PAUSES_S = (0.05, 0.2)


# NFS without its lock service, some FUSE and 9p file systems.
_WITHOUT_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def _flock(fd: int, operation: int, path: Path) -> None:
    """Call flock; raise StateError if the file system of `path` has no locks."""
    try:
        fcntl.flock(fd, operation)
    except OSError as error:
        if error.errno in _WITHOUT_LOCKS:
            raise _no_locks(path, error) from error
        raise


def _no_locks(path: Path, error: OSError) -> StateError:
    return StateError(
        f"{path}: this file system has no locks ({error.strerror}); use a directory on a local disk, or mount it with "
        "locks (NFS: without nolock, with rpc.statd)"
    )


def require_record_locks(directory: Path) -> None:
    """Raise StateError if the file system of a directory lacks the locks of SQLite (fcntl), which some lack that have flock.

    Args:
        directory: The directory. It is not checked if no file can be made in it.
    """
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _WITHOUT_LOCKS:
            raise _no_locks(directory, error) from error


class _LockFile:
    """The file of a lock, open until `release`. It is made (mode 0600) if absent, and never deleted.

    Raises UsageError if `path` is a symbolic link, which is not followed, OSError if the file cannot be made, and StateError if
    its file system has no locks.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise UsageError(
                    f"{path} is a symbolic link, but a lock must be a file; delete it if it is not yours"
                ) from None
            raise

    def release(self) -> None:
        """Release the lock. Further calls have no effect."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class FileLock(_LockFile):
    """An exclusive lock, held from its construction to `release` or to the end of a `with` block.

    Args:
        path: The lock file, made (mode 0600) if absent and never deleted.
        held: Message of the UsageError that is raised if another process holds the lock.
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
                _flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, self._path)
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
    """Return whether a process holds the lock.

    Raises OSError if the file is absent or unreadable, and StateError if its file system has no locks.

    It tries a shared lock, so that two callers do not count each other as a holder.
    """
    fd = os.open(path, os.O_RDONLY)
    try:
        _flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB, path)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


class SharedLock(_LockFile):
    """A lock that either one process holds alone or many processes share, from `take` to `release`.

    The file is made (mode 0600) if absent, and never deleted. Raises OSError if it cannot be made.
    """

    def take(self) -> bool:
        """Take the lock. Returns True if it is held alone now, False if shared; waits while another process holds it alone."""
        try:
            _flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, self._path)
        except BlockingIOError:
            _flock(self._fd, fcntl.LOCK_SH, self._path)
            return False
        return True

    def share(self) -> None:
        """Change from holding the lock alone to sharing it."""
        _flock(self._fd, fcntl.LOCK_SH, self._path)
