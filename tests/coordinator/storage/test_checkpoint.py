"""Checkpoints and updates in both stores: every bit is kept, damage is found, and the model is exported."""

from __future__ import annotations

import io
import logging
import resource
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.coordinator.aggregation.server_state import ServerState, zeros
from fedpatch.coordinator.blobs.blob_store import BlobStore, FileBlobs, Place, require_sealed
from fedpatch.coordinator.find_strategy import STRATEGIES, find_strategy
from fedpatch.coordinator.storage import checkpoint
from fedpatch.coordinator.storage.checkpoint import export_model, load_checkpoint, save_checkpoint
from fedpatch.coordinator.storage.update_files import (
    store_update,
)
from fedpatch.shared.errors import StateError
from fedpatch.shared.tensors.arrays import Schema, TensorSpec
from tests.shared.arbitrary_tensors import same, schemas, tensors_of
from tests.support.disks import small_disk
from tests.support.paths import ROOT

PUBLIC = Schema(
    (
        TensorSpec("fc1.weight", (3, 2), "float32", "weight"),
        TensorSpec("bn1.num_batches_tracked", (), "int64", "stats"),
        TensorSpec("bn1.running_var", (3,), "float32", "stats"),
    )
)


def state_of(round: int, fill: float = 1.5) -> ServerState:
    """Return a state with moments of the devices and of the server."""
    shared = zeros(PUBLIC.with_moments(("exp_avg", "step")))
    server = {"fc1.weight:exp_avg": np.full((3, 2), 1e-30, np.float64), "beta_power": np.array(0.9)}
    return ServerState(round, {**shared, "fc1.weight": np.full((3, 2), fill, np.float32)}, server)


def save(place: Place, *rounds: int) -> str:
    """Save checkpoints of these rounds, and return the key of the last one."""
    return [save_checkpoint(place, state_of(number), PUBLIC, {}) for number in rounds][-1]


def test_rounds_that_counted_are_kept_and_other_checkpoints_have_no_key_for_them(blobs):
    plain = bytes_of(blobs, save(blobs, 1))
    counted = replace(state_of(2), counted={"ann": 2, "bob": 1})
    save_checkpoint(blobs, counted, PUBLIC, {})
    assert load_checkpoint(blobs)[0].counted == counted.counted
    assert b"counted" not in plain


def equal(one: ServerState, other: ServerState) -> bool:
    """Return whether two states are the same to the last bit."""
    return one.round == other.round and same(one.tensors, other.tensors) and same(one.server, other.server)


def bytes_of(blobs: BlobStore, key: str) -> bytes:
    data = blobs.get(key)
    assert data is not None
    return data


def flip(blobs: BlobStore, key: str, place: float) -> None:
    """Flip one bit of a blob, at a fraction of its length."""
    data = bytearray(bytes_of(blobs, key))
    data[int(place * (len(data) - 1))] ^= 0x10
    blobs.put(key, bytes(data))


@st.composite
def states(draw) -> tuple[Schema, ServerState]:
    """Return any state of any strategy, including NaNs, infinities, empty and odd tensors."""
    public = draw(schemas())
    strategy = find_strategy(draw(st.sampled_from(sorted(STRATEGIES.own))))
    tensors = draw(tensors_of(strategy.travelling(public)))
    server = draw(tensors_of(strategy.optimizer_schema(public)))
    return public, ServerState(draw(st.integers(0, 10**7)), tensors, server)


@given(states())
def test_checkpoint_round_trip_keeps_every_bit(drawn):
    public, state = drawn
    meta = {"run": "r-1", "epochs": [1, 2], "user_accuracy": 0.25}
    with tempfile.TemporaryDirectory() as folder:
        save_checkpoint(Path(folder), state, public, meta)
        loaded, schema, read_meta = load_checkpoint(Path(folder))
    assert equal(loaded, state)
    assert (schema, read_meta) == (public, meta)
    assert all(array.flags.writeable for array in loaded.tensors.values())  # the arrays are not mapped from the file


def test_last_two_checkpoints_are_kept(blobs):
    save(blobs, *range(1, 8))
    assert blobs.list() == ["checkpoint-000006.fp", "checkpoint-000007.fp"]
    save_checkpoint(blobs, state_of(8), PUBLIC, {}, kept=3)
    assert blobs.list() == ["checkpoint-000006.fp", "checkpoint-000007.fp", "checkpoint-000008.fp"]
    assert load_checkpoint(blobs)[0].round == 8


def test_leftovers_of_a_killed_process_are_removed(tmp_path):
    run = tmp_path / "runs" / "r-1"
    for number in range(1, 12):
        save(run, number)
    (run / ".checkpoint-000012.fp.x.tmp").write_bytes(b"half")
    save(run, 12)
    assert sorted(path.name for path in run.iterdir()) == ["checkpoint-000011.fp", "checkpoint-000012.fp"]
    assert (run.stat().st_mode & 0o777, (run / "checkpoint-000012.fp").stat().st_mode & 0o777) == (0o700, 0o600)
    assert load_checkpoint(run)[0].round == 12


@given(place=st.floats(0, 1), truncate=st.booleans())
def test_damage_anywhere_falls_back_to_the_checkpoint_before(place, truncate):
    with tempfile.TemporaryDirectory() as folder:
        blobs = FileBlobs(Path(folder))
        save_checkpoint(blobs, state_of(1), PUBLIC, {"n": 1})
        key = save_checkpoint(blobs, state_of(2), PUBLIC, {"n": 2})
        if truncate:
            data = bytes_of(blobs, key)
            blobs.put(key, data[: int(place * (len(data) - 1))])
        else:
            flip(blobs, key, place)
        loaded, _, meta = load_checkpoint(blobs)
        assert equal(loaded, state_of(1))
        assert meta == {"n": 1}


def test_fallback_is_logged_and_ends_with_the_next_save(blobs, caplog):
    damaged = save(blobs, 1, 2)
    flip(blobs, damaged, 0.9)
    with caplog.at_level(logging.WARNING):
        load_checkpoint(blobs)
    (line,) = caplog.messages
    assert line == (
        f"{blobs.where(damaged)}: is damaged (its SHA-256 does not fit); carrying on from round 1 (checkpoint-000001.fp)"
    )
    save_checkpoint(blobs, state_of(2, fill=7.0), PUBLIC, {})
    assert equal(load_checkpoint(blobs)[0], state_of(2, fill=7.0))


@pytest.mark.parametrize("left", [b"", b"\0" * 100, None], ids=["empty", "zeros", "a directory"])
def test_garbage_in_place_of_the_newest_falls_back(tmp_path, caplog, left):
    damaged = tmp_path / save(tmp_path, 1, 2)
    damaged.unlink()
    damaged.mkdir() if left is None else damaged.write_bytes(left)
    assert equal(load_checkpoint(tmp_path)[0], state_of(1))
    assert f"{damaged}: " in caplog.text and "carrying on from round 1" in caplog.text
    save(tmp_path, 2, 3)
    assert sorted(path.name for path in tmp_path.glob("*.fp")) == ["checkpoint-000002.fp", "checkpoint-000003.fp"]


def test_checkpoint_deleted_while_it_is_read_is_followed_by_the_newer(blobs, caplog, monkeypatch):
    save(blobs, 1)
    read = require_sealed

    def late(*arguments: Any) -> memoryview:
        monkeypatch.undo()
        save(blobs, 2, 3)
        return read(*arguments)

    monkeypatch.setattr(checkpoint, "require_sealed", late)
    assert equal(load_checkpoint(blobs)[0], state_of(3))
    assert caplog.text == ""


def test_damaged_older_checkpoint_is_not_read(blobs, caplog):
    older = save(blobs, 1)
    save(blobs, 2)
    flip(blobs, older, 0.5)
    assert equal(load_checkpoint(blobs)[0], state_of(2))
    save(blobs, 3)
    assert (blobs.get(older), caplog.messages) == (None, [])


def test_load_with_all_checkpoints_damaged_raises_with_each_place(blobs):
    for number in (1, 2):
        flip(blobs, save(blobs, number), 0.5)
    with pytest.raises(StateError) as caught:
        load_checkpoint(blobs)
    lines = str(caught.value).splitlines()
    places = [blobs.where(f"checkpoint-{number:06d}.fp") for number in (2, 1)]
    assert [line.partition(": is")[0] for line in lines[:2]] == places
    assert lines[2] == f"no checkpoint in {blobs.where()} is whole; restore one from a backup, or start a new run"


def test_no_checkpoint_raises(blobs):
    with pytest.raises(StateError, match="holds no checkpoint"):
        load_checkpoint(blobs)


def test_foreign_blobs_and_other_versions_raise(blobs):
    for content, problem in ((b"hello", "is not a checkpoint"), (b"fedpatch checkpoint 2\n...", "another version")):
        blobs.put("checkpoint-000001.fp", content)
        with pytest.raises(StateError, match=problem):
            load_checkpoint(blobs)


def test_refused_write_raises_and_keeps_the_checkpoint_before(tmp_path):
    save(tmp_path, 1)
    program = f"""
import resource
from pathlib import Path
from fedpatch.coordinator.storage.checkpoint import save_checkpoint, load_checkpoint
from fedpatch.shared.errors import StateError
from dataclasses import replace
state, schema, meta = load_checkpoint(Path({str(tmp_path)!r}))
resource.setrlimit(resource.RLIMIT_FSIZE, (100, {resource.RLIM_INFINITY}))
try:
    save_checkpoint(Path({str(tmp_path)!r}), replace(state, round=2), schema, meta)
except StateError as error:
    print(error)
"""
    root = ROOT
    printed = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True
    ).stdout
    path = tmp_path / "checkpoint-000002.fp"
    assert printed.startswith(f"{path}: File too large; raise the limit of a file's size")
    assert [found.name for found in tmp_path.iterdir()] == ["checkpoint-000001.fp"]
    assert equal(load_checkpoint(tmp_path)[0], state_of(1))


def test_exported_model_is_read_by_numpy_without_moments(blobs):
    tensors = {**state_of(1).tensors, "file": np.arange(3, dtype=np.int8), "empty": np.zeros((0, 2), np.float16)}
    assert export_model(blobs, tensors) == blobs.where("model.npz")
    written = bytes_of(blobs, "model.npz")
    with np.load(io.BytesIO(written), allow_pickle=False) as archive:
        exported = dict(archive)
    assert same(exported, {name: array for name, array in tensors.items() if ":" not in name})
    export_model(blobs, dict(reversed(tensors.items())))
    assert bytes_of(blobs, "model.npz") == written


def test_full_disk_keeps_the_checkpoints_before_and_no_partial_file(tmp_path):
    with small_disk(tmp_path / "disk", "256k") as disk:
        run = disk.path / "r-1"
        save(run, 1, 2)
        before = {path.name: path.read_bytes() for path in run.iterdir()}
        disk.fill()
        remedy = "No space left on device; free some space on this disk"
        with pytest.raises(StateError, match=rf"checkpoint-000003\.fp: {remedy}"):
            save(run, 3)
        with pytest.raises(StateError, match=rf"pi-1\.fp: {remedy}"):
            store_update(run, 3, "pi-1", bytes(10_000))
        assert {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()} == before
        assert list((run / "updates").rglob("*.*")) == []
        disk.empty()
        save(run, 3)
        assert load_checkpoint(run)[0].round == 3


def test_readonly_disk_raises_and_can_be_read(tmp_path):
    with small_disk(tmp_path / "disk", "256k") as disk:
        save(disk.path, 1)
        disk.make_readonly()
        with pytest.raises(StateError, match=r"Read-only file system; this disk is read-only.* mount it read-write"):
            save(disk.path, 2)
        assert equal(load_checkpoint(disk.path)[0], state_of(1))


def test_rounding_errors_that_an_earlier_version_saved_are_left_out(blobs):
    before = state_of(3)
    left = {"fc1.weight:residual": np.ones((3, 2), np.float32)}
    save_checkpoint(blobs, replace(before, server=before.server | left), PUBLIC, {})
    assert equal(load_checkpoint(blobs)[0], before)
