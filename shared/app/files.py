"""Files that survive a power cut: a path holds the old bytes or the new ones, never a mixture and never less.

A device loses power whenever somebody pulls the plug. So the new bytes go to a file of their own in the same
directory, are flushed to the disk, take the place of the old file in one rename, and the directory is flushed too,
since it is what holds the name.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import shlex
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from fedpatch.shared.errors import StateError, UsageError

UNFINISHED = ".tmp"
WRITABLE_BY_OTHERS = 0o022  # bits of a mode by which group or others may write
OPEN_TO_OTHERS = 0o077  # bits of a mode that nobody but the owner should have of what is secret or private
_FULL_BYTES = 64 * 1024
_MENDS = {
    errno.ENOSPC: "free some space on this disk",
    errno.EDQUOT: "free some space on this disk, or have your quota raised",
    errno.EROFS: "this disk is read-only, as one becomes that is damaged: see the system's log, then mount it read-write",
}


def import_root() -> Path:
    """The folder from which Python imports fedpatch: `src` of a checkout, or site-packages."""
    return Path(__file__).absolute().parents[3]


def write_atomic(path: Path, data: bytes, *, mode: int = 0o600, durable: bool = True) -> None:
    """Puts `data` at `path`, durably, with the permissions `mode`; the directory must exist.

    Once this returns, the bytes outlast a power cut, unless `durable` is False: then nobody waits for the disk, and a power cut
    may leave anything there. Raises OSError, naming `path`, where the disk refuses; then `path` is as it was.
    """
    with open_atomic(path, mode=mode, durable=durable) as file:
        file.write(data)


@contextlib.contextmanager
def open_atomic(path: Path, *, mode: int = 0o600, durable: bool = True) -> Iterator[BinaryIO]:
    """As `write_atomic`, for what is written bit by bit: it is at `path` when the block ends, unless by an error."""
    unfinished: str | None = None
    try:
        fd, unfinished = tempfile.mkstemp(prefix=f".{path.name}.", suffix=UNFINISHED, dir=path.parent)
        with os.fdopen(fd, "wb") as file:
            os.fchmod(fd, mode)
            yield file
            file.flush()
            if durable:
                os.fsync(fd)
        os.replace(unfinished, path)
        unfinished = None
        if durable:
            sync_directory(path.parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    finally:
        if unfinished is not None:
            with contextlib.suppress(OSError):
                os.unlink(unfinished)


def write_after(path: Path, data: bytes) -> None:
    """As `write_atomic`, for durable bytes in the place of others, which are kept at `previous_of(path)`."""
    # Whole and durable before anything is renamed: a disk that is full costs no version.
    unfinished = path.with_name(f".{path.name}{UNFINISHED}")
    write_atomic(unfinished, data)
    os.replace(path, previous_of(path))
    # A disk may keep the second rename and lose the first: then the version before would be gone.
    sync_directory(path.parent)
    os.replace(unfinished, path)
    sync_directory(path.parent)


def append_durably(path: Path, line: bytes) -> None:
    """Add `line`, which ends with a newline, to the file at `path` (0600; made if absent).

    Once this returns, the line outlasts a power cut. A line that an earlier call left half written is ended first, so that it
    does not damage this one. Raises OSError where the disk refuses; part of the line may then be there.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":
            line = b"\n" + line
        while line:
            line = line[os.write(fd, line) :]
        os.fsync(fd)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    finally:
        os.close(fd)
    if not size:
        sync_directory(path.parent)


def previous_of(path: Path) -> Path:
    """Where `write_after` keeps the version before; a kill between its two renames leaves no other."""
    return path.with_name(path.name + ".previous")


@contextlib.contextmanager
def refusals_of(place: Path) -> Iterator[None]:
    """What the disk refuses within becomes a StateError that names the file, or `place`, and the mend."""
    try:
        yield
    except OSError as error:
        remedy = remedy_for(error, "make it writable, free some space or choose another state directory")
        raise StateError(f"{error.filename or place}: {error.strerror or error}; {remedy}") from error


def remedy_for(error: OSError, otherwise: str) -> str:
    """What to do about a disk that refuses, where its error says what is wrong with it."""
    return _MENDS.get(error.errno or 0, otherwise)


def remedy_at(directory: Path, otherwise: str) -> str:
    """The same where no error says it, as of SQLite: the disk of `directory` is looked at."""
    try:
        disk = os.statvfs(directory)
    except OSError as error:
        return remedy_for(error, otherwise)
    if disk.f_flag & os.ST_RDONLY:
        return _MENDS[errno.EROFS]
    return _MENDS[errno.ENOSPC] if disk.f_bavail * disk.f_frsize < _FULL_BYTES else otherwise


def stamp_of(path: Path) -> tuple[int, ...]:
    """What changes when a file is written, replaced, or its owner and rights become others; () where there is none."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_mode, found.st_uid


def check_state_directory(directory: Path) -> None:
    """Check that nobody but this process's user can replace files in a state directory.

    Args:
        directory: An existing directory; a link to one is followed.

    Raises:
        UsageError: It belongs to another user, or its group or others may write to it. They could put links or files of their
            own where state is written and trusted.
        OSError: It cannot be looked at.
    """
    found = directory.stat()
    if found.st_uid != os.geteuid():
        owner = _user_name(found.st_uid)
        raise UsageError(
            f"state directory {directory} belongs to user {owner}, who could replace its files; run as {owner}, or name "
            "another directory with --state-dir"
        )
    if found.st_mode & WRITABLE_BY_OTHERS:
        raise UsageError(
            f"state directory {directory} may be written by other users (mode {stat.S_IMODE(found.st_mode):o}), who could "
            f"replace its files; look at its files, then `chmod go-w {shlex.quote(str(directory))}`"
        )


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def make_directory(path: Path, mode: int = 0o700) -> None:
    """Make `path` with these permissions (less the umask's), and absent directories above it, durably.

    A power cut may take a directory whose own name was not flushed, with every file that was. Nothing happens where `path` is
    there. Raises OSError.
    """
    if not path.is_dir():
        if not path.parent.exists():
            make_directory(path.parent, 0o777)
        path.mkdir(mode, exist_ok=True)
        sync_directory(path.parent)


def sync_directory(directory: Path) -> None:
    """Makes renames and deletions inside `directory` outlast a power cut."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def remove_unfinished(directory: Path) -> None:
    """Deletes what `write_atomic` left half written in `directory` when its process was killed.

    For the one owner of the directory to call, before it writes there.
    """
    for leftover in directory.glob(f".*{UNFINISHED}"):
        leftover.unlink(missing_ok=True)
