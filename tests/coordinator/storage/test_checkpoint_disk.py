"""Checkpoints and updates on a disk that is full or read-only."""

from __future__ import annotations

import pytest

from fedpatch.coordinator.storage.checkpoint import load_checkpoint, save_checkpoint, store_update
from fedpatch.shared.errors import StateError
from tests.coordinator.storage.test_checkpoint import PUBLIC, equal, state_of
from tests.support.disks import small_disk


def test_a_full_disk_leaves_the_checkpoints_before_and_nothing_half_written(tmp_path):
    """And once there is space again, all goes on."""
    with small_disk(tmp_path / "disk", "256k") as disk:
        run = disk.path / "r-1"
        for number in (1, 2):
            save_checkpoint(run, state_of(number), PUBLIC, {})
        before = {path.name: path.read_bytes() for path in run.iterdir()}
        disk.fill()
        remedy = "No space left on device; free some space on this disk"
        with pytest.raises(StateError, match=rf"checkpoint-000003\.fp: {remedy}"):
            save_checkpoint(run, state_of(3), PUBLIC, {})
        with pytest.raises(StateError, match=rf"pi-1\.fp: {remedy}"):
            store_update(run, 3, "pi-1", bytes(10_000))
        assert {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()} == before
        assert list((run / "updates").rglob("*.*")) == []
        disk.empty()
        save_checkpoint(run, state_of(3), PUBLIC, {})
        assert load_checkpoint(run)[0].round == 3


def test_a_disk_that_is_read_only_says_so(tmp_path):
    """Which is what a dying SD card becomes; what it holds can still be read."""
    with small_disk(tmp_path / "disk", "256k") as disk:
        save_checkpoint(disk.path, state_of(1), PUBLIC, {})
        disk.make_readonly()
        with pytest.raises(StateError, match=r"Read-only file system; this disk is read-only.* mount it read-write"):
            save_checkpoint(disk.path, state_of(2), PUBLIC, {})
        assert equal(load_checkpoint(disk.path)[0], state_of(1))
