"""Records that protect the owner, behind a link to a disk that is not mounted: none begins anew."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fedpatch.device_agent.policy.private_floor import PrivateFloor
from fedpatch.device_agent.state.leader_epoch import LEADER_EPOCH_FILE, LeaderEpoch
from fedpatch.device_agent.state.masking_file import MASKING_FILE, MaskingFile
from fedpatch.device_agent.state.offered_bases import OFFERED_BASES_FILE, OfferedBases
from fedpatch.device_agent.state.privacy_account import ACCOUNT_NAME, DevicePrivacyAccount
from fedpatch.device_agent.state.revocation_file import REVOCATIONS_FILE, RevocationFile
from fedpatch.device_agent.state.storage_check import PATCHES, stored_problems
from fedpatch.shared.errors import StateError

READS: dict[str, Callable[[Path], object]] = {
    ACCOUNT_NAME: DevicePrivacyAccount,
    REVOCATIONS_FILE: lambda directory: RevocationFile(directory).load(),
    MASKING_FILE: lambda directory: MaskingFile(directory).load(),
    OFFERED_BASES_FILE: lambda directory: OfferedBases(directory).load(),
    LEADER_EPOCH_FILE: lambda directory: LeaderEpoch(directory, "home"),
    f"{PATCHES}/digits.private": lambda directory: PrivateFloor(directory / PATCHES, "digits").kept(),
}


@pytest.mark.parametrize("name", READS)
def test_record_behind_a_link_to_an_absent_disk_is_an_error_that_names_the_disk(tmp_path: Path, name: str):
    (tmp_path / PATCHES).mkdir()
    (tmp_path / name).symlink_to("/nowhere/disk")
    with pytest.raises(StateError, match="a link to /nowhere/disk, which is not there; mount the disk that has it"):
        READS[name](tmp_path)


@pytest.mark.parametrize("name", READS)
def test_doctor_names_the_disk_of_a_record_behind_such_a_link(tmp_path: Path, name: str):
    (tmp_path / PATCHES).mkdir()
    (tmp_path / name).symlink_to("/nowhere/disk")
    fault = f"{tmp_path / name}: a link to /nowhere/disk, which is not there"
    assert [*stored_problems(tmp_path)] == [(True, fault, "mount the disk that has it")]
