"""A full or read-only real disk: a round may be lost, but never earlier data, and free space is the only remedy needed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedpatch.device_agent.job.job_effects import JobState
from fedpatch.device_agent.job.job_events import ChunkReceived, UpdateTrained
from fedpatch.device_agent.job.training_messages import WorkerSetup
from fedpatch.device_agent.runtime.training_supervisor import Trainer
from fedpatch.device_agent.state.patch_store import PatchKey, PatchRecord, PatchState, PatchStore
from fedpatch.device_agent.state.status_file import StatusFile
from fedpatch.device_agent.state.update_spool import Spooled, UpdateSpool
from fedpatch.device_agent.training.local_trainer import LocalTrainer
from fedpatch.device_agent.training.local_update import LocalUpdate
from fedpatch.shared.errors import StateError
from fedpatch.shared.wire.chunks import cut, describe
from fedpatch.shared.wire.messages import Accept, Body, Failed, Manifest, Offer, Progress
from fedpatch.shared.wire.reason_codes import FailReason, JobPhase
from tests.device_agent.device_rounds import SGD, Scene
from tests.device_agent.effect_runners import PlayedDevice
from tests.device_agent.jobs import KEY, REQUEST, requested
from tests.device_agent.toy_tasks import TOY, random_data
from tests.support.disks import SmallDisk, small_disk
from tests.support.specs import PUBLIC_SCHEMA, envelope_of, update

PAGE_BYTES = 4096
SIZE_BYTES = 64 * PAGE_BYTES
BLOB = os.urandom(8 * PAGE_BYTES)
PATCH = PatchKey("digits", "ab" * 32, "affine")


@pytest.fixture
def disk(tmp_path) -> Iterator[SmallDisk]:
    with small_disk(tmp_path / "disk", str(SIZE_BYTES)) as made:
        yield made


def manifest() -> Manifest:
    """A model of eight pages, in as many chunks."""
    return describe(BLOB, chunk_bytes=PAGE_BYTES, encoding="fp32", raw_bytes=len(BLOB), schema=PUBLIC_SCHEMA)


class Device(PlayedDevice):
    """A job and its effect runner, whose training process stays silent."""

    def __init__(self, directory: Path) -> None:
        trainer = Trainer(WorkerSetup("none", "", "", "", "pi"), lambda event: None)
        trainer.train = lambda command: None  # type: ignore[method-assign]
        super().__init__(directory, trainer, max_blob_bytes=SIZE_BYTES)

    def ask(self, round_number: int = 1, epoch: int = 1) -> list[Body]:
        request = envelope_of(replace(REQUEST, model=manifest()), round_number, epoch=epoch)
        return self.perform(self.job.handle(requested(request), 0.0))

    def download(self) -> list[Body]:
        chunks = [cut(BLOB, manifest(), index) for index in range(manifest().chunk_count)]
        return [body for chunk in chunks for body in self.perform(self.job.handle(ChunkReceived(chunk), 1.0))]

    def train(self, blob: bytes) -> list[Body]:
        assert self.job.key is not None
        (self.directory / "spool" / "update.bin").write_bytes(blob)
        return self.perform(self.job.handle(UpdateTrained(self.job.key, update(blob)), 2.0))


@pytest.mark.usefixtures("downloads_on_disk")
class TestDownload:
    def test_download_on_a_full_disk_fails_the_round_and_frees_its_space(self, disk):
        device = Device(disk.path)
        device.ask()
        disk.fill(but_bytes=3 * PAGE_BYTES)
        assert device.download() == [Failed(FailReason.STORAGE)]
        assert device.job.state is JobState.IDLE
        assert list((disk.path / "downloads").iterdir()) == []
        assert device.ask() == [Failed(FailReason.STORAGE)]
        disk.empty()
        assert device.ask(2) == [Accept(10)]
        assert device.download() == [Progress(JobPhase.TRAINING, 0, 1)]

    def test_download_without_any_space_is_accepted_and_then_failed(self, disk):
        device = Device(disk.path)
        disk.fill()
        assert [device.ask(), device.download()] == [[Accept(10)], [Failed(FailReason.STORAGE)]]

    def test_to_a_disk_that_can_only_be_read_by_now_fails_the_round(self, disk):
        device = Device(disk.path)
        disk.make_readonly()
        assert device.ask() == [Accept(10), Failed(FailReason.STORAGE)]
        disk.make_writable()
        assert device.ask(2) == [Accept(10)]
        assert device.download() == [Progress(JobPhase.TRAINING, 0, 1)]


class TestSpool:
    def test_unwritable_spool_fails_the_round(self, disk):
        """An update that a reboot would not find is not offered, and no part of it stays."""
        device = Device(disk.path)
        device.ask()
        device.download()
        (disk.path / "spool" / "update.bin").write_bytes(b"u")
        disk.fill()
        assert device.train(b"u") == [Failed(FailReason.STORAGE)]
        assert list((disk.path / "spool").iterdir()) == []
        disk.empty()
        device.ask(2)
        device.download()
        assert device.train(b"u") == [Offer(update(b"u"))]
        assert UpdateSpool(disk.path / "spool").load() is not None

    def test_spool_that_cannot_be_rewritten_keeps_update_and_note(self, disk):
        """The newer epoch gets its offer; after a reboot the former epoch would get it, and a new request would follow."""
        device = Device(disk.path)
        device.ask()
        device.download()
        device.train(b"u")
        disk.fill()
        assert device.ask(epoch=2) == [Accept(10), Offer(update(b"u"))]
        waits = UpdateSpool(disk.path / "spool").load()
        assert waits == Spooled(KEY, update(b"u"), replace(REQUEST, model=manifest()))


def after(number: int) -> PatchState:
    """A patch that fills a page, and is distinguishable from others."""
    return PatchState({"bn.weight": np.full(PAGE_BYTES // 8, number, np.float32)}, number)


def saved(store: PatchStore, *rounds: int) -> None:
    """Save these rounds in the store."""
    for number in rounds:
        store.save(PatchRecord(PATCH, "run", number, after(number - 1), after(number)))


class TestPatch:
    @pytest.mark.parametrize("again", [3, 2], ids=["the next round", "the same round"])
    @pytest.mark.parametrize("pages", [0, 1])
    def test_failed_patch_save_leaves_all_versions_unchanged(self, disk, again, pages):
        directory = disk.path / "patches"
        store = PatchStore(directory)
        saved(store, 1, 2)
        before = {path.name: path.read_bytes() for path in directory.iterdir()}
        disk.fill(but_bytes=pages * PAGE_BYTES)
        changed = PatchRecord(PATCH, "run", again, after(2), after(7))
        with pytest.raises(StateError, match="No space left on device; "):
            store.save(changed)
        assert {path.name: path.read_bytes() for path in directory.iterdir()} == before
        assert [store.load(PATCH, "run", asked).batches_done for asked in (3, 2, 1)] == [2, 1, 0]
        disk.empty()
        store.save(changed)
        assert store.load(PATCH, "run", again + 1).batches_done == 7

    def test_is_as_it_was_when_a_round_of_training_finds_no_room(self, disk, tmp_path):
        scene = Scene(tmp_path, TOY, SGD, "all")
        command = scene.command(update_path=str(disk.path / "update"))
        local_update = LocalUpdate(LocalTrainer(TOY, random_data("ann", 23)), PatchStore(disk.path / "patches"), "ann")
        disk.fill()
        with pytest.raises(StateError, match="No space left"):
            local_update.run(command, lambda done, total: None, lambda: False)
        assert list((disk.path / "patches").iterdir()) == []
        disk.empty()
        assert local_update.run(command, lambda done, total: None, lambda: False) is not None


def test_a_status_that_cannot_be_written_waits_for_room(disk):
    status = StatusFile(disk.path, {})
    status.write({"state": "idle"})
    disk.fill()
    status.write({"state": "training"})
    assert b"idle" in (disk.path / "status.json").read_bytes()
    disk.empty()
    status.write({"state": "training"})
    assert b"training" in (disk.path / "status.json").read_bytes()


@pytest.mark.medium
@pytest.mark.parametrize(
    ("spoil", "code"), [(SmallDisk.fill, 0), (SmallDisk.make_readonly, 1)], ids=["full", "read-only"]
)
def test_agent_starts_on_a_full_disk_and_reports_a_read_only_one(
    installed, disk: SmallDisk, spoil: Callable[[SmallDisk], None], code: int
):
    spoil(disk)
    options = ["--broker", "mqtt://127.0.0.1:9", "--data", "shard:0/10", "--state-dir", str(disk.path / "agent")]
    command = [sys.executable, "-m", "fedpatch.device_agent", "run", "--until-stdin-closes", *options]
    ended = subprocess.run(command, input=b"", capture_output=True, check=False, timeout=120)
    stderr = ended.stderr.decode()
    assert ended.returncode == code, stderr
    assert "Traceback" not in stderr
    if code:
        assert stderr.startswith(f"fedpatch-agent: {disk.path / 'agent'}: Read-only file system; ")
        assert stderr.count("\n") == 1
