"""Reading a state file: a passing error is waited out, and a lasting one is no damage."""

from __future__ import annotations

import errno
import os

import pytest

from fedpatch.shared.app.files import READ_PAUSES_S, read_state
from fedpatch.shared.errors import StateError, StateUnreadable
from tests.support.failing_reads import ERRORS, FailingReads, reads

__all__ = ["reads"]


@pytest.mark.parametrize("error", ERRORS)
def test_error_that_passes_is_waited_out(tmp_path, reads: FailingReads, error):
    file = tmp_path / "a file"
    file.write_bytes(b"whole")
    reads.error = error
    reads.fail(file, len(READ_PAUSES_S))
    assert read_state(file) == b"whole"


@pytest.mark.parametrize("error", ERRORS)
def test_error_that_stays_names_file_error_and_remedy_and_is_no_damage(tmp_path, reads: FailingReads, error):
    file = tmp_path / "a file"
    file.write_bytes(b"whole")
    reads.error = error
    reads.fail(file)
    with pytest.raises(StateUnreadable) as caught:
        read_state(file)
    assert str(caught.value).startswith(f"{file}: cannot be read now: {os.strerror(error)}; ")
    assert str(caught.value).endswith("then repeat the command: nothing was changed")


def test_absent_file_is_reported_at_once(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_state(tmp_path / "none")


def test_directory_in_the_place_of_a_file_is_damage(tmp_path):
    with pytest.raises(StateError, match="a directory is where a file is expected") as caught:
        read_state(tmp_path)
    assert not isinstance(caught.value, StateUnreadable)
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.__cause__.errno == errno.EISDIR


def test_link_to_an_absent_disk_is_unreadable_and_not_absent(tmp_path):
    (tmp_path / "state").symlink_to("/nowhere/disk")
    with pytest.raises(
        StateUnreadable, match="a link to /nowhere/disk, which is not there; mount the disk that has it"
    ):
        read_state(tmp_path / "state")
