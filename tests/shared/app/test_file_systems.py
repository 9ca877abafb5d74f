"""Directories that a reboot, or the end of a container, deletes, and file systems without modes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from fedpatch.shared.app.file_systems import passing_mount, passing_mounts, remedy_of_mode

ROOT = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw"


def _root(tmp_path: Path, *lines: str, files: Mapping[str, str] | None = None) -> Path:
    """The root of a system with these mounts and files."""
    root = tmp_path / "a root"
    for name, text in {"proc/self/mountinfo": "\n".join([ROOT, *lines]), **(files or {})}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ((), ""),
        (
            ("30 22 0:5 / {dir} rw - tmpfs none rw,size=50m",),
            "is in memory (tmpfs at {dir}) and does not survive a reboot",
        ),
        (("30 22 0:5 / {dir} rw - ramfs none rw",), "is in memory (ramfs at {dir})"),
        (("30 22 0:5 / {dir} rw - ext4 /dev/zram1 rw",), "is in memory (/dev/zram1 at {dir})"),
        (("30 22 0:5 / {dir} rw - ext4 /dev/ramdisk-of-a-card rw",), ""),
        (
            (
                "30 22 0:5 / {dir}/upper rw - ext4 /dev/zram0 rw",
                "31 22 0:6 / {dir}/state rw - overlay overlay rw,upperdir={dir}/upper",
            ),
            "is on an overlay (overlay at {dir}/state)",
        ),
        (("30 22 0:5 / {dir}/state/below rw - tmpfs none rw",), ""),
        (
            ("31 22 8:2 / {dir}/state rw - ext4 /dev/sda2 rw", "32 22 0:5 / {dir} rw - tmpfs none rw"),
            "is in memory (tmpfs at {dir})",
        ),
        (("32 22 0:5 / {dir} rw - tmpfs none rw", "33 32 8:2 / {dir}/state rw - ext4 /dev/sda2 rw"), ""),
        (("30 22 0:5 / {dir} rw - tmpfs none rw", "31 22 8:2 / {dir} rw - ext4 /dev/sda2 rw"), ""),
        (("30 22 0:5 / / rw - overlay overlay rw,lowerdir=/l,upperdir={dir}/hidden,workdir=/w",), "is on an overlay"),
        (("30 22 0:5 / / rw - overlay overlay rw,lowerdir=/l", "31 30 8:2 / {dir} rw - ext4 /dev/sda2 rw"), ""),
        (
            (
                "30 22 0:5 / {dir}/upper rw - tmpfs none rw",
                "31 22 0:6 / {dir}/state rw - overlay overlay rw,upperdir={dir}/upper",
            ),
            "is on an overlay (overlay at {dir}/state), and is lost at a reboot or with its container",
        ),
        (("31 22 0:6 / {dir}/state rw - overlay overlay rw,upperdir={dir}/upper",), ""),
        (("30 1 0:2 / / rw - rootfs rootfs rw",), "is in memory (rootfs at /)"),
        (
            ("30 1 8:1 /var/lib/docker/vfs/dir/1f2e / rw - ext4 /dev/sda1 rw",),
            "is in the layer of a container (ext4 at /)",
        ),
        (
            ("30 1 0:9 /@/lib/docker/btrfs/subvolumes/1f / rw - btrfs /dev/sda1 rw",),
            "is in the layer of a container (btrfs",
        ),
        ((f"30 1 0:9 / / rw - zfs tank/docker/{64 * 'a'} rw",), "is in the layer of a container (zfs at /)"),
        (("30 1 0:9 / / rw - zfs tank/ROOT/debian rw",), ""),
        (("30 1 254:3 / / rw - ext4 /dev/mapper/docker-8:1-77-1f rw",), "is in the layer of a container (ext4 at /)"),
        (("30 1 8:1 /var/lib/docker/volumes/state/_data {dir} rw - ext4 /dev/sda1 rw",), ""),
    ],
    ids=(
        "disk",
        "tmpfs",
        "ramfs",
        "compressed memory",
        "card",
        "upper in compressed memory",
        "below",
        "hidden by a later mount above it",
        "mounted on a later mount above it",
        "mounted over",
        "hidden upper",
        "volume",
        "upper in memory",
        "upper on disk",
        "system in memory",
        "container of directories",
        "container of subvolumes",
        "container of data sets",
        "system on zfs",
        "container of devices",
        "volume beside a layer",
    ),
)
def test_directory_is_lost_if_its_own_mount_does_not_last(tmp_path: Path, lines: tuple[str, ...], words: str):
    (tmp_path / "upper").mkdir()
    root = _root(tmp_path, *(line.replace("{dir}", str(tmp_path)) for line in lines))
    found = passing_mount(tmp_path / "state", root)
    assert (found is not None) == bool(words)
    if found is not None:
        assert words.replace("{dir}", str(tmp_path)) in found.problem and "--state-dir" in found.remedy


@pytest.mark.parametrize(
    ("entry", "mounted", "words"),
    [
        (
            "UUID=1 {dir} ext4 defaults,nofail 0 2",
            False,
            "is on {dir}, which /etc/fstab mounts and which is not mounted",
        ),
        ("UUID=1 {dir}/state/ ext4 defaults 0 2", False, "is on {dir}/state, which /etc/fstab mounts"),
        ("UUID=1 {dir}/sta ext4 defaults 0 2", False, ""),
        ("UUID=1 {dir} ext4 defaults,nofail 0 2", True, ""),
        ("UUID=1 {dir} ext4 noauto,user 0 2", False, ""),
        ("# UUID=1 {dir} ext4 defaults 0 2", False, ""),
        ("UUID=1 {dir}/state/below ext4 defaults 0 2", False, ""),
        ("UUID=1 / ext4 defaults 0 1\nnone none swap sw 0 0\n/dev/sdb1", False, ""),
    ],
    ids=["not mounted", "its own place", "other place", "mounted", "by hand", "comment", "below", "root and others"],
)
def test_directory_of_a_disk_that_is_not_mounted_is_named(tmp_path: Path, entry: str, mounted: bool, words: str):
    """As of a USB disk that is slow or missing: the state would begin anew in the empty directory below it."""
    disk = [f"31 22 8:2 / {tmp_path} rw - ext4 /dev/sda2 rw"] if mounted else []
    root = _root(tmp_path, *disk, files={"etc/fstab": f"{entry}\n".replace("{dir}", str(tmp_path))})
    found = passing_mount(tmp_path / "state", root)
    assert (found is not None) == bool(words)
    if found is not None:
        assert words.replace("{dir}", str(tmp_path)) in found.problem and f"sudo mount {tmp_path}" in found.remedy


def test_place_with_a_space_is_read(tmp_path: Path):
    place = tmp_path / "a card"
    line = f"30 22 0:5 / {str(place).replace(' ', chr(92) + '040')} rw - tmpfs none rw"
    found = passing_mount(place / "state", _root(tmp_path, line))
    assert found is not None and f"tmpfs at {place}" in found.problem


@pytest.mark.parametrize(
    ("backing", "words"),
    [
        ("{dir}/memory/card.img", "is in the image {dir}/memory/card.img, which is in memory (tmpfs at {dir}/memory)"),
        ("{dir}/disk/card.img", ""),
        ("{dir}/disk/card.img (deleted)", "is in the image {dir}/disk/card.img, which was deleted"),
        ("{dir}/memory/absent.img", ""),
        ("{dir}/state/own.img", ""),
    ],
    ids=["in memory", "on disk", "deleted", "of another namespace", "below itself"],
)
def test_image_on_a_loop_device_is_as_lasting_as_its_file(tmp_path: Path, backing: str, words: str):
    for name in ("memory", "disk", "state"):
        (tmp_path / name).mkdir()
    for name in ("memory/card.img", "disk/card.img", "state/own.img"):
        (tmp_path / name).touch()
    memory = f"30 22 0:5 / {tmp_path}/memory rw - tmpfs none rw"
    image = f"31 22 7:3 / {tmp_path}/state rw - ext4 /dev/loop3p1 rw"
    files = {"sys/block/loop3/loop/backing_file": backing.replace("{dir}", str(tmp_path)) + "\n"}
    found = passing_mount(tmp_path / "state", _root(tmp_path, memory, image, files=files))
    assert (found is not None) == bool(words)
    assert found is None or words.replace("{dir}", str(tmp_path)) in found.problem


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (
            {"usr/lib/tmpfiles.d/tmp.conf": "# as Debian 12\nD {dir} 1777 root root -\n"},
            "is in {dir}, which systemd-tmpfiles",
        ),
        ({"usr/lib/tmpfiles.d/tmp.conf": "q {dir} 1777 root root 30d\n"}, "is in {dir}, which systemd-tmpfiles"),
        ({"usr/lib/tmpfiles.d/tmp.conf": "d {dir} 1777 root root -\nD {dir}x 1777 root root -\n"}, ""),
        ({"usr/lib/tmpfiles.d/tmp.conf": "D {dir} 1777 root root -\n", "etc/tmpfiles.d/tmp.conf": "#\n"}, ""),
    ],
    ids=["at each boot", "of old files", "kept", "replaced by the owner"],
)
def test_directory_that_systemd_empties_is_named(tmp_path: Path, files: dict[str, str], words: str):
    texts = {name: text.replace("{dir}", str(tmp_path)) for name, text in files.items()}
    booted = _root(tmp_path, files={**texts, "run/systemd/system/x": ""})
    found = passing_mount(tmp_path / "state", booted)
    assert (found is not None) == bool(words)
    assert found is None or words.replace("{dir}", str(tmp_path)) in found.problem


def test_lists_of_systemd_do_not_count_without_systemd(tmp_path: Path):
    files = {"usr/lib/tmpfiles.d/tmp.conf": f"D {tmp_path} 1777 root root -\n"}
    assert passing_mount(tmp_path / "state", _root(tmp_path, files=files)) is None


@pytest.mark.parametrize("text", ["", "no mount at all\n1 2 3 - x"])
def test_kernel_that_does_not_tell_is_no_problem(tmp_path: Path, text: str):
    assert passing_mount(tmp_path, _root(tmp_path, files={"proc/self/mountinfo": text})) is None
    assert passing_mount(tmp_path, tmp_path / "absent") is None


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        ("ext4", "chmod 700 state"),
        ("tmpfs", "chmod 700 state"),
        ("vfat", "mount that with umask=077"),
        ("exfat", "umask=077"),
    ],
)
def test_remedy_for_an_open_path_fits_its_file_system(tmp_path: Path, kind: str, remedy: str):
    """As on a FAT stick, where chmod succeeds and changes nothing."""
    root = _root(tmp_path, f"31 22 8:2 / {tmp_path} rw - {kind} /dev/sda2 rw")
    assert remedy in remedy_of_mode(tmp_path / "state", "chmod 700 state", root)


def test_remedy_for_an_open_path_is_the_command_if_the_kernel_does_not_tell(tmp_path: Path):
    assert remedy_of_mode(tmp_path, "chmod 700 state", tmp_path / "absent") == "chmod 700 state"


def test_part_of_a_state_directory_that_is_a_link_into_memory_is_named(tmp_path):
    (tmp_path / "memory").mkdir()
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "patches").symlink_to(tmp_path / "memory")
    root = _root(tmp_path, f"30 22 0:5 / {tmp_path}/memory rw - tmpfs none rw")
    assert passing_mounts(tmp_path / "state", (), root) == []
    (found,) = passing_mounts(tmp_path / "state", ("patches", "models"), root)
    assert found.problem.startswith(f"{tmp_path / 'state/patches'} is in memory") and found.part == "patches"


def test_root_of_all_mounts_that_is_its_own_parent_holds_what_is_below(tmp_path):
    text = "1 1 0:2 / / rw - rootfs rootfs rw"
    found = passing_mount(tmp_path, _root(tmp_path, files={"proc/self/mountinfo": text}))
    assert found is not None and "is in memory (rootfs at /)" in found.problem
