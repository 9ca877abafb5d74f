"""Losses by the file system of a path: of the path itself, or of its mode.

A directory is not kept in memory, in a layer over another file system, below a disk that is not mounted, or where systemd
empties it.

An overlay is as lasting as its upper directory. That of a container or of `overlayroot` is often hidden; an overlay with
a hidden upper directory counts as passing. The layers of containers without an overlay are known by their places. A file system
in an image is as lasting as the file of the image.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

_MOUNTS = "proc/self/mountinfo"
_FSTAB = "etc/fstab"
_SYSTEMD = "run/systemd/system"  # there if systemd has booted the machine
_TMPFILES = ("etc/tmpfiles.d", "run/tmpfiles.d", "usr/lib/tmpfiles.d")
_IN_MEMORY = ("tmpfs", "ramfs", "rootfs")  # a rootfs that nothing covers: the whole system is in memory
_RAM_DISK = re.compile(r"/dev/z?ram\d")
_IMAGE = re.compile(r"/dev/(loop\d+)(?:p\d+)?")
_DELETED = " (deleted)"
_OVERLAYS = ("overlay", "overlayfs", "aufs", "fuse.fuse-overlayfs")
# The layer of a container by other means: directories, subvolumes of btrfs, data sets of zfs, devices.
_LAYER = re.compile(
    r"/vfs/dir/|/btrfs/subvolumes/|/io\.containerd\.snapshotter\.|/dev/mapper/docker-|^zfs \S*/[0-9a-f]{64} "
)
_WITHOUT_MODES = ("vfat", "msdos", "exfat", "ntfs", "ntfs3", "fuseblk", "cifs", "smb3")  # fuseblk: ntfs-3g, exfat-fuse
_MODE_OPTIONS = dict.fromkeys(("cifs", "smb3"), "file_mode=0600,dir_mode=0700")
_REMEDY = "use a directory on a disk or card, or a volume of the container (--state-dir)"
_OVERLAY_REMEDY = f"{_REMEDY}; on a Raspberry Pi switch the overlay off (raspi-config, Performance Options)"


@dataclass(frozen=True)
class PassingMount:
    """Why a directory is lost with the next boot or with its container, in words, and the remedy.

    `part` is its name in the state directory, "" for that itself.
    """

    problem: str
    remedy: str
    part: str = ""


@dataclass(frozen=True)
class _Mount:
    number: str
    parent: str
    place: str
    kind: str
    device: str
    options: str
    part: str

    @property
    def in_memory(self) -> bool:
        """True for a file system in memory, also on a compressed or plain RAM disk (zram, as of log2ram)."""
        return self.kind in _IN_MEMORY or _RAM_DISK.match(self.device) is not None

    @property
    def is_layer(self) -> bool:
        """True for the layer of a container that has no overlay."""
        return _LAYER.search(f"{self.kind} {self.device} {self.part}") is not None


def passing_mount(directory: Path, root: Path = Path("/")) -> PassingMount | None:
    """Return why a directory is not kept; None if it is, or if the kernel does not tell.

    Args:
        directory: The directory; it may be absent.
        root: Root of the file system that has the lists of mounts and of directories that are emptied.
    """
    return _passing_in(_known(root), directory, root)


def _passing_in(known: list[_Mount], directory: Path, root: Path) -> PassingMount | None:
    """Return the result of `passing_mount` for these mounts."""
    if not known:
        return None
    if place := _unmounted(directory, known, root / _FSTAB):
        return PassingMount(
            f"{directory} is on {place}, which /etc/fstab mounts and which is not mounted now",
            f"see whether its disk is there, and mount it (sudo mount {place})",
        )
    if found := _loss(_mount_of(directory, known), known, root):
        return PassingMount(f"{directory} is {found[0]}", found[1])
    if place := _emptied(directory, root):
        return PassingMount(f"{directory} is in {place}, which systemd-tmpfiles empties (tmpfiles.d)", _REMEDY)
    return None


def passing_mounts(directory: Path, parts: Sequence[str], root: Path = Path("/")) -> list[PassingMount]:
    """Return why a state directory is not kept, or else which parts of it, since they are links or disks of their own.

    Args:
        parts: Names in the directory; they may be absent.
        root: As for `passing_mount`.
    """
    known = _known(root)
    if whole := _passing_in(known, directory, root):
        return [whole]
    found = ((name, _passing_in(known, directory / name, root)) for name in parts)
    return [replace(passing, part=name) for name, passing in found if passing]


def remedy_of_mode(path: Path, command: str, root: Path = Path("/")) -> str:
    """Return the remedy for a path that is open to other users.

    Args:
        command: The command that changes its mode: the remedy, unless its file system has no modes.
        root: Root of the file system that has the list of mounts.
    """
    mount = _mount_of(path, _known(root))
    if mount is None or mount.kind not in _WITHOUT_MODES:
        return command
    return (
        f"its file system ({mount.kind} at {mount.place}) keeps no modes as it is mounted: mount that with "
        f"{_MODE_OPTIONS.get(mount.kind, 'umask=077')} and the uid of this user, or use another place"
    )


def _known(root: Path) -> list[_Mount]:
    """Return the mounts; none if the kernel does not tell."""
    try:
        lines = (root / _MOUNTS).read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
    return [mount for line in lines if (mount := _parse(line))]


def _loss(mount: _Mount | None, known: list[_Mount], root: Path) -> tuple[str, str] | None:
    """Return why a mount does not last, in words after "it is", and the remedy; None if it lasts."""
    if mount is None:
        return None
    if mount.in_memory:
        kind = mount.kind if mount.kind in _IN_MEMORY else mount.device
        return f"in memory ({kind} at {mount.place}) and does not survive a reboot", _REMEDY
    if mount.kind in _OVERLAYS and not _upper_lasts(mount, known, root):
        words = f"on an overlay ({mount.kind} at {mount.place}), and is lost at a reboot or with its container"
        return words, _OVERLAY_REMEDY
    if mount.is_layer:
        return f"in the layer of a container ({mount.kind} at {mount.place}), and is lost with it", _REMEDY
    if image := _image_of(mount, root):
        name = image.removesuffix(_DELETED)
        if name != image:
            return f"in the image {name}, which was deleted, and does not survive a reboot", _REMEDY
        others = [one for one in known if one is not mount]
        if os.path.exists(image) and (below := _loss(_mount_of(Path(image), others), others, root)):
            return f"in the image {image}, which is {below[0]}", below[1]
    return None


def _image_of(mount: _Mount, root: Path) -> str:
    """Return the file of the image on a loop device that holds a file system; "" for another device."""
    found = _IMAGE.fullmatch(mount.device)
    if found is None:
        return ""
    try:
        return (root / "sys/block" / found[1] / "loop/backing_file").read_text("utf-8", "replace").rstrip("\n")
    except OSError:
        return ""


def _unmounted(directory: Path, known: list[_Mount], fstab: Path) -> str:
    """Return the place of a file system of fstab that should hold a directory and is not mounted; "" if there is none."""
    mounted = {mount.place for mount in known}
    return next((one for one in _places_of_boot(fstab) if one not in mounted and _is_in(directory, one)), "")


def _places_of_boot(fstab: Path) -> list[str]:
    """Return the places of the file systems that the boot mounts (fstab(5)), without the root."""
    entries = [fields for fields in _entries(fstab) if len(fields) >= 4]
    places = [_plain(fields[1]) for fields in entries if "noauto" not in fields[3].split(",")]
    return [os.path.realpath(place) for place in places if place.startswith("/") and place != "/"]


def _emptied(directory: Path, root: Path) -> str:
    """Return the directory that systemd empties at each boot, or of what is old, and that holds a directory; "" for none."""
    if not (root / _SYSTEMD).is_dir():
        return ""
    files: dict[str, Path] = {}
    for folder in _TMPFILES:  # a file in a former folder replaces one of the same name
        for file in (root / folder).glob("*.conf"):
            files.setdefault(file.name, file)
    places = (one for file in files.values() for one in _emptied_by(file))
    return next((place for place in places if _is_in(directory, os.path.realpath(place))), "")


def _emptied_by(file: Path) -> Iterator[str]:
    """Yield the directories that a file of tmpfiles.d(5) empties: at each boot (D), or of files beyond an age."""
    for fields in _entries(file):
        has_age = len(fields) >= 6 and fields[5] != "-"
        if len(fields) >= 2 and (fields[0][0] == "D" or (has_age and fields[0][0] in "dqQve")):
            yield fields[1]


def _is_in(directory: Path, place: str) -> bool:
    return f"{os.path.realpath(directory)}/".startswith(f"{place.rstrip('/')}/")


def _entries(file: Path) -> list[list[str]]:
    """Return the fields of the lines of a list, without comments; none if it cannot be read."""
    try:
        lines = [line.split() for line in file.read_text("utf-8", "replace").splitlines()]
    except OSError:
        return []
    return [fields for fields in lines if fields and not fields[0].startswith("#")]


def _mount_of(directory: Path, known: list[_Mount]) -> _Mount | None:
    """Return the mount that holds a directory. A mount hides those that were made before it on places below its own."""
    path = f"{os.path.realpath(directory)}/"
    holders = [one for one in known if path.startswith(f"{one.place.rstrip('/')}/")]
    numbers = {one.number for one in known}
    found = None
    # The root of all mounts is its own parent (proc(5)), or its parent is not listed.
    here = [one for one in holders if one.parent not in numbers or one.parent == one.number]
    while here:
        # Of the mounts on one file system a path meets that of the shortest place, and there the last one.
        found = min(reversed(here), key=lambda one: len(one.place))
        holders = [one for one in holders if one is not found]
        here = [one for one in holders if one.parent == found.number]
    return found


def _upper_lasts(overlay: _Mount, known: list[_Mount], root: Path) -> bool:
    upper = re.search(r"(?:^|,)upperdir=([^,]+)", overlay.options)
    if upper is None or not os.path.isdir(upper[1]):
        return False
    mount = _mount_of(Path(upper[1]), known)
    return mount is not None and mount.kind not in _OVERLAYS and _loss(mount, known, root) is None


def _parse(line: str) -> _Mount | None:
    """Return the mount of a line of mountinfo (proc(5)); None for another line."""
    before, separator, after = line.partition(" - ")
    fields, others = before.split(), after.split()
    if not separator or len(fields) < 5 or len(others) < 3:
        return None
    return _Mount(
        fields[0], fields[1], _plain(fields[4]), others[0], _plain(others[1]), _plain(others[2]), _plain(fields[3])
    )


def _plain(text: str) -> str:
    """Return a text of mountinfo without the octal escapes of space, tab, newline and backslash."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), text)
