"""A run that is taken up while a file cannot be read changes nothing, and goes on with all of it later."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from fedpatch.coordinator.blobs.blob_store import FileBlobs, read_sealed
from fedpatch.coordinator.rounds.participant_transitions import State
from fedpatch.coordinator.storage.checkpoint import checkpoints, load_checkpoint
from fedpatch.coordinator.storage.database.registry_files import copy_of
from fedpatch.coordinator.storage.database.sqlite_file import problem_of
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.coordinator.storage.update_files import update_key
from fedpatch.shared.app.files import seal
from fedpatch.shared.errors import StateError, StateUnreadable, StoreUnavailable
from tests.coordinator.effect_runners import Bench
from tests.support.failing_reads import ERRORS, FailingReads, reads

__all__ = ["reads"]


@pytest.fixture
def bench(tmp_path: Path, prepared: Any, registry: Registry) -> Bench:
    return Bench(tmp_path, prepared, registry).begin()


def place_of(bench: Bench, key: str) -> Path:
    return Path(bench.blobs.where(key))


@pytest.mark.parametrize("error", ERRORS)
def test_acknowledged_update_that_cannot_be_read_is_kept(bench, reads: FailingReads, error):
    bench.upload("a", 1.0)
    run = bench.engine.spec.run
    reads.error = error
    reads.fail(place_of(bench, update_key(1, "a")))
    with pytest.raises(StateUnreadable):
        bench.again()
    assert [one.device for one in bench.registry.rounds.updates(run, 1)] == ["a"]
    reads.recover()
    assert bench.again().engine.open.round.participants["a"].state is State.REPORTED


def test_store_without_an_answer_costs_no_acknowledged_update(bench, monkeypatch):
    bench.upload("a", 1.0)
    run, key, get = bench.engine.spec.run, update_key(1, "a"), FileBlobs.get

    def refuse(blobs: FileBlobs, wanted: str) -> bytes | None:
        if wanted == key:
            raise StoreUnavailable(f"{key}: the store does not answer")
        return get(blobs, wanted)

    with monkeypatch.context() as patch, pytest.raises(StoreUnavailable):
        patch.setattr(FileBlobs, "get", refuse)
        bench.again()
    assert [one.device for one in bench.registry.rounds.updates(run, 1)] == ["a"]


@pytest.mark.parametrize("error", ERRORS)
def test_newest_checkpoint_that_cannot_be_read_rolls_back_no_round(bench, reads: FailingReads, error):
    for device in "ab":
        bench.upload(device, 1.0)
    newest = max(name for name in bench.blobs.list() if name.startswith("checkpoint-"))
    reads.error = error
    reads.fail(place_of(bench, newest))
    for read in (load_checkpoint, checkpoints):
        with pytest.raises(StateUnreadable, match=newest):
            read(bench.blobs)
    reads.fail(place_of(bench, newest), 2)
    assert load_checkpoint(bench.blobs)[0].round == 1


def test_folder_that_cannot_be_listed_is_not_empty(bench, monkeypatch, reads: FailingReads):
    def refuse(path: Path) -> None:
        raise OSError(24, "Too many open files", str(path))

    monkeypatch.setattr("os.scandir", refuse)
    with pytest.raises(StateUnreadable, match="Too many open files"):
        load_checkpoint(bench.blobs)


class _Deliveries:
    """A store that delivers these bodies, one after the other."""

    def __init__(self, *bodies: bytes) -> None:
        self.bodies = list(bodies)

    def where(self, key: str = "") -> str:
        return f"s3://fleet/{key}"

    def get(self, key: str) -> bytes | None:
        return self.bodies.pop(0)


LINE = b"a format 1\n"


def test_body_with_a_wrong_digest_is_fetched_again():
    whole = seal(LINE, b"content")
    content = read_sealed(_Deliveries(whole[:-2], whole), "key", LINE, "a blob")
    assert content is not None
    assert bytes(content) == b"content"


@pytest.mark.parametrize("bodies", [(b"x", b"x"), (b"x", b"y", b"z")])
def test_body_that_stays_wrong_is_damaged(bodies):
    with pytest.raises(StateError, match="s3://fleet/key") as caught:
        read_sealed(_Deliveries(*bodies), "key", LINE, "a blob")
    assert not isinstance(caught.value, StateUnreadable)


def test_registry_that_the_disk_does_not_read_is_not_replaced_by_its_copy(tmp_path, monkeypatch):
    path = tmp_path / REGISTRY_FILE
    Registry(path).close()
    copy_of(path).write_bytes(path.read_bytes())
    refusal = sqlite3.OperationalError("disk I/O error")
    refusal.sqlite_errorcode = sqlite3.SQLITE_IOERR_READ

    def refuse(*_: object) -> None:
        raise refusal

    monkeypatch.setattr("fedpatch.coordinator.storage.database.registry_damage.tables_problem", refuse)
    with pytest.raises(StateError, match="cannot be used: disk I/O error"):
        problem_of(path)
