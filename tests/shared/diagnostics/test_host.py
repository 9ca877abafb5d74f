"""Findings of `doctor` on machines in many states: disks, clocks, memory, versions."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedpatch.shared.app.file_systems import passing_mount
from fedpatch.shared.diagnostics import host
from fedpatch.shared.diagnostics.checks import Checkup, Finding
from fedpatch.shared.diagnostics.host import (
    Space,
    check_clock,
    check_memory,
    check_state_dir,
    check_versions,
    resident_memory,
)
from tests.support.paths import ROOT

SPACE = Space(2**20, 4 * 2**20, "a model")


@pytest.fixture
def checkup() -> Checkup:
    """A checkup that shows nothing."""
    return Checkup(show=lambda finding: None, say=lambda text: None)


def named(checkup: Checkup, name: str) -> Finding:
    return next(one for one in checkup.findings if one.name == name)


@contextlib.contextmanager
def tmpfs(place: Path, options: str) -> Iterator[Path]:
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], check=False, capture_output=True)
    if done.returncode != 0:
        pytest.skip("mounting a file system needs root")
    try:
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


def test_a_state_directory_that_is_absent_is_tried_and_not_left(checkup, tmp_path):
    check_state_dir(tmp_path / "a" / "b", SPACE, checkup, private=True)
    assert [one.verdict for one in checkup.findings] == ["ok", "ok"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("mode", "private", "remedy"), [(0o755, True, "chmod g-rw,o-rwx {}"), (0o710, True, ""), (0o755, False, "")]
)
def test_state_directory_with_private_patches_that_others_can_read_is_a_warning(
    checkup, tmp_path, mode, private, remedy
):
    """A group may have the right to pass through to the models."""
    tmp_path.chmod(mode)
    check_state_dir(tmp_path, SPACE, checkup, private=private)
    found = named(checkup, "state_dir")
    assert (found.verdict, found.remedy) == ("warn" if remedy else "ok", remedy.format(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("private", "mode"), [(True, 0o710), (False, 0o750)])
def test_remedy_for_a_state_directory_that_anybody_may_write_gives_it_the_mode_of_the_role(
    checkup, tmp_path, private, mode
):
    """Otherwise the next play of the fleet's playbook would change the directory again."""
    tmp_path.chmod(0o777)
    check_state_dir(tmp_path, SPACE, checkup, private=private)
    subprocess.run(named(checkup, "state_dir").remedy, shell=True, check=True)
    assert tmp_path.stat().st_mode & 0o777 == mode
    role = ROOT / "ansible/roles" / ("device_agent/tasks/main.yml" if private else "coordinator/tasks/identity.yml")
    assert f'mode: "0{mode:o}"' in role.read_text("utf-8")


def test_a_state_directory_of_somebody_else(checkup, tmp_path):
    """Root can write there, but the owner cannot write the files that root creates."""
    if os.geteuid() != 0:
        pytest.skip("giving files away needs root")
    os.chown(tmp_path, 12345, 12345)
    check_state_dir(tmp_path, SPACE, checkup, private=True)
    found = named(checkup, "state_dir")
    assert found.verdict == "warn" and "user 12345" in found.detail and "sudo -u" in found.remedy


def test_a_state_directory_that_is_a_file(checkup, tmp_path):
    (tmp_path / "file").touch()
    check_state_dir(tmp_path / "file", SPACE, checkup, private=True)
    found = named(checkup, "state_dir")
    assert found.verdict == "fail" and str(tmp_path / "file") in found.detail and "--state-dir" in found.remedy


def test_a_state_directory_below_a_link_to_an_absent_disk(checkup, tmp_path):
    (tmp_path / "state").symlink_to(tmp_path / "disk")
    check_state_dir(tmp_path / "state", SPACE, checkup, private=True)
    found = named(checkup, "state_dir")
    assert found.verdict == "fail" and f"a link to {tmp_path}/disk, which is not there" in found.detail
    assert found.remedy == "mount the disk of the link's target, or make that directory"
    assert [one.name for one in tmp_path.iterdir()] == ["state"]


@pytest.mark.parametrize(
    ("options", "fill_bytes", "name", "verdict", "words", "remedy"),
    [
        ("ro,size=8m", 0, "state_dir", "fail", "Read-only", "SD card"),
        ("size=1m,mode=700", 2**21, "state_dir", "fail", "No space left", "free some space"),
        ("size=900k,mode=700", 0, "disk", "fail", "which take", "free some space"),
        ("size=3m,mode=700", 0, "disk", "warn", "up to", "free some space"),
        ("size=8m,nr_inodes=20,mode=700", 0, "disk", "fail", "inodes", "df -i"),
    ],
    ids=["read-only", "full", "below the least", "below the most", "no inodes"],
)
def test_disk_without_room_is_found(checkup, tmp_path, options, fill_bytes, name, verdict, words, remedy):
    with tmpfs(tmp_path / "disk", options) as disk:
        with contextlib.suppress(OSError):
            (disk / "big").write_bytes(bytes(fill_bytes))
        check_state_dir(disk, SPACE, checkup, private=True)
    found = named(checkup, name)
    assert found.verdict == verdict and words in found.detail and remedy in found.remedy


def test_a_clock_that_began_in_1970(checkup):
    check_clock(checkup, tls=True, now=1000.0)
    found = named(checkup, "clock")
    assert found.verdict == "warn" and "1970-01-01" in found.detail and "certificate" in found.detail
    assert "timedatectl" in found.remedy


@pytest.mark.parametrize(
    ("synchronised", "newest", "verdict", "words", "remedy"),
    [
        (
            True,
            1_830_000_000.0,
            "warn",
            "is before 2027-12-28 13:20 UTC, the newest time in the state directory",
            "nothing",
        ),
        (
            None,
            1_830_000_000.0,
            "warn",
            "is before 2027-12-28 13:20 UTC, the newest time in the state directory",
            "set it",
        ),
        (True, 1_799_999_900.0, "ok", "synchronised", ""),
        (True, 1_800_000_200.0, "ok", "synchronised", ""),
    ],
    ids=["ahead before", "behind now", "in order", "clocks of two machines"],
)
def test_clock_is_compared_with_the_newest_time_that_was_written(
    checkup, monkeypatch, synchronised, newest, verdict, words, remedy
):
    monkeypatch.setattr(host, "is_synchronised", lambda: synchronised)
    check_clock(checkup, tls=False, newest=newest, now=1_800_000_000.0)
    found = named(checkup, "clock")
    assert found.verdict == verdict and words in found.detail and found.remedy.startswith(remedy)


@pytest.mark.parametrize(("synchronised", "remedy"), [(True, "nothing"), (None, "set it")])
def test_installation_while_the_clock_was_ahead_is_no_reason_to_set_a_clock_that_is_right(
    checkup, monkeypatch, synchronised, remedy
):
    monkeypatch.setattr(host, "is_synchronised", lambda: synchronised)
    check_clock(checkup, tls=True, now=1000.0)
    found = named(checkup, "clock")
    assert "is before fedpatch was installed here" in found.detail and found.remedy.startswith(remedy)


@pytest.mark.parametrize(("answer", "verdict"), [("yes", "ok"), ("no", "warn"), ("", "ok"), (None, "ok")])
def test_clock_check_warns_only_when_timedatectl_answers_no(checkup, tmp_path, monkeypatch, answer, verdict):
    """Other answers are no warning; None: there is no timedatectl."""
    if answer is not None:
        program = tmp_path / "timedatectl"
        program.write_text(f"#!/bin/sh\n[ \"$*\" = 'show -p NTPSynchronized --value' ] && echo {answer}\n")
        program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin" if answer is not None else str(tmp_path))
    check_clock(checkup, tls=False)
    assert named(checkup, "clock").verdict == verdict


def test_memory_that_is_short(checkup, tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  900000 kB\nMemAvailable:     50000 kB\n")
    check_memory(90e6, "training", checkup, meminfo)
    found = named(checkup, "memory")
    assert found.verdict == "warn" and found.detail.startswith("51 MB available; training takes about 90 MB")
    assert "swap" in found.remedy
    checkup.findings.clear()
    check_memory(40e6, "training", checkup, meminfo)
    check_memory(40e6, "training", checkup, tmp_path / "absent")
    assert [one.verdict for one in checkup.findings] == ["ok", "skip"]


def test_memory_of_a_process_that_is_gone_is_none():
    assert (resident_memory(os.getpid()) or 0) > 10e6
    assert resident_memory(2**30) is None


def test_a_machine_without_torch(checkup, monkeypatch):
    monkeypatch.setattr(host, "_version", lambda name: "" if name == "torch" else "1.0")
    check_versions("agent", checkup)
    found = named(checkup, "versions")
    assert found.verdict == "fail" and found.remedy == "pip install 'fedpatch[agent]'"


@pytest.mark.parametrize(
    ("machine", "version", "verdict"),
    [
        ("aarch64", "2.10.0", "warn"),
        ("aarch64", "2.9.1", "ok"),
        ("x86_64", "2.13.0+cpu", "ok"),
        ("aarch64", "main", "ok"),
    ],
)
def test_a_torch_that_ends_a_raspberry_pi_with_sigill(checkup, monkeypatch, machine, version, verdict):
    monkeypatch.setattr(host, "_version", lambda name: version)
    check_versions("agent", checkup, machine)
    assert named(checkup, "versions").verdict == verdict


def test_state_directory_without_locks_fails_with_the_remedy(checkup, tmp_path, monkeypatch):
    def refuse(fd: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    check_state_dir(tmp_path, SPACE, checkup, private=False)
    found = named(checkup, "state_dir")
    assert found.verdict == "fail" and found.detail == f"{tmp_path}: this file system has no locks (No locks available)"
    assert "local disk" in found.remedy and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("private", "verdict"), [(False, "fail"), (True, "ok")], ids=["coordinator", "agent"])
def test_file_system_without_the_locks_of_sqlite_fails_for_a_coordinator(
    checkup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, private: bool, verdict: str
):
    def refuse(file: object, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", refuse)
    tmp_path.chmod(0o700)
    check_state_dir(tmp_path, SPACE, checkup, private=private)
    assert named(checkup, "state_dir").verdict == verdict


def test_state_directory_in_memory_is_a_warning(checkup, memory_path):
    check_state_dir(memory_path, SPACE, checkup, private=False)
    kind = passing_mount(memory_path)
    assert kind is None or (named(checkup, "state_lasts").verdict == "warn")
    assert kind is not None or not any(one.name == "state_lasts" for one in checkup.findings)
