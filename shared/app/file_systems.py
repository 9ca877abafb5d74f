"""File systems that do not keep a directory: in memory, a layer over another file system, or not mounted.

An overlay is as lasting as its upper directory. That of a container or of `overlayroot` is often hidden; an overlay with
a hidden upper directory counts as passing.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

_MOUNTS = Path("/proc/self/mountinfo")
_FSTAB = Path("/etc/fstab")
_IN_MEMORY = ("tmpfs", "ramfs")
_RAM_DISK = re.compile(r"/dev/z?ram\d")
_OVERLAYS = ("overlay", "overlayfs", "aufs", "fuse.fuse-overlayfs")


@dataclass(frozen=True)
class PassingMount:
    """Why a directory is lost with the next boot or with its container, in words, and the remedy."""

    problem: str
    remedy: str


@dataclass(frozen=True)
class _Mount:
    place: str
    kind: str
    device: str
    options: str

    @property
    def in_memory(self) -> bool:
        """True for a file system in memory, also on a compressed or plain RAM disk (zram, as of log2ram)."""
        return self.kind in _IN_MEMORY or _RAM_DISK.match(self.device) is not None


def passing_mount(directory: Path, mounts: Path = _MOUNTS, fstab: Path = _FSTAB) -> PassingMount | None:
    """Return why the file system of a directory does not keep it; None if it does, or if the kernel does not tell.

    Args:
        directory: The directory; it may be absent.
        mounts: The kernel's list of mounts.
        fstab: The list of file systems that are mounted at the boot.
    """
    try:
        known = [mount for line in mounts.read_text("utf-8", "replace").splitlines() if (mount := _parse(line))]
    except OSError:
        return None
    if place := _unmounted(directory, known, fstab):
        return PassingMount(
            f"{directory} is on {place}, which /etc/fstab mounts and which is not mounted now",
            f"see whether its disk is there, and mount it (sudo mount {place})",
        )
    mount = _mount_of(directory, known)
    if mount is None:
        return None
    remedy = "use a directory on a disk or card, or a volume of the container (--state-dir)"
    if mount.in_memory:
        kind = mount.kind if mount.kind in _IN_MEMORY else mount.device
        return PassingMount(f"{directory} is in memory ({kind} at {mount.place}) and does not survive a reboot", remedy)
    if mount.kind in _OVERLAYS and not _upper_lasts(mount, known):
        text = f"{directory} is on an overlay ({mount.kind} at {mount.place}), and is lost at a reboot or with its container"
        return PassingMount(
            text, f"{remedy}; on a Raspberry Pi switch the overlay off (raspi-config, Performance Options)"
        )
    return None


def _unmounted(directory: Path, known: list[_Mount], fstab: Path) -> str:
    """Return the place of a file system of fstab that should hold a directory and is not mounted; "" if there is none."""
    path, mounted = os.path.realpath(directory), {mount.place for mount in known}
    for place in _places_of_boot(fstab):
        if place not in mounted and f"{path}/".startswith(f"{place}/"):
            return place
    return ""


def _places_of_boot(fstab: Path) -> list[str]:
    """Return the places of the file systems that the boot mounts (fstab(5)), without the root."""
    try:
        lines = [line.split() for line in fstab.read_text("utf-8", "replace").splitlines()]
    except OSError:
        return []
    entries = [fields for fields in lines if len(fields) >= 4 and not fields[0].startswith("#")]
    places = [_plain(fields[1]) for fields in entries if "noauto" not in fields[3].split(",")]
    return [os.path.realpath(place) for place in places if place.startswith("/") and place != "/"]


def _mount_of(directory: Path, known: list[_Mount]) -> _Mount | None:
    """Return the mount that holds a directory: of the longest place, and the last one of that place."""
    path = os.path.realpath(directory)
    holders = [one for one in known if path == one.place or path.startswith(f"{one.place.rstrip('/')}/")]
    return max(enumerate(holders), key=lambda item: (len(item[1].place), item[0]), default=(0, None))[1]


def _upper_lasts(overlay: _Mount, known: list[_Mount]) -> bool:
    upper = re.search(r"(?:^|,)upperdir=([^,]+)", overlay.options)
    if upper is None or not os.path.isdir(upper[1]):
        return False
    mount = _mount_of(Path(upper[1]), known)
    return mount is not None and not mount.in_memory and mount.kind not in _OVERLAYS


def _parse(line: str) -> _Mount | None:
    """Return the mount of a line of mountinfo (proc(5)); None for another line."""
    before, separator, after = line.partition(" - ")
    fields, others = before.split(), after.split()
    if not separator or len(fields) < 5 or len(others) < 3:
        return None
    return _Mount(_plain(fields[4]), others[0], _plain(others[1]), _plain(others[2]))


def _plain(text: str) -> str:
    """Return a text of mountinfo without the octal escapes of space, tab, newline and backslash."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)
