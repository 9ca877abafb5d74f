"""Files that survive crashes: whole old bytes or whole new ones."""

from __future__ import annotations

import errno
import os
import pwd
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from fedpatch.shared.app.files import (
    append_line,
    check_state_directory,
    make_directory,
    read_state,
    refusals_of,
    remedy_at,
    remedy_for,
    remedy_to_read,
    remove_unfinished,
    write_atomic,
)
from fedpatch.shared.errors import StateError, UsageError
from tests.support.disks import small_disk
from tests.support.other_users import acting_as_nobody, open_directory
from tests.support.paths import ROOT
from tests.support.synced import record_syncs


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_file_has_the_bytes_and_is_private(tmp_path):
    before = os.umask(0)
    try:
        write_atomic(tmp_path / "new", b"bytes")
        write_atomic(tmp_path / "open", b"bytes", mode=0o644)
    finally:
        os.umask(before)
    assert (tmp_path / "new").read_bytes() == b"bytes"
    assert (_mode(tmp_path / "new"), _mode(tmp_path / "open")) == (0o600, 0o644)


def test_an_existing_file_is_replaced_and_nothing_is_left_beside_it(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old and longer")
    path.chmod(0o666)
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"
    assert _mode(path) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_reader_of_the_replaced_file_keeps_the_old_bytes(tmp_path):
    """The old file is replaced, not overwritten: a reader never sees a mixture."""
    path = tmp_path / "file"
    write_atomic(path, b"old")
    with path.open("rb") as reader:
        write_atomic(path, b"new")
        assert reader.read() == b"old"


def test_write_error_names_the_file_and_keeps_the_old_bytes(tmp_path):
    path = tmp_path / "file"
    write_atomic(path, b"old")
    program = (
        "import resource, sys; from pathlib import Path; from fedpatch.shared.app.files import write_atomic\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try: write_atomic(Path(sys.argv[1]), bytes(10_000))\n"
        "except OSError as error: assert error.filename == sys.argv[1] and error.strerror, error; sys.exit(7)\n"
    )
    result = subprocess.run([sys.executable, "-c", program, path], cwd=ROOT, check=False)
    assert result.returncode == 7
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_write_into_a_missing_directory_raises_os_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere/file"):
        write_atomic(tmp_path / "nowhere" / "file", b"bytes")


def test_kill_during_a_write_leaves_old_or_new_bytes(tmp_path):
    path = tmp_path / "file"
    program = (
        "import sys; from pathlib import Path; from fedpatch.shared.app.files import write_atomic\n"
        "while True:\n"
        "    for byte in b'ab': write_atomic(Path(sys.argv[1]), bytes([byte]) * 300_000); print(flush=True)\n"
    )
    for lines in range(1, 6):
        with subprocess.Popen([sys.executable, "-c", program, path], cwd=ROOT, stdout=subprocess.PIPE) as writer:
            assert writer.stdout
            for _ in range(lines):
                writer.stdout.readline()
            writer.kill()
        data = path.read_bytes()
        assert len(data) == 300_000 and len(set(data)) == 1
    remove_unfinished(tmp_path)
    assert list(tmp_path.iterdir()) == [path]


def test_remove_unfinished_deletes_temporary_files_alone(tmp_path):
    for name in (".file.x1y2z3.tmp", "file", ".hidden", "notes.tmp"):
        (tmp_path / name).touch()
    remove_unfinished(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".hidden", "file", "notes.tmp"]


def test_remedy_names_the_fault_of_the_disk(tmp_path: Path):
    """The fault is in the system's error, or a check of the disk finds it; otherwise the caller's remedy is returned."""
    full, readonly = "free some space on this disk", "this disk is read-only"
    for number, remedy in ((errno.ENOSPC, full), (errno.EROFS, readonly), (errno.EACCES, "say please")):
        assert remedy_for(OSError(number, "no"), "say please").startswith(remedy)
    with small_disk(tmp_path / "disk", "256k") as disk:
        assert remedy_at(disk.path, "say please") == "say please"
        disk.fill()
        assert remedy_at(disk.path, "say please") == full
        disk.make_readonly()
        assert remedy_at(disk.path, "say please").startswith(readonly)
    assert remedy_at(tmp_path / "absent", "say please") == "say please"


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.EEXIST, "a file is where a directory is expected"),
        (errno.ENOTDIR, "a file is where a directory is expected"),
        (errno.EISDIR, "a directory is where a file is expected"),
        (errno.ENOSPC, "free some space on this disk"),
        (errno.EACCES, "make it writable"),
        (errno.EMFILE, "raise the limit of open files"),
        (errno.EFBIG, "raise the limit of a file's size"),
        (errno.ESTALE, "the server of this file system has replaced it"),
        (errno.ENOENT, "make its directory again, or mount the disk"),
        (errno.ENAMETOOLONG, "name a directory with a shorter path"),
    ],
)
def test_refusal_names_the_file_and_the_remedy_of_its_cause(tmp_path, number, remedy):
    with pytest.raises(StateError, match=f"{tmp_path}/file: .*; {remedy}"), refusals_of(tmp_path):
        raise OSError(number, os.strerror(number), str(tmp_path / "file"))


@pytest.mark.parametrize("below", ["", "state/deep"])
def test_directory_below_a_broken_link_is_refused_with_the_absent_target(tmp_path: Path, below: str):
    """As of a disk that is not mounted: to delete the link would begin the state anew."""
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "disk")
    words = f"{link}: a link to {tmp_path}/disk, which is not there; make its directory again, or mount the disk"
    with pytest.raises(StateError, match=words), refusals_of(tmp_path):
        make_directory(link / below)
    (tmp_path / "disk").mkdir()
    make_directory(link / below)
    assert (tmp_path / "disk" / below).is_dir()


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM])
def test_refusal_for_want_of_rights_names_the_user_that_owns_the_path(tmp_path, monkeypatch, number):
    owner = pwd.getpwuid(os.geteuid()).pw_name
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(StateError, match=f"sudo -u {owner}"), refusals_of(tmp_path):
        raise OSError(number, os.strerror(number))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
@pytest.mark.parametrize(("owner", "remedy"), [(1, "sudo -u "), (0, "make it writable")])
def test_refusal_of_an_absent_path_names_the_owner_of_its_directory_unless_that_is_root(
    tmp_path, monkeypatch, owner, remedy
):
    os.chown(tmp_path, owner, owner)
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    with pytest.raises(StateError, match=remedy), refusals_of(tmp_path / "absent" / "file"):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o1777])
def test_state_directory_that_others_may_write_is_refused(tmp_path, mode):
    directory = tmp_path / "a state"
    directory.mkdir()
    directory.chmod(mode)
    with pytest.raises(UsageError, match=r"chmod go-w '.*/a state'"):
        check_state_directory(directory)
    directory.chmod(0o755)
    check_state_directory(directory)


def test_state_directory_of_another_user_is_refused(tmp_path, monkeypatch):
    """Its owner can replace each file in it, regardless of the mode."""
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(UsageError, match=r"belongs to user .*--state-dir"):
        check_state_directory(tmp_path)


def test_appended_line_is_synced_before_the_call_returns_and_a_new_file_with_its_directory(tmp_path, monkeypatch):
    path, synced = tmp_path / "journal", record_syncs(monkeypatch)
    append_line(path, b"one\n", durable=True)
    assert synced == [path, tmp_path]
    synced.clear()
    append_line(path, b"two\n", durable=True)
    assert synced == [path]
    assert path.read_bytes() == b"one\ntwo\n"


def test_appended_line_of_a_history_is_not_synced_and_gives_the_size_of_the_file(tmp_path, monkeypatch):
    path, synced = tmp_path / "history", record_syncs(monkeypatch)
    assert append_line(path, b"one\n") == 4
    path.write_bytes(b"one\ntw")
    assert append_line(path, b"three\n") == 13
    assert (path.read_bytes(), synced) == (b"one\ntw\nthree\n", [])


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_file_of_root_in_a_directory_of_the_agents_user_is_given_back_and_not_deleted():
    """A backup that root restored: only the owner is wrong."""
    with open_directory() as directory:
        state_dir, nobody = directory / "state", pwd.getpwnam("nobody")
        state_dir.mkdir(0o700)
        os.chown(state_dir, nobody.pw_uid, nobody.pw_gid)
        file = state_dir / "x.patch"
        file.write_bytes(b"private")
        file.chmod(0o600)
        with acting_as_nobody(), pytest.raises(StateError) as read:
            read_state(file)
        with acting_as_nobody(), pytest.raises(StateError) as opened, refusals_of(file):
            file.read_bytes()
    for error in (read, opened):
        assert f"sudo chown -R nobody: {file} (only its owner is wrong, delete nothing)" in str(error.value)
        assert "sudo -u root" not in str(error.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_directory_that_root_restored_as_its_own_is_given_back_to_the_agents_user():
    with open_directory() as directory:
        state_dir = directory / "state"
        state_dir.mkdir(0o700)
        with acting_as_nobody(), pytest.raises(StateError) as error, refusals_of(state_dir):
            (state_dir / "agent.lock").read_bytes()
    assert f"or give it back to nobody, if it was theirs: sudo chown -R nobody: {state_dir}" in str(error.value)


def test_file_that_cannot_be_read_has_its_owner_as_remedy_only_for_want_of_rights(tmp_path: Path, monkeypatch):
    path = tmp_path / "a key"
    path.touch()
    refused, absent = (OSError(number, os.strerror(number)) for number in (errno.EACCES, errno.ENOENT))
    assert remedy_to_read(absent, path, "make it") == "make it"
    own = pwd.getpwuid(os.geteuid()).pw_name
    assert remedy_to_read(refused, path, "make it") == f"let this user read it (sudo chown {own} '{path}')"
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert remedy_to_read(refused, path, "make it").endswith(f"or run as its owner (sudo -u {own})")


def test_write_to_a_pipe_is_refused_and_leaves_it(tmp_path):
    """A rename would put a file in its place; so with a device, such as /dev/stdout."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="is a device, a pipe or a socket"):
        write_atomic(tmp_path / "pipe", b"bytes")
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"] and (tmp_path / "pipe").is_fifo()


def test_write_to_a_name_in_dev_is_refused_even_if_it_leads_to_a_file():
    """/dev/stdout of `> file` leads to that file; a rename would replace the name in /dev."""
    with pytest.raises(OSError, match="is a device, a pipe or a socket"):
        write_atomic(Path("/dev/a-name-of-no-file"), b"bytes")
    assert not os.path.lexists("/dev/a-name-of-no-file")
