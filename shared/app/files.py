"""Files that survive a power cut: afterwards a path holds the old bytes or the new ones, never a mixture.

New bytes are written to a temporary file in the same directory and flushed to the disk. One rename then replaces the old
file, and the directory is flushed too, because it holds the name.

A file with a checksum (`seal`) has a line that names the format, the SHA-256 of the content, and the content.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import pwd
import shlex
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgpack

from fedpatch.shared.app.file_systems import remedy_of_mode
from fedpatch.shared.errors import StateError, StateUnreadable, UsageError

T = TypeVar("T")
READ_PAUSES_S = (0.1, 0.4, 1.0)
"""Pauses before a file that cannot be read is read again: the cause may pass, such as too many open files."""


UNFINISHED = ".tmp"
WRITABLE_BY_OTHERS = 0o022  # bits of a mode by which group or others may write
OPEN_TO_OTHERS = 0o077  # bits of a mode that a secret or private file must not have
_FULL_BYTES = 64 * 1024
_REMEDIES = {
    errno.ENOSPC: "free some space on this disk",
    errno.EDQUOT: "free some space on this disk, or have your quota raised",
    errno.EIO: "the disk cannot read or write it: see the system's log, and replace the disk or card",
    errno.EROFS: "this disk is read-only, perhaps because it is damaged: see the system's log, then mount it read-write, or "
    "let the unit of the service write there (ReadWritePaths)",
    errno.EMFILE: "raise the limit of open files of this process (ulimit -n, LimitNOFILE)",
    errno.ENFILE: "end other programs: this machine has too many open files",
    errno.EFBIG: "raise the limit of a file's size (ulimit -f, LimitFSIZE), or use another file system",
    errno.ESTALE: "the server of this file system has replaced it: mount it anew",
}
_READ_REMEDIES = {**_REMEDIES, errno.EIO: "see the system's log, and replace the disk or card if this goes on"}
_NO_DIRECTORY = "a file is where a directory is expected; move it away, or name another directory"
_WRONG_KINDS = {
    errno.EEXIST: _NO_DIRECTORY,
    errno.ENOTDIR: _NO_DIRECTORY,
    errno.EISDIR: "a directory is where a file is expected; move it away, or name another file",
    errno.ENXIO: "name a file",
    errno.ENOENT: "make its directory again, or mount the disk that has it",
    errno.ENAMETOOLONG: "name a directory with a shorter path",
    errno.ELOOP: "a symbolic link there points to itself; name another directory",
}
_OTHERWISE = "make it writable, free some space or choose another state directory"


def import_root() -> Path:
    """Return the folder from which Python imports fedpatch: `src` of a checkout, or site-packages."""
    return Path(__file__).absolute().parents[3]


def write_atomic(path: Path, data: bytes, *, mode: int = 0o600, durable: bool = True) -> None:
    """Replace the content of a file, or make it, in one step.

    Args:
        path: The file; its directory must exist.
        durable: Whether to wait until the bytes would survive a power cut. Without it a power cut may leave any content.

    Raises:
        OSError: The disk refused; the error names `path`, whose content is unchanged.
    """
    with open_atomic(path, mode=mode, durable=durable) as file:
        file.write(data)


@contextlib.contextmanager
def open_atomic(
    path: Path, *, mode: int = 0o600, durable: bool = True, durable_name: bool = True
) -> Iterator[BinaryIO]:
    """Do as `write_atomic` for content written in parts. The file is replaced when the block ends without error.

    Args:
        path: The file; its directory must exist.
        durable: As for `write_atomic`.
        durable_name: Whether to flush the directory too. Without it a power cut may leave the old file or none, but never a
            mixture; the caller calls `sync_directory` once for many files.

    Yields:
        A binary file to write to.

    Raises:
        OSError: As `write_atomic`.
    """
    unfinished: str | None = None
    try:
        _refuse_special(path)
        fd, unfinished = tempfile.mkstemp(prefix=f".{path.name}.", suffix=UNFINISHED, dir=path.parent)
        with os.fdopen(fd, "wb") as file:
            os.fchmod(fd, mode)
            yield file
            file.flush()
            if durable:
                os.fsync(fd)
        os.replace(unfinished, path)
        unfinished = None
        if durable and durable_name:
            sync_directory(path.parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    finally:
        if unfinished is not None:
            with contextlib.suppress(OSError):
                os.unlink(unfinished)


def _refuse_special(path: Path) -> None:
    """Raise OSError if the place is a device, a pipe or a socket: a rename would destroy it."""
    folder = f"{os.path.realpath(path.parent)}/"
    if folder == "/dev/" or folder.startswith("/proc/"):  # /dev/stdout may lead to a file
        raise OSError(errno.ENXIO, "is a device, a pipe or a socket")
    try:
        kind = path.stat().st_mode
    except OSError:  # there is none, or the rename raises the error
        return
    if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
        raise OSError(errno.ENXIO, "is a device, a pipe or a socket")


def write_after(path: Path, data: bytes) -> None:
    """Replace an existing file durably, as `write_atomic`, and keep the old one at `previous_of(path)`."""
    # The new file is durable before any rename, so that a full disk costs no version.
    unfinished = path.with_name(f".{path.name}{UNFINISHED}")
    write_atomic(unfinished, data)
    os.replace(path, previous_of(path))
    # A power cut could keep the second rename and lose the first one: then the previous version would be gone.
    sync_directory(path.parent)
    os.replace(unfinished, path)
    sync_directory(path.parent)


def append_line(path: Path, line: bytes, *, durable: bool = False) -> int:
    """Append a line to a file, and return the file's size.

    An incomplete line of an earlier call is ended first, so that it does not damage this one.

    Args:
        path: The file (mode 0600; made if absent).
        line: The line, which ends with a newline.
        durable: Whether it survives a power cut after the call.

    Raises:
        OSError: The disk refuses; a part of the line may be in the file.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":
            line = b"\n" + line
        while line:
            line = line[os.write(fd, line) :]
        if durable:
            os.fsync(fd)
        after = os.fstat(fd).st_size
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    finally:
        os.close(fd)
    if durable and not size:
        sync_directory(path.parent)
    return after


def previous_of(path: Path) -> Path:
    """Return the path at which `write_after` keeps the old version; after a kill between its renames only this file exists."""
    return path.with_name(path.name + ".previous")


@contextlib.contextmanager
def refusals_of(place: Path, otherwise: str = _OTHERWISE) -> Iterator[None]:
    """Turn an OSError in the block into a StateError that names the file, or else `place`, and the remedy.

    Args:
        place: The place of an error without a file.
        otherwise: The remedy for an error that does not name its cause.
    """
    try:
        yield
    except OSError as error:
        path = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else place
        raise StateError(f"{path}: {error.strerror or error}; {remedy_of(error, path, otherwise)}") from error


def read_state(path: Path) -> bytes:
    """Return the content of a state file, which is read again after a pause if it cannot be read.

    Raises:
        FileNotFoundError, NotADirectoryError: There is no such file.
        StateUnreadable: It cannot be read now, or is a link to a disk that is not there.
        StateError: Something other than a file is there.
    """
    try:
        return reading(path, path.read_bytes)
    except FileNotFoundError as error:
        if fault := broken_link(path):
            raise StateUnreadable(f"{path}: {fault}; mount the disk that has it") from error
        raise


def reading(place: Path, read: Callable[[], T]) -> T:
    """Return the result of `read`, which is repeated after a pause if it fails with an OSError.

    Args:
        place: The file or directory, for messages.
        read: Reads and changes nothing.

    Raises:
        FileNotFoundError, NotADirectoryError, StateUnreadable, StateError: As `read_state`.
    """
    for pause_s in (*READ_PAUSES_S, None):
        try:
            return read()
        except (FileNotFoundError, NotADirectoryError):
            raise
        except OSError as error:
            if error.errno in _WRONG_KINDS:
                raise StateError(f"{place}: {error.strerror or error}; {_WRONG_KINDS[error.errno]}") from error
            if pause_s is None:
                raise unreadable(place, error) from error
            time.sleep(pause_s)
    raise AssertionError


def unreadable(place: Path | str, error: OSError) -> StateUnreadable:
    """Return the error for a file that cannot be read now, with the system's message and the remedy."""
    remedy = _READ_REMEDIES.get(error.errno or 0, "make sure that it may be read")
    if error.errno in (errno.EACCES, errno.EPERM) and (owner := _other_owner(Path(place))) is not None:
        remedy = _remedy_of_owner(Path(place), owner)
    words = f"{place}: cannot be read now: {error.strerror or error}"
    return StateUnreadable(f"{words}; {remedy}, then repeat the command: nothing was changed")


def remedy_of(error: OSError, path: Path, otherwise: str) -> str:
    """Return the remedy for an error of a path: of its disk, of the wrong kind of file, or of another user.

    Args:
        otherwise: The remedy for an error that does not name its cause.
    """
    if known := _REMEDIES.get(error.errno or 0):
        return known
    if error.errno in (errno.EACCES, errno.EPERM) and (owner := _other_owner(path)) is not None:
        return _remedy_of_owner(path, owner)
    return _WRONG_KINDS.get(error.errno or 0, otherwise)


def remedy_to_read(error: OSError, path: Path, otherwise: str) -> str:
    """Return the remedy for a file of a setting that cannot be read: the user who may, for a file of another user.

    Args:
        otherwise: The remedy for each other error.
    """
    if not isinstance(error, PermissionError):
        return otherwise
    owner, own = _other_owner(path), _user_name(os.geteuid())
    others = "" if owner is None else f", or run as its owner (sudo -u {_user_name(owner)})"
    return f"let this user read it (sudo chown {own} {shlex.quote(str(path))}){others}"


def _remedy_of_owner(path: Path, owner: int) -> str:
    """Return the remedy for a path of another user; in a directory of the agent's user, root has restored it from a copy."""
    holder = _holder(path)
    if holder is None or holder == owner:
        words, own = f"run as the user that owns it (sudo -u {_user_name(owner)})", _user_name(os.geteuid())
        if owner == 0:  # so are all files of a directory that root restored from a copy
            words += (
                f", or give it back to {own}, if it was theirs: sudo chown -R {own}: {shlex.quote(str(_visible(path)))}"
            )
        return words
    command = f"sudo chown -R {_user_name(holder)}: {shlex.quote(str(_visible(path)))}"
    return f"give it back to the agent's user: {command} (only its owner is wrong, delete nothing)"


def _holder(path: Path) -> int | None:
    """Return the owner of the nearest directory above `path` that is neither root's nor shared; None for none."""
    for one in path.parents:
        try:
            found = one.stat()
        except OSError:
            continue
        if found.st_uid != 0 and not found.st_mode & stat.S_ISVTX:
            return found.st_uid
    return None


def _visible(path: Path) -> Path:
    """Return the path, or the nearest directory above it that this process can see."""
    for one in (path, *path.parents):
        with contextlib.suppress(OSError):
            one.stat()
            return one
    return path


def _other_owner(path: Path) -> int | None:
    """Return the owner of a path, or of its nearest visible parent directory; None for this user.

    For an absent path return the owner of its directory, or None for root: a service could not use a file of root's.
    """
    absent = False
    for one in (path, *path.parents):
        try:
            owner = one.stat().st_uid
        except PermissionError:  # in a closed directory: find the directory's owner
            continue
        except OSError:
            absent = True
            continue
        return None if owner == os.geteuid() or (absent and owner == 0) else owner
    return None


def remedy_for(error: OSError, otherwise: str) -> str:
    """Return the remedy for an error of a disk, or `otherwise` if the error does not name the cause."""
    return _REMEDIES.get(error.errno or 0, otherwise)


def remedy_at(directory: Path, otherwise: str) -> str:
    """Return the remedy for the disk of `directory`, for callers without an OSError, such as SQLite's."""
    try:
        disk = os.statvfs(directory)
    except OSError as error:
        return remedy_for(error, otherwise)
    if disk.f_flag & os.ST_RDONLY:
        return _REMEDIES[errno.EROFS]
    return _REMEDIES[errno.ENOSPC] if disk.f_bavail * disk.f_frsize < _FULL_BYTES else otherwise


def stamp_of(path: Path) -> tuple[int, ...]:
    """Return a value that changes with a file's content, owner or mode; () if there is no file."""
    try:
        stat_result = path.stat()
    except OSError:
        return ()
    return (
        stat_result.st_ino,
        stat_result.st_mtime_ns,
        stat_result.st_ctime_ns,
        stat_result.st_size,
        stat_result.st_mode,
        stat_result.st_uid,
    )


def check_state_directory(directory: Path) -> None:
    """Check that only this process's user can replace files in a state directory.

    Args:
        directory: An existing directory; a link to one is followed.

    Raises:
        UsageError: It belongs to another user, or its group or others may write to it. They could replace trusted state.
        OSError: Its metadata cannot be read.
    """
    stat_result = directory.stat()
    if stat_result.st_uid != os.geteuid():
        owner = _user_name(stat_result.st_uid)
        own = f"sudo chown -R {_user_name(os.geteuid())}: {shlex.quote(str(directory))}"
        copied = f" (if root restored it from a copy: {own})" if stat_result.st_uid == 0 else ""
        raise UsageError(
            f"state directory {directory} belongs to user {owner}, who could replace its files; run as {owner}, or name "
            f"another directory with --state-dir{copied}"
        )
    if stat_result.st_mode & WRITABLE_BY_OTHERS:
        close = f"chmod go-w {shlex.quote(str(directory))}"
        raise UsageError(
            f"state directory {directory} may be written by other users (mode {stat.S_IMODE(stat_result.st_mode):o}), who "
            f"could replace its files; {remedy_of_mode(directory, f'look at its files, then `{close}`')}"
        )


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def make_directory(path: Path, mode: int = 0o700) -> None:
    """Make a directory with permissions `mode` (less the umask) and its absent parents, durably; no effect if it exists.

    A power cut may remove a directory whose own name was not flushed, with all its flushed files. Raises OSError.
    """
    if not path.is_dir():
        refuse_broken_link(path)
        if not path.parent.exists():
            make_directory(path.parent, 0o777)
        path.mkdir(mode, exist_ok=True)
        sync_directory(path.parent)


def refuse_broken_link(path: Path) -> None:
    """Raise FileNotFoundError for a symbolic link whose target is absent, as of a disk that is not mounted."""
    if fault := broken_link(path):
        raise FileNotFoundError(errno.ENOENT, fault, str(path))


def broken_link(path: Path) -> str:
    """Return the fault of a symbolic link whose target is absent; "" for every other path."""
    return f"a link to {os.readlink(path)}, which is not there" if path.is_symlink() and not path.exists() else ""


def sync_directory(directory: Path) -> None:
    """Flush `directory`, so that renames and deletions in it survive a power cut."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def remove_unfinished(directory: Path) -> None:
    """Delete temporary files that `write_atomic` left in `directory` when its process was killed.

    Only the process that owns the directory may call it, before it writes there.
    """
    for leftover in directory.glob(f".*{UNFINISHED}"):
        leftover.unlink(missing_ok=True)


_DIGEST_BYTES = hashlib.sha256().digest_size


def seal(line: bytes, content: bytes) -> bytes:
    """Return the bytes of a file with this format `line`, which ends with a newline, and `content`."""
    return file_head(line, content) + content


def file_head(line: bytes, content: bytes, digest: bytes = b"") -> bytes:
    """Return the bytes before the content, for a caller that writes a large content without a copy.

    Args:
        line: The format line.
        digest: SHA-256 of the content, if it is known.
    """
    return line + (digest or hashlib.sha256(content).digest())


def content_start(line: bytes) -> int:
    """Return the offset of the content, for a caller that reads only a part of it and does not check the SHA-256."""
    return len(line) + _DIGEST_BYTES


def unseal(path: Path | str, line: bytes, data: bytes, kind: str) -> memoryview:
    """Check a file's bytes and return its content.

    Args:
        path: The file or its URL, for messages.
        line: The format line that it must begin with.
        data: All bytes of the file.
        kind: Noun for the file with its article, for messages: `a patch`.

    Returns:
        The content, without a copy.

    Raises:
        StateError: The file is damaged or has another format line.
    """
    start = content_start(line)
    if not data.startswith(line):
        if data.startswith(line.rstrip(b"\n0123456789")):
            raise StateError(f"{path}: is {kind} of another version of fedpatch; use that version, or remove the file")
        raise StateError(f"{path}: is not {kind}, or is damaged")
    content = memoryview(data)[start:]
    if hashlib.sha256(content).digest() != data[len(line) : start]:
        raise StateError(f"{path}: is damaged (its SHA-256 does not fit)")
    return content


def read_header(path: Path, content: memoryview | bytes, fields: Mapping[str, type]) -> tuple[dict[str, Any], int]:
    """Read the msgpack map at the start of a file's content.

    Args:
        path: The file, for messages.
        fields: Names and types of the map's values.

    Returns:
        The map, and the number of bytes that it takes.

    Raises:
        StateError: The content does not begin with a map of exactly these fields.
    """
    unpacker = msgpack.Unpacker(max_buffer_size=max(1, len(content)))  # 0 would mean no limit
    unpacker.feed(content)
    try:
        header = unpacker.unpack()
    except (ValueError, msgpack.exceptions.UnpackException) as error:
        raise StateError(f"{path}: has no readable header ({error})") from error
    if not isinstance(header, dict) or {name: type(value) for name, value in header.items()} != fields:
        raise StateError(f"{path}: has no readable header")
    return header, unpacker.tell()
