"""Network lines of a simulated fleet, which delay messages by their size, and stand-ins for models.

The state machines at both ends move real chunks with real digests. Only the bytes inside are few: a chunk of a stand-in is
`STAND_IN_BYTES` long, while the line takes the time of the real one.
"""

from __future__ import annotations

import random
from functools import partial

from fedpatch.shared.wire.chunked_transfer import CHUNK_OVERHEAD_BYTES, Chunk, decode_chunk, describe, encode_chunk
from fedpatch.shared.wire.codec import decode, encode
from fedpatch.shared.wire.messages import ENCODINGS, Envelope, Manifest
from fedpatch.simulator.fleet.settings import SCHEMA
from fedpatch.simulator.fleet.virtual_clock import Action, VirtualClock

# What a message without a chunk takes on the line, about: envelope, body, topic and TCP.
MESSAGE_BYTES = 300
STAND_IN_BYTES = 16


class NetworkLine:
    """One direction between a device and the broker: bytes go one after the other at its speed, then take its latency."""

    def __init__(self, agenda: VirtualClock, bits_s: float, latency_s: float, loss: float, rng: random.Random) -> None:
        self._agenda = agenda
        self._seconds_per_byte = 8.0 / bits_s
        self._latency_s = latency_s
        self._loss = loss
        self._rng = rng
        self._free_at = 0.0
        self._cuts = 0

    def send(self, size_bytes: int, deliver: Action, *, safe: bool = False) -> None:
        """`deliver` is called when it has arrived, if it is not lost; what is `safe` only a cut can lose."""
        self._free_at = max(self._agenda.now, self._free_at) + size_bytes * self._seconds_per_byte
        if safe or not self._loss or self._rng.random() >= self._loss:
            self._agenda.at(self._free_at + self._latency_s, partial(self._arrive, self._cuts, deliver))

    def cut(self) -> None:
        """The device goes off: what is under way is lost."""
        self._cuts += 1
        self._free_at = self._agenda.now

    def _arrive(self, cuts: int, deliver: Action) -> None:
        if cuts == self._cuts:
            deliver()


class FleetWire:
    """The way of a message to its receiver: encoded and decoded if `real`, else the same object, which is faster."""

    def __init__(self, *, real: bool) -> None:
        self._real = real

    def message(self, envelope: Envelope) -> Envelope:
        """A message after its way."""
        return decode(encode(envelope)) if self._real else envelope

    def chunk(self, chunk: Chunk) -> Chunk:
        """A chunk after its way."""
        return decode_chunk(encode_chunk(chunk)) if self._real else chunk


class FakeBlob:
    """In place of blobs of `size_bytes`: as many chunks, each of them `STAND_IN_BYTES` of a tag that no other blob has."""

    def __init__(self, size_bytes: int, chunk_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes
        self._count = -(-size_bytes // chunk_bytes)
        self._last_bytes = size_bytes - (self._count - 1) * chunk_bytes

    def manifest(self, tag: bytes) -> Manifest:
        """Announces the blob of a tag."""
        blob = tag * self._count
        return describe(blob, chunk_bytes=len(tag), encoding=ENCODINGS[0], raw_bytes=len(blob), schema=SCHEMA)

    def chunk(self, manifest: Manifest, tag: bytes, index: int) -> Chunk:
        """One chunk of it."""
        return Chunk(manifest.digest, index, manifest.chunk_count, tag)

    def real_bytes(self, index: int) -> int:
        """Size of the chunk that this one stands for."""
        return self._last_bytes if index == self._count - 1 else self._chunk_bytes

    def line_bytes(self, index: int) -> int:
        """Bytes of the chunk's message on a line."""
        return self.real_bytes(index) + CHUNK_OVERHEAD_BYTES + MESSAGE_BYTES


def tag_of(owner: int, round_number: int) -> bytes:
    """Bytes that no other device's blob and no other round has."""
    return owner.to_bytes(STAND_IN_BYTES // 2) + round_number.to_bytes(STAND_IN_BYTES // 2)
