"""A run whose state directory is deleted or replaced ends, and writes nothing to the new directory."""

from __future__ import annotations

import shutil

import pytest

from fedpatch.coordinator.storage.directory_guard import DirectoryGuard
from fedpatch.shared.errors import StateDirectoryLost, StateError


def test_directory_that_stays_is_no_finding(tmp_path):
    guard = DirectoryGuard(tmp_path, tmp_path / "absent")
    (tmp_path / "a file").write_bytes(b"")
    guard.check()


@pytest.mark.parametrize(("again", "words"), [(False, "was deleted"), (True, "was replaced by another one")])
def test_deleted_or_replaced_directory_ends_the_run_with_its_name_and_a_remedy(tmp_path, again, words):
    place = tmp_path / "state"
    place.mkdir()
    guard = DirectoryGuard(place)
    place.rename(tmp_path / "away")
    if again:
        place.mkdir()
    with pytest.raises(StateDirectoryLost, match=f"{place}: {words}.*restore it from a backup") as caught:
        guard.check()
    assert isinstance(caught.value, StateError)


def test_registry_that_is_deleted_alone_is_noticed(tmp_path):
    registry = tmp_path / "registry.db"
    registry.write_bytes(b"")
    guard = DirectoryGuard(tmp_path, registry)
    registry.unlink()
    with pytest.raises(StateDirectoryLost, match="was deleted"):
        guard.check()


def test_path_that_cannot_be_looked_at_is_an_error_of_its_own(tmp_path):
    place = tmp_path / "state"
    place.mkdir()
    guard = DirectoryGuard(place)
    shutil.rmtree(place)
    place.symlink_to(place)
    with pytest.raises(OSError, match="symbolic links"):
        guard.check()
