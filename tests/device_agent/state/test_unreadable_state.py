"""State of a device that cannot be read now is neither damaged nor lost."""

from __future__ import annotations

import numpy as np
import pytest

from fedpatch.device_agent.policy.usage import USAGE_NAME, UsageFile
from fedpatch.device_agent.state.leader_epoch import LEADER_EPOCH_FILE, LeaderEpoch
from fedpatch.device_agent.state.patch_store import (
    PatchKey,
    PatchRecord,
    PatchState,
    PatchStore,
    kept_in_patches,
    patch_problem,
)
from fedpatch.shared.errors import StateUnreadable
from tests.support.failing_reads import ERRORS, FailingReads, reads

__all__ = ["reads"]
KEY = PatchKey("digits", "ab" * 32, "affine")


def patches(directory) -> PatchStore:
    store = PatchStore(directory)
    state = PatchState({"bn.weight": np.ones(3, np.float32)}, 1)
    for number in (1, 2):
        store.save(PatchRecord(KEY, "run", number, state, state))
    return store


@pytest.mark.parametrize("error", ERRORS)
def test_newest_patch_stays_in_its_place(tmp_path, reads: FailingReads, error):
    store, path = patches(tmp_path), tmp_path / KEY.file_name
    reads.error = error
    reads.fail(path)
    for read in (
        lambda: store.load(KEY, "run", 3),
        lambda: kept_in_patches(tmp_path, "digits"),
        lambda: patch_problem(path),
    ):
        with pytest.raises(StateUnreadable):
            read()
    assert path.exists()
    reads.recover()
    assert store.load(KEY, "run", 3).batches_done == 1


def test_epoch_of_the_leader_is_not_forgotten(tmp_path, reads: FailingReads):
    LeaderEpoch(tmp_path, "home").admits(7)
    reads.fail(tmp_path / LEADER_EPOCH_FILE)
    with pytest.raises(StateUnreadable):
        LeaderEpoch(tmp_path, "home")
    reads.recover()
    assert not LeaderEpoch(tmp_path, "home").admits(6)


def test_allowance_of_the_day_does_not_begin_anew(tmp_path, reads: FailingReads):
    file = tmp_path / USAGE_NAME
    UsageFile(tmp_path)._write()
    reads.fail(file)
    with pytest.raises(StateUnreadable):
        UsageFile(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [USAGE_NAME]
