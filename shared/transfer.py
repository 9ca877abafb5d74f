"""Chunked, content-addressed transfer: chunk layout, bitmap, and the two ends as state machines without IO.

A PUBACK proves nothing about the other end, so both directions repair themselves: whoever lacks chunks says which. Down,
a device asks for what is missing when the flow has been quiet (`Download`). Up, a device sends at most a window of chunks
that the coordinator has not acknowledged, and offers again when it hears nothing (`Upload`); the coordinator's end is
coordinator.uploads. Neither side holds more than its window in flight.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from shared.errors import BrokerError, UsageError, WireError
from shared.messages import MAX_CHUNKS, Ack, Grant, Manifest, Need, Offer

# magic, version, flags (0), SHA-256 of the blob, index, count, length of the data, CRC-32 of the data; network order.
_HEADER = struct.Struct(">2sBB32sIIII")
_MAGIC = b"fp"
_CHUNK_VERSION = 1

CHUNK_OVERHEAD_BYTES = _HEADER.size
# Topic, fixed header and MQTT 5 properties of a publish; generous: a packet over the broker's limit poisons a session.
_PACKET_OVERHEAD_BYTES = 512
MIN_CHUNK_BYTES = 8 * 1024

MAX_QUIET_S = 30.0


@dataclass(frozen=True)
class Chunk:
    """Part `index` of `count` of the blob with SHA-256 `digest`."""

    digest: str
    index: int
    count: int
    data: bytes


def encode_chunk(chunk: Chunk) -> bytes:
    """52 bytes of header, then the data."""
    head = _HEADER.pack(
        _MAGIC,
        _CHUNK_VERSION,
        0,
        bytes.fromhex(chunk.digest),
        chunk.index,
        chunk.count,
        len(chunk.data),
        zlib.crc32(chunk.data),
    )
    return head + chunk.data


def decode_chunk(payload: bytes) -> Chunk:
    """The chunk in `payload`; WireError when it is not one, is cut off, or its CRC does not fit."""
    if len(payload) < _HEADER.size:
        raise WireError(f"chunk of {len(payload)} bytes is shorter than its header")
    magic, version, flags, digest, index, count, length, crc = _HEADER.unpack_from(payload)
    if magic != _MAGIC or version != _CHUNK_VERSION or flags != 0:
        raise WireError("not a chunk of this protocol version")
    data = payload[_HEADER.size :]
    if not 0 < count <= MAX_CHUNKS or index >= count:
        raise WireError(f"chunk {index} of {count} cannot be")
    if len(data) != length or zlib.crc32(data) != crc:
        raise WireError(f"chunk {index} of {count} is damaged")
    return Chunk(digest.hex(), index, count, data)


def chunk_bytes_within(configured_bytes: int, max_packet_bytes: int | None) -> int:
    """Data bytes per chunk that pass a broker's packet limit (None: no limit known). BrokerError below 8 KiB."""
    if max_packet_bytes is None:
        return configured_bytes
    fits = max_packet_bytes - CHUNK_OVERHEAD_BYTES - _PACKET_OVERHEAD_BYTES
    if fits < MIN_CHUNK_BYTES:
        raise BrokerError(
            f"the broker takes packets of at most {max_packet_bytes} bytes, too few for chunks of {MIN_CHUNK_BYTES}; "
            "raise its packet limit (mosquitto: max_packet_size)"
        )
    return min(configured_bytes, fits)


def describe(blob: bytes, *, chunk_bytes: int, encoding: str, raw_bytes: int, schema: str) -> Manifest:
    """The manifest of a blob that is in memory. UsageError when it has more chunks than a manifest can announce."""
    count = -(-len(blob) // chunk_bytes)
    if count > MAX_CHUNKS:
        raise UsageError(f"{count} chunks of {chunk_bytes} bytes: at most {MAX_CHUNKS} can be sent; use larger chunks")
    return Manifest(
        digest=hashlib.sha256(blob).hexdigest(),
        size_bytes=len(blob),
        chunk_bytes=chunk_bytes,
        chunk_count=count,
        encoding=encoding,
        raw_bytes=raw_bytes,
        schema=schema,
    )


def check_manifest(manifest: Manifest, max_bytes: int) -> None:
    """WireError when the figures contradict each other or pass the ceiling; called before anything is allocated."""
    if manifest.chunk_count != -(-manifest.size_bytes // manifest.chunk_bytes):
        cut_so = f"{manifest.size_bytes} bytes in chunks of {manifest.chunk_bytes}"
        raise WireError(f"manifest: {cut_so} are not {manifest.chunk_count} chunks")
    if max(manifest.size_bytes, manifest.raw_bytes) > max_bytes:
        raise WireError(
            f"manifest announces {manifest.size_bytes} bytes ({manifest.raw_bytes} unpacked); the limit is {max_bytes}"
        )


def cut(blob: bytes, manifest: Manifest, index: int) -> Chunk:
    """Chunk `index` of a blob."""
    start = index * manifest.chunk_bytes
    return Chunk(manifest.digest, index, manifest.chunk_count, blob[start : start + manifest.chunk_bytes])


class Bitmap:
    """A set of chunk indices below `count`; bit i of the wire form is bit i % 8 of byte i // 8."""

    def __init__(self, count: int, indices: Iterable[int] = ()) -> None:
        self.count = count
        self._set: set[int] = {i for i in indices if 0 <= i < count}

    @classmethod
    def from_bytes(cls, count: int, data: bytes) -> Bitmap:
        """WireError unless `data` is exactly `count` bits, padded with zeros."""
        value = int.from_bytes(data, "little")
        if len(data) != (count + 7) // 8 or value >> count:
            raise WireError(f"bitmap of {len(data)} bytes does not fit {count} chunks")
        return cls(count, (i for i in range(count) if value >> i & 1))

    def to_bytes(self) -> bytes:
        """The wire form, (count + 7) // 8 bytes."""
        data = bytearray((self.count + 7) // 8)
        for i in self._set:
            data[i // 8] |= 1 << i % 8
        return bytes(data)

    def add(self, index: int) -> bool:
        """True when `index` was not there yet."""
        if index in self._set:
            return False
        self._set.add(index)
        return True

    def __contains__(self, index: int) -> bool:
        return index in self._set

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._set))

    def __len__(self) -> int:
        return len(self._set)

    @property
    def full(self) -> bool:
        """Nothing is missing."""
        return len(self._set) == self.count

    def missing(self, limit: int) -> list[int]:
        """The first `limit` indices that are not in the set."""
        found: list[int] = []
        for i in range(self.count):
            if len(found) == limit:
                break
            if i not in self._set:
                found.append(i)
        return found


def fits(chunk: Chunk, manifest: Manifest) -> bool:
    """Whether a chunk belongs to the announced blob and has the length its place demands."""
    if chunk.digest != manifest.digest or chunk.count != manifest.chunk_count:
        return False
    last = manifest.size_bytes - (manifest.chunk_count - 1) * manifest.chunk_bytes
    return len(chunk.data) == (last if chunk.index == manifest.chunk_count - 1 else manifest.chunk_bytes)


class Download:
    """The receiving end of the global model: which chunks are here, and when to ask for the others.

    `have` are chunks kept from before a restart. `tick` returns a Need once nothing new came for a while; the pause
    doubles up to 30 s while asking has no effect, and starts over with each new chunk.
    """

    def __init__(
        self, manifest: Manifest, now: float, *, have: Iterable[int] = (), window: int = 32, quiet_s: float = 1.0
    ) -> None:
        self.manifest = manifest
        self.have = Bitmap(manifest.chunk_count, have)
        self._window = window
        self._first_quiet_s = quiet_s
        self._quiet_s = quiet_s
        self._ask_at = now + quiet_s

    @property
    def complete(self) -> bool:
        """All chunks are here (their SHA-256 is still to be checked)."""
        return self.have.full

    def take(self, chunk: Chunk, now: float) -> bool:
        """True when the chunk is new and fits: the caller stores it."""
        if not fits(chunk, self.manifest) or not self.have.add(chunk.index):
            return False
        self._quiet_s = self._first_quiet_s
        self._ask_at = now + self._quiet_s
        return True

    def next_deadline(self) -> float | None:
        """When `tick` has something to say."""
        return None if self.complete else self._ask_at

    def tick(self, now: float) -> Need | None:
        """What to ask for, if the flow has been quiet for too long."""
        if self.complete or now < self._ask_at:
            return None
        self._quiet_s = min(2 * self._quiet_s, MAX_QUIET_S)
        self._ask_at = now + self._quiet_s
        wanted = Bitmap(self.manifest.chunk_count, self.have.missing(self._window))
        return Need(self.manifest.digest, wanted.to_bytes())


@dataclass(frozen=True)
class SendChunk:
    """Publish chunk `index` of the update."""

    index: int


class Upload:
    """The sending end of an update: offer, send within the window, offer again when it has gone quiet.

    Done is what the coordinator's Committed (or Refused) says, not what this machine believes; until then it keeps
    offering. Only an offer gives up what is in flight: it travels behind those chunks, so its Grant knows of them.
    """

    def __init__(self, manifest: Manifest, now: float, *, quiet_s: float = 3.0) -> None:
        self.manifest = manifest
        self._acked = Bitmap(manifest.chunk_count)
        self._in_flight: set[int] = set()
        self._window = 0
        self._first_quiet_s = quiet_s
        self._quiet_s = quiet_s
        self._offer_at = now

    def next_deadline(self) -> float:
        """When to offer (again) if nothing is heard."""
        return self._offer_at

    def tick(self, now: float) -> list[Offer | SendChunk]:
        """An Offer when it is time. What was in flight counts as lost; the Grant will say what arrived."""
        if now < self._offer_at:
            return []
        self._in_flight.clear()
        self._window = 0
        self._offer_at = now + self._quiet_s
        self._quiet_s = min(2 * self._quiet_s, MAX_QUIET_S)
        return [Offer(self.manifest)]

    def on_reconnect(self, now: float) -> None:
        """The link was down: offer at the next tick instead of waiting."""
        self._quiet_s = self._first_quiet_s
        self._offer_at = now

    def on_grant(self, grant: Grant, now: float) -> list[Offer | SendChunk]:
        """Opens the window. WireError when the bitmap does not fit."""
        have = Bitmap.from_bytes(self.manifest.chunk_count, grant.have)
        self._window = grant.window
        return self._heard(have, now)

    def on_ack(self, ack: Ack, now: float) -> list[Offer | SendChunk]:
        """Moves the window. WireError when the bitmap does not fit."""
        return self._heard(Bitmap.from_bytes(self.manifest.chunk_count, ack.have), now)

    def on_retry_after(self, delay_s: float, now: float) -> None:
        """All slots are taken: offer again later."""
        self._offer_at = now + max(delay_s, 0.1)

    def _heard(self, have: Bitmap, now: float) -> list[Offer | SendChunk]:
        before = len(self._acked)
        self._acked = have
        self._in_flight.difference_update(self._acked)
        if len(self._acked) > before:
            self._quiet_s = self._first_quiet_s
        self._offer_at = now + self._quiet_s
        sends: list[Offer | SendChunk] = []
        for index in range(self.manifest.chunk_count):
            if len(self._in_flight) >= self._window:
                break
            if index not in self._acked and index not in self._in_flight:
                self._in_flight.add(index)
                sends.append(SendChunk(index))
        return sends
