"""Checks of the host by `doctor`: versions, clock, state directory, memory."""

from __future__ import annotations

import errno
import importlib.metadata
import os
import platform
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from fedpatch import shared
from fedpatch.shared.app.clock import CLOCK_TOLERANCE_S, is_synchronised
from fedpatch.shared.app.file_systems import passing_mounts, remedy_of_mode
from fedpatch.shared.app.files import broken_link, refuse_broken_link, write_atomic
from fedpatch.shared.app.formatting import minute, size
from fedpatch.shared.app.locks import FileLock, require_record_locks
from fedpatch.shared.diagnostics.checks import Checkup
from fedpatch.shared.errors import StateError, problem_and_remedy

# torch 2.10 and later dies with SIGILL on the Cortex-A53 and A72 of a Pi 3 and a Pi 4 (see pyproject.toml).
_LAST_TORCH_ON_AARCH64 = (2, 9)
_PROBE_BYTES = 64 * 1024
_SPARE_INODES = 100
_MEMINFO = Path("/proc/meminfo")

_NO_ROOM = "free some space (df -h, df -i), or choose another --state-dir"
_OTHER_USER = "run as the user that owns the directory (sudo -u USER), or give it to yours with chown"
_WRITE_REMEDIES = {
    errno.EROFS: "mount the file system for writing (a worn SD card turns read-only: sudo dmesg), let the unit of the service "
    "write there (ReadWritePaths), or choose another --state-dir",
    errno.ENOSPC: _NO_ROOM,
    errno.EDQUOT: _NO_ROOM,
    errno.EACCES: _OTHER_USER,
    errno.EPERM: _OTHER_USER,
    errno.ENOENT: "mount the disk of the link's target, or make that directory",
}

# Not the group's execute bit: a group may get access to the personal models below.
_OPEN = 0o067


@dataclass(frozen=True)
class Space:
    """Disk space that `what` needs: below `least_bytes` the check fails, below `amply_bytes` it warns."""

    least_bytes: int
    amply_bytes: int
    what: str


def check_versions(extra: str, checkup: Checkup, machine: str = platform.machine()) -> None:
    """Check `versions`: the installed packages.

    Args:
        extra: Extra of fedpatch that installs torch.
        machine: Architecture of the processor.
    """
    versions = {name: _version(name) for name in ("torch", "paho-mqtt", "numpy")}
    text = f"fedpatch {shared.__version__}, Python {platform.python_version()}"
    text += "".join(f", {name} {version}" for name, version in versions.items() if version)
    if not versions["torch"]:
        checkup.fail("versions", f"{text}; torch is not installed", f"pip install 'fedpatch[{extra}]'")
    elif machine == "aarch64" and _is_beyond(versions["torch"], _LAST_TORCH_ON_AARCH64):
        remedy = f"pip install 'fedpatch[{extra}]', which takes a torch before 2.10"
        checkup.warn("versions", f"{text}; this torch dies with SIGILL on a Raspberry Pi 3 or 4", remedy)
    else:
        checkup.good("versions", text)


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _is_beyond(version: str, limit: tuple[int, int]) -> bool:
    parts = version.split(".")[:2]
    return all(part.isdigit() for part in parts) and tuple(int(part) for part in parts) > limit


def check_clock(checkup: Checkup, *, tls: bool, newest: float = 0.0, now: float | None = None) -> None:
    """Check `clock`. A wrong clock is only a warning, because fedpatch counts in durations; but certificates have dates.

    Args:
        tls: Whether the broker connection uses TLS.
        newest: Newest unix time that was written in the state directory; 0 for none.
        now: Unix time; None: the current time.
    """
    now = time.time() if now is None else now
    installed = Path(shared.__file__).stat().st_mtime
    shown = minute(now)
    needs = (
        "the check of the broker's certificate needs it" if tls else "only times in lists and logs are wrong by that"
    )
    remedy = "set it (sudo timedatectl set-ntp true), or give the device a clock that keeps time without power"
    synchronised = is_synchronised()
    if now < max(installed, newest - CLOCK_TOLERANCE_S):
        event = f"{minute(newest)}, the newest time in the state directory"
        text = f"{shown} is before {event if newest > installed else 'fedpatch was installed here'}"
        if synchronised:
            text, needs = f"{text}, and a time server has set the clock", "it was ahead then"
            remedy = "nothing: lists and logs keep the times of then"
        checkup.warn("clock", f"{text}; {needs}", remedy)
    elif synchronised is False:
        checkup.warn("clock", f"{shown}, not synchronised with any time server; {needs}", remedy)
    else:
        known = "synchronised" if synchronised else "whether it is synchronised is not known here"
        checkup.good("clock", f"{shown}, {known}")


def check_state_dir(
    directory: Path, space: Space, checkup: Checkup, *, private: bool, parts: Sequence[str] = ()
) -> None:
    """Check `state_dir` and `disk` by writing to the directory and locking a file; no file stays.

    `state_lasts` is a warning for a directory that does not survive a reboot; there is no such finding for others.

    Args:
        directory: State directory; it may be absent.
        private: Whether other users must not read the directory.
        parts: Names in it that may be links to other disks, or disks of their own.
    """
    directory = directory.absolute()
    try:
        with _made(directory) as fresh:
            with tempfile.TemporaryDirectory(prefix=".doctor-", dir=directory) as inner:
                write_atomic(Path(inner) / "probe", bytes(_PROBE_BYTES))
                FileLock(Path(inner) / "lock", "").release()
                if not private:
                    require_record_locks(Path(inner))  # the coordinator's registry is a database of SQLite
            if not fresh:
                _check_owner(directory, checkup, private)
            else:
                checkup.good("state_dir", f"{directory} can be made")
            for passing in passing_mounts(directory, parts):
                checkup.warn("state_lasts", passing.problem, passing.remedy)
            for name in parts:
                _check_link(directory / name, checkup)
            _check_space(directory, space, checkup)
    except StateError as error:  # no locks
        checkup.fail("state_dir", *_parts(error, directory))
    except OSError as error:
        checkup.fail("state_dir", f"nothing can be written in {directory}: {error.strerror}", _write_remedy(error))


def _check_link(path: Path, checkup: Checkup) -> None:
    """Check a part of the state directory that may be a link to another disk; there is no finding without a problem."""
    if fault := broken_link(path):
        checkup.fail("state_dir", f"{path}: {fault}", "mount the disk that has it, or put the link right")


def _parts(error: StateError, directory: Path) -> tuple[str, str]:
    """Return problem and remedy of a file system without locks, with the directory in place of the probe."""
    problem, remedy = problem_and_remedy(str(error))
    return f"{directory}: {problem.partition(': ')[2]}", remedy


def _write_remedy(error: OSError) -> str:
    return _WRITE_REMEDIES.get(
        error.errno or 0, "make it a directory that can be written, or choose another --state-dir"
    )


@contextmanager
def _made(directory: Path) -> Iterator[bool]:
    """Make the directory for the block, and remove it afterwards if it was absent. Yields whether it was absent."""
    absent = [folder for folder in (directory, *directory.parents) if not folder.exists()]
    for folder in absent:
        refuse_broken_link(folder)
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        yield bool(absent)
    finally:
        for folder in absent:
            with suppress(OSError):  # not empty: another process has begun to use it
                folder.rmdir()


def _check_owner(directory: Path, checkup: Checkup, private: bool) -> None:
    found = directory.stat()
    if found.st_uid != os.geteuid():
        text = f"{directory} belongs to user {found.st_uid}, and this is user {os.geteuid()}"
        checkup.warn("state_dir", text, "run fedpatch as one user always (sudo -u USER), or it will lack rights later")
    elif private and stat.S_IMODE(found.st_mode) & _OPEN:
        text = f"{directory} is open to other users (mode {stat.S_IMODE(found.st_mode):o}), and holds private patches"
        checkup.warn("state_dir", text, remedy_of_mode(directory, f"chmod g-rw,o-rwx {directory}"))
    elif stat.S_IMODE(found.st_mode) & 0o002:
        remedy = remedy_of_mode(directory, f"chmod g-w,o-rwx {directory}")
        checkup.warn("state_dir", f"anybody may write in {directory}", remedy)
    else:
        checkup.good("state_dir", f"{directory} can be written")


def _check_space(directory: Path, space: Space, checkup: Checkup) -> None:
    disk = os.statvfs(directory)
    free = disk.f_bavail * disk.f_frsize
    text = f"{size(free)} free for {space.what}"
    if free < space.least_bytes:
        checkup.fail(
            "disk", f"{text}, which take {size(space.least_bytes)}", "free some space, or choose another --state-dir"
        )
    elif disk.f_files and disk.f_favail < _SPARE_INODES:
        text = f"only {disk.f_favail} more files can be made (inodes)"
        checkup.fail("disk", text, "delete unneeded files (df -i), or choose another --state-dir")
    elif free < space.amply_bytes:
        remedy = "free some space, or lower --max-model-mib, so that a model which is too large is refused at once"
        checkup.warn("disk", f"{text}, which may take up to {size(space.amply_bytes)}", remedy)
    else:
        checkup.good("disk", text)


def check_memory(needed_bytes: float, what: str, checkup: Checkup, meminfo: Path = _MEMINFO) -> None:
    """Check `memory`: whether enough is available.

    Args:
        what: Noun for the program that needs it.
        meminfo: File of the kernel that has `MemAvailable`.
    """
    available = _bytes_of(meminfo, "MemAvailable")
    if available is None:
        checkup.skip("memory", f"{meminfo} does not show the available memory")
        return
    text = f"{size(available)} available; {what} takes about {size(needed_bytes)}"
    if available < needed_bytes:
        remedy = "end other programs, add swap or zram, or train a smaller model"
        checkup.warn("memory", f"{text}, so that the kernel may end it", remedy)
    else:
        checkup.good("memory", text)


def resident_memory(pid: int) -> int | None:
    """Return the peak memory of a process in bytes."""
    return _bytes_of(Path(f"/proc/{pid}/status"), "VmHWM")


def _bytes_of(path: Path, name: str) -> int | None:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    kib = next((line.split()[1] for line in lines if line.startswith(f"{name}:")), None)
    return int(kib) * 1024 if kib and kib.isdigit() else None
