"""The state of a masked round on disk, and the order of writing and sending."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from fedpatch.device_agent.job.effect_loop import drive_job
from fedpatch.device_agent.job.job_effects import ForgetMasking, SendAfterSave
from fedpatch.device_agent.job.job_events import EffectFailed
from fedpatch.device_agent.state.masking_file import MASKING_FILE, MaskingFile
from fedpatch.device_agent.state.storage_check import stored_problems
from fedpatch.shared.errors import StateError
from fedpatch.shared.wire.messages import Accept
from tests.device_agent.effect_runners import performer_of
from tests.device_agent.fake_link import Wire
from tests.device_agent.job.test_masked_job import job_of
from tests.support.masked_group import PlayedGroup
from tests.support.specs import envelope_of


def states():
    """The state of a device in each phase."""
    group = PlayedGroup.of(3)
    device = group.devices[0]
    found = [device.rounds.state]
    group.share()
    found.append(device.rounds.state)
    group.distribute(frozenset(range(3)))
    found.append(device.rounds.state)
    device.take(group.unmask(frozenset({0, 1})))
    return [*found, device.rounds.state]


@pytest.mark.parametrize("state", states(), ids=lambda state: str(state.phase))
def test_state_is_read_back_and_only_the_owner_may_read_it(tmp_path, state):
    MaskingFile(tmp_path).save(state)
    assert MaskingFile(tmp_path).load() == state
    assert stat.S_IMODE((tmp_path / MASKING_FILE).stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-1], lambda data: b"", lambda data: data[:40] + b"\x00" + data[41:]]
)
def test_damaged_state_is_deleted_with_an_error_in_the_log(tmp_path, caplog, damage):
    file = MaskingFile(tmp_path)
    file.save(states()[2])
    file.path.write_bytes(damage(file.path.read_bytes()))
    assert MaskingFile(tmp_path).load() is None
    assert "is damaged, and is deleted" in caplog.text
    assert not file.path.exists()


def test_state_that_the_system_withholds_is_kept_and_ends_the_start(tmp_path, monkeypatch):
    """The file may be whole, and without it the device is lost to its group."""
    file = MaskingFile(tmp_path)
    file.save(states()[2])

    def refuse(path: Path) -> bytes:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", refuse)
        with pytest.raises(StateError, match=f"{MASKING_FILE}: cannot be read now: Permission denied; "):
            MaskingFile(tmp_path).load()
    assert MaskingFile(tmp_path).load() == states()[2]


def test_directory_in_place_of_the_state_stays_and_ends_the_start(tmp_path):
    (tmp_path / MASKING_FILE / "part").mkdir(parents=True)
    with pytest.raises(StateError, match=f"{MASKING_FILE}: Is a directory; "):
        MaskingFile(tmp_path).load()
    assert [declines for declines, *_ in stored_problems(tmp_path)] == [True]
    assert (tmp_path / MASKING_FILE / "part").exists()


def test_without_a_file_there_is_no_state(tmp_path):
    assert MaskingFile(tmp_path).load() is None


def test_nothing_is_sent_where_the_disk_refuses(tmp_path, monkeypatch):
    """Also without a job: a reveal that is not on disk could be contradicted after a restart."""
    wire: Any = Wire()
    runner = performer_of(tmp_path, wire, None)
    state = states()[3]

    def refuse(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedpatch.device_agent.state.masking_file.write_atomic", refuse)
    send = SendAfterSave(state, envelope_of(Accept(1)))
    [event] = runner.run_effect(send)
    assert isinstance(event, EffectFailed)
    drive_job(job_of(), [send], runner, lambda: 0.0)
    assert wire.up == []


def test_message_is_sent_after_its_state_is_on_disk(tmp_path):
    wire: Any = Wire()
    runner = performer_of(tmp_path, wire, None)
    seen = []
    wire.publish = lambda *_, **__: seen.append(MaskingFile(tmp_path).load())
    runner.run_effect(SendAfterSave(states()[1], envelope_of(Accept(1))))
    assert seen == [states()[1]]
    runner.run_effect(ForgetMasking())
    assert MaskingFile(tmp_path).load() is None
