"""Limits of the memory that hostile bytes can occupy before they are refused."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
import zstandard

from fedpatch.coordinator.aggregation.received_update_checks import (
    UpdateRequirements,
    check_offer,
    decode_and_validate_update,
)
from fedpatch.coordinator.rounds.upload_scheduler import UploadScheduler
from fedpatch.shared.errors import UpdateRefused, WireError
from fedpatch.shared.tensors.arrays import Schema, TensorSpec
from fedpatch.shared.wire.chunks import decode_chunk
from fedpatch.shared.wire.codec import MAX_MESSAGE_BYTES, decode
from fedpatch.shared.wire.messages import MAX_BLOB_BYTES, Manifest

SCHEMA = Schema((TensorSpec("w", (10,), "float32", "weight"),))
TERMS = UpdateRequirements(SCHEMA, frozenset(), "0" * 64)
ROOM_BYTES = 2 * 2**20
BOMB = zstandard.ZstdCompressor().compress(bytes(256 * 2**20))
NAMED = msgpack.packb({"meta": {}, "tensors": [["w" * 60_000, "float32", [10], bytes(40)]]})
SHAPED = msgpack.packb({"meta": {}, "tensors": [["w", "float32", [2**31, 2**31], bytes(40)]]})
NESTED = b"\x82\xa4meta" + b"\x91" * 60_000 + b"\xc0\xa7tensors\x90"


def peak_bytes(call: Callable[[], object]) -> int:
    """Return the peak memory while `call` refuses its input."""
    tracemalloc.start()
    try:
        with pytest.raises((UpdateRefused, WireError)):
            call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def update(blob: bytes, raw_bytes: int, encoding: str = "fp32") -> Callable[[], object]:
    """Return a call that decodes these bytes with the announced sizes."""
    return lambda: decode_and_validate_update(blob, TERMS, encoding=encoding, raw_bytes=raw_bytes)


def offer(**changes: int) -> Callable[[], object]:
    """Return a call that checks a manifest with these sizes."""
    stated: dict[str, Any] = {
        "size_bytes": MAX_BLOB_BYTES,
        "chunk_bytes": 2**20,
        "chunk_count": 2**11,
        "raw_bytes": MAX_BLOB_BYTES,
    }
    manifest = Manifest(digest="0" * 64, encoding="fp32", schema=SCHEMA.digest, **{**stated, **changes})
    return lambda: check_offer(manifest, schema=SCHEMA.digest, encoding="fp32", max_bytes=10_000)


HOSTILE: dict[str, Callable[[], object]] = {
    "a manifest of 2 GiB": offer(),
    "a byte that unpacks to 2 GiB": offer(size_bytes=1, chunk_bytes=1, chunk_count=1),
    "chunks that are not there": offer(size_bytes=10, raw_bytes=10, chunk_bytes=1, chunk_count=65_536),
    "a bomb as announced": update(BOMB, 256 * 2**20, "fp32+zstd"),
    "a bomb that announces little": update(BOMB, 5000, "fp32+zstd"),
    "a name of 60 kB": update(NAMED, len(NAMED)),
    "a shape of 2^62 values": update(SHAPED, len(SHAPED)),
    "a report 60,000 lists deep": update(NESTED, len(NESTED)),
    "a message 64 Ki lists deep": lambda: decode(b"\x91" * MAX_MESSAGE_BYTES),
    "a list of 2^32 entries": lambda: decode(b"\xdd\xff\xff\xff\xff" * 1000),
    "a text of 60 kB": lambda: decode(b"\xdb\x00\x00\xff\x00" + b"s" * 60_000),
    "a message too large": lambda: decode(bytes(MAX_MESSAGE_BYTES + 1)),
    "a chunk of anything": lambda: decode_chunk(b"fp" + b"\xff" * 60_000),
}


@pytest.mark.parametrize("call", HOSTILE.values(), ids=list(HOSTILE))
def test_hostile_bytes_are_refused_within_two_mebibytes(call):
    assert peak_bytes(call) < ROOM_BYTES


def test_upload_slots_take_the_memory_of_their_offers():
    desk = UploadScheduler(slots=2, window=4, idle_s=30.0, jitter=random.Random(1))
    size = 2**20
    tracemalloc.start()
    try:
        for number in range(100):
            manifest = Manifest(f"{number:064x}", size, 2**16, 16, "fp32", size, SCHEMA.digest)
            desk.offer(f"pi-{number}", manifest, 0.0)
        assert tracemalloc.get_traced_memory()[1] < 2 * size + ROOM_BYTES
    finally:
        tracemalloc.stop()
