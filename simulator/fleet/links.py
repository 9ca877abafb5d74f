"""Network lines of a simulated fleet, which delay messages by their size, and stand-ins for models.

The state machines at both ends exchange real chunks with real digests. Only their content is short: a chunk of a stand-in
has `STAND_IN_BYTES`, but the line takes the time of a chunk of the model.
"""

from __future__ import annotations

import random
from functools import partial

from fedpatch.shared.wire.chunks import CHUNK_OVERHEAD_BYTES, Chunk, decode_chunk, describe, encode_chunk
from fedpatch.shared.wire.codec import decode, encode
from fedpatch.shared.wire.messages import ENCODINGS, Envelope, Manifest
from fedpatch.simulator.fleet.settings import SCHEMA
from fedpatch.simulator.fleet.virtual_clock import Action, VirtualClock

# Approximate size of a message without a chunk on the line: envelope, body, topic and TCP.
MESSAGE_BYTES = 300
STAND_IN_BYTES = 16


class NetworkLine:
    """One direction between a device and the broker: a message takes its bytes at the line's speed, plus the latency."""

    def __init__(self, agenda: VirtualClock, bits_s: float, latency_s: float, loss: float, rng: random.Random) -> None:
        self._agenda = agenda
        self._seconds_per_byte = 8.0 / bits_s
        self._latency_s = latency_s
        self._loss = loss
        self._rng = rng
        self._free_at = 0.0
        self._cuts = 0

    def send(self, size_bytes: int, deliver: Action, *, safe: bool = False) -> None:
        """Call `deliver` when the message arrives, unless it is lost; only a cut loses a `safe` message."""
        self._free_at = max(self._agenda.now, self._free_at) + size_bytes * self._seconds_per_byte
        if safe or not self._loss or self._rng.random() >= self._loss:
            self._agenda.at(self._free_at + self._latency_s, partial(self._arrive, self._cuts, deliver))

    def cut(self) -> None:
        """Disconnect the device: messages that have not arrived are lost."""
        self._cuts += 1
        self._free_at = self._agenda.now

    def _arrive(self, cuts: int, deliver: Action) -> None:
        if cuts == self._cuts:
            deliver()


class FleetWire:
    """Carries messages to their receiver: encoded and decoded if `real`, else as the same object, which is faster."""

    def __init__(self, *, real: bool) -> None:
        self._real = real

    def message(self, envelope: Envelope) -> Envelope:
        """Return a message as its receiver reads it."""
        return decode(encode(envelope)) if self._real else envelope

    def chunk(self, chunk: Chunk) -> Chunk:
        """Return a chunk as its receiver reads it."""
        return decode_chunk(encode_chunk(chunk)) if self._real else chunk


class FakeBlob:
    """Replaces blobs of `size_bytes`: the same number of chunks, each with the blob's unique tag of `STAND_IN_BYTES`."""

    def __init__(self, size_bytes: int, chunk_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes
        self._count = -(-size_bytes // chunk_bytes)
        self._last_bytes = size_bytes - (self._count - 1) * chunk_bytes

    def manifest(self, tag: bytes) -> Manifest:
        """Return the manifest of the blob of a tag."""
        blob = tag * self._count
        return describe(blob, chunk_bytes=len(tag), encoding=ENCODINGS[0], raw_bytes=len(blob), schema=SCHEMA)

    def chunk(self, manifest: Manifest, tag: bytes, index: int) -> Chunk:
        """Return one chunk of the blob."""
        return Chunk(manifest.digest, index, manifest.chunk_count, tag)

    def real_bytes(self, index: int) -> int:
        """Return the size of the chunk that this stand-in replaces."""
        return self._last_bytes if index == self._count - 1 else self._chunk_bytes

    def line_bytes(self, index: int) -> int:
        """Return the bytes of the chunk's message on a line."""
        return self.real_bytes(index) + CHUNK_OVERHEAD_BYTES + MESSAGE_BYTES


def tag_of(owner: int, round_number: int) -> bytes:
    """Return bytes that are unique to this owner and round."""
    return owner.to_bytes(STAND_IN_BYTES // 2) + round_number.to_bytes(STAND_IN_BYTES // 2)
