"""Locks on files, between processes."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fedpatch.shared.app.locks import FileLock, SharedLock, is_held, require_record_locks
from fedpatch.shared.errors import StateError, UsageError

HELD = "somebody is at work here; go elsewhere"
HOLDER = """
import pathlib, sys
from fedpatch.shared.app.locks import FileLock
lock = FileLock(pathlib.Path(sys.argv[1]), "held")
print(1, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "the.lock"


def test_second_holder_gets_usage_error_with_the_given_message(path: Path):
    with FileLock(path, HELD), pytest.raises(UsageError, match=HELD):
        FileLock(path, HELD)


def test_a_lock_is_free_again_after_its_release(path: Path):
    with FileLock(path, HELD):
        assert is_held(path)
    assert not is_held(path)
    lock = FileLock(path, HELD)
    lock.release()
    lock.release()
    FileLock(path, HELD).release()


def test_releasing_twice_closes_no_file_that_was_opened_since(path: Path, tmp_path: Path):
    """The system reuses the number of a closed file at once."""
    lock = FileLock(path, HELD)
    lock.release()
    with (tmp_path / "other").open("w") as other:
        lock.release()
        os.fstat(other.fileno())


def test_killed_holder_releases_the_lock(path: Path):
    """The kernel releases the lock, so the next holder has nothing to clean up."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path.cwd()
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        assert is_held(path)
        process.send_signal(signal.SIGKILL)
        process.wait(100)
    assert not is_held(path)


def test_lock_is_taken_after_is_held_in_another_process(path: Path, monkeypatch: pytest.MonkeyPatch):
    """That process holds a shared lock for a moment, which may be long on a busy machine; the lock is waited for."""
    monkeypatch.setattr("fedpatch.shared.app.locks._PAUSES_S", (0.05,) * 1000)
    path.touch()
    fd = os.open(path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_SH)
    timer = threading.Timer(0.02, os.close, [fd])
    timer.start()
    FileLock(path, HELD).release()
    timer.join()


def test_asking_changes_nothing_and_two_may_ask(path: Path):
    with pytest.raises(FileNotFoundError):
        is_held(path)
    assert not path.exists()
    FileLock(path, HELD).release()
    assert path.stat().st_mode & 0o777 == 0o600
    fd = os.open(path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_SH)
    assert not is_held(path)
    os.close(fd)


def test_a_shared_lock_is_had_alone_by_the_first_and_shared_by_the_rest(path: Path):
    first, second = SharedLock(path), SharedLock(path)
    assert first.take()
    first.share()
    assert not second.take()
    first.release()
    third = SharedLock(path)
    assert not third.take()
    second.release()
    third.release()
    third.release()
    fourth = SharedLock(path)
    assert fourth.take()
    fourth.release()


def test_shared_lock_waits_for_an_exclusive_holder(path: Path):
    first, second = SharedLock(path), SharedLock(path)
    assert first.take()
    taken: list[bool] = []
    waiting = threading.Thread(target=lambda: taken.append(second.take()))
    waiting.start()
    waiting.join(0.2)
    assert taken == []
    first.share()
    waiting.join()
    assert taken == [False]
    first.release()
    second.release()


def test_lock_path_that_is_a_link_is_not_followed(tmp_path):
    """Otherwise another user could make us create or lock any of our files."""
    target = tmp_path / "elsewhere"
    (tmp_path / "agent.lock").symlink_to(target)
    with pytest.raises(UsageError, match=r"agent\.lock is a symbolic link"):
        FileLock(tmp_path / "agent.lock", HELD)
    assert not target.exists()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_file_system_without_locks_is_named_with_the_remedy(path: Path, monkeypatch: pytest.MonkeyPatch, number: int):
    path.touch()
    shared = SharedLock(path)

    def refuse(fd: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    for take in (lambda: FileLock(path, HELD), lambda: is_held(path), shared.take, shared.share):
        with pytest.raises(
            StateError, match=r"the\.lock: this file system has no locks .*use a directory on a local disk"
        ):
            take()
    shared.release()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_file_system_without_the_locks_of_sqlite_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int):
    require_record_locks(tmp_path)
    require_record_locks(tmp_path / "absent")

    def refuse(file: object, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "lockf", refuse)
    with pytest.raises(StateError, match=r"this file system has no locks .*use a directory on a local disk"):
        require_record_locks(tmp_path)
