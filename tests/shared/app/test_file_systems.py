"""Directories that a reboot, or the end of a container, deletes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedpatch.shared.app.file_systems import passing_mount

ROOT = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw"


def _mounts(tmp_path: Path, *lines: str) -> Path:
    place = tmp_path / "mountinfo"
    place.write_text("\n".join([ROOT, *lines]))
    return place


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
    ],
    ids=(
        "disk",
        "tmpfs",
        "ramfs",
        "compressed memory",
        "card",
        "upper in compressed memory",
        "below",
        "mounted over",
        "hidden upper",
        "volume",
        "upper in memory",
        "upper on disk",
    ),
)
def test_directory_is_lost_if_its_own_mount_does_not_last(tmp_path: Path, lines: tuple[str, ...], words: str):
    (tmp_path / "upper").mkdir()
    mounts = _mounts(tmp_path, *(line.replace("{dir}", str(tmp_path)) for line in lines))
    found = passing_mount(tmp_path / "state", mounts, tmp_path / "no fstab")
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
    fstab = tmp_path / "fstab"
    fstab.write_text(f"{entry}\n".replace("{dir}", str(tmp_path)))
    mounts = _mounts(tmp_path, *([f"31 22 8:2 / {tmp_path} rw - ext4 /dev/sda2 rw"] if mounted else []))
    found = passing_mount(tmp_path / "state", mounts, fstab)
    assert (found is not None) == bool(words)
    if found is not None:
        assert words.replace("{dir}", str(tmp_path)) in found.problem and f"sudo mount {tmp_path}" in found.remedy


def test_place_with_a_space_is_read(tmp_path: Path):
    place = tmp_path / "a card"
    line = f"30 22 0:5 / {str(place).replace(' ', chr(92) + '040')} rw - tmpfs none rw"
    found = passing_mount(place / "state", _mounts(tmp_path, line), tmp_path / "no fstab")
    assert found is not None and f"tmpfs at {place}" in found.problem


@pytest.mark.parametrize("text", ["", "no mount at all\n1 2 3 - x"])
def test_kernel_that_does_not_tell_is_no_problem(tmp_path: Path, text: str):
    place = tmp_path / "mountinfo"
    place.write_text(text)
    assert passing_mount(tmp_path, place) is None
    assert passing_mount(tmp_path, tmp_path / "absent") is None
