"""Checkpoints that an earlier version wrote."""

from __future__ import annotations

from pathlib import Path

import msgpack

from fedpatch.coordinator.storage import checkpoint
from fedpatch.coordinator.storage.checkpoint import load_checkpoint, save_checkpoint
from tests.coordinator.storage.test_checkpoint import PUBLIC, equal, state_of


def test_a_checkpoint_that_names_no_encoding_is_read_as_the_compressed_one_it_is(tmp_path, monkeypatch):
    """A run that an earlier version began goes on."""

    def write(path: Path, magic: bytes, content: bytes) -> None:
        fields = msgpack.unpackb(content)
        for part in ("tensors", "server"):
            del fields[part]["encoding"]
        real(path, magic, msgpack.packb(fields))

    real = checkpoint._write
    monkeypatch.setattr(checkpoint, "ENCODING", "fp32+zstd")
    monkeypatch.setattr(checkpoint, "_write", write)
    save_checkpoint(tmp_path, state_of(3), PUBLIC, {})
    monkeypatch.undo()
    assert equal(load_checkpoint(tmp_path)[0], state_of(3))
