"""Chunked, content-addressed transfer of blobs: chunks, manifests, and the device's two ends as state machines without IO.

A PUBACK proves nothing about the receiver, so the receiver names the chunks that it lacks. A device that downloads asks for
missing chunks when none has arrived for a while (`Download`). A device that uploads sends at most one window of
unacknowledged chunks, and offers its update again when no answer comes (`Upload`). The coordinator's end of an upload is
coordinator.rounds.upload_scheduler. Neither side has more than one window in flight.
"""

from __future__ import annotations

import hashlib
import math
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from fedpatch.shared.errors import BrokerError, DamagedChunk, UsageError, WireError
from fedpatch.shared.wire.messages import MAX_CHUNKS, Ack, Grant, Manifest, Need, Offer

# magic, version, flags (0), SHA-256 of the blob, index, count, length of the data, CRC-32 of the data; network order.
_HEADER = struct.Struct(">2sBB32sIIII")
_MAGIC = b"fp"
_CHUNK_VERSION = 1

CHUNK_OVERHEAD_BYTES = _HEADER.size
# Topic, fixed header and MQTT 5 properties of a PUBLISH. It is generous, because a broker closes the connection at a packet
# beyond its limit, and would do so again at each attempt to send it.
_PACKET_OVERHEAD_BYTES = 512
MIN_CHUNK_BYTES = 8 * 1024
DEFAULT_CHUNK_KIB = 256
"""Larger chunks cost less processor time; a link of 70 kbit/s still sends one within the keepalive of 30 s."""

MAX_QUIET_S = 30.0
ASK_QUIET_S = 1.0
OFFER_QUIET_S = 3.0
# Pause of a device with an upload slot: several of its offers must arrive before the coordinator gives the slot away.
GRANTED_QUIET_S = 5.0


@dataclass(frozen=True)
class Chunk:
    """One part of a blob.

    Attributes:
        digest: SHA-256 of the whole blob, 64 lower-case hexadecimal digits.
        index: Position of this part, from 0 to `count` - 1.
        count: Number of parts of the blob.
        data: Bytes of this part.

    Example:
        >>> chunk = Chunk("00" * 32, index=0, count=1, data=b"abc")
        >>> decode_chunk(encode_chunk(chunk)) == chunk
        True
    """

    digest: str
    index: int
    count: int
    data: bytes


def encode_chunk(chunk: Chunk) -> bytes:
    """Return the wire form of `chunk`: a header of 52 bytes, then the data."""
    header = _HEADER.pack(
        _MAGIC,
        _CHUNK_VERSION,
        0,
        bytes.fromhex(chunk.digest),
        chunk.index,
        chunk.count,
        len(chunk.data),
        zlib.crc32(chunk.data),
    )
    return header + chunk.data


def decode_chunk(payload: bytes) -> Chunk:
    """Return the chunk in `payload`. Raises WireError if it is foreign or truncated, or if its CRC does not match."""
    if len(payload) < _HEADER.size:
        raise WireError(f"chunk of {len(payload)} bytes is shorter than its header")
    magic, version, flags, digest, index, count, length, crc = _HEADER.unpack_from(payload)
    if magic != _MAGIC or version != _CHUNK_VERSION or flags != 0:
        raise WireError("the payload is not a chunk of this protocol version")
    data = payload[_HEADER.size :]
    if not 0 < count <= MAX_CHUNKS or index >= count:
        raise WireError(f"chunk {index} of {count} is impossible: count must be 1 to {MAX_CHUNKS}, index below count")
    if len(data) != length:
        raise WireError(f"chunk {index} of {count} has {len(data)} bytes, and announces {length}")
    if zlib.crc32(data) != crc:
        raise DamagedChunk(f"chunk {index} of {count} is damaged")
    return Chunk(digest.hex(), index, count, data)


class Bitmap:
    r"""A set of chunk indices from 0 to `count` - 1. In the wire form, chunk i is bit i % 8 of byte i // 8.

    Example:
        >>> received = Bitmap(10, [0, 9])
        >>> received.to_bytes(), received.missing(limit=3)
        (b'\x01\x02', [1, 2, 3])
    """

    def __init__(self, count: int, indices: Iterable[int] = ()) -> None:
        self.count = count
        self._set: set[int] = {i for i in indices if 0 <= i < count}

    @classmethod
    def from_bytes(cls, count: int, data: bytes) -> Bitmap:
        """Read the wire form. Raises WireError unless `data` has exactly `count` bits, padded with zeros."""
        value = int.from_bytes(data, "little")
        if len(data) != (count + 7) // 8 or value >> count:
            raise WireError(f"bitmap of {len(data)} bytes does not fit {count} chunks")
        return cls(count, (8 * i + bit for i, byte in enumerate(data) if byte for bit in range(8) if byte >> bit & 1))

    def to_bytes(self) -> bytes:
        """Return the wire form, (count + 7) // 8 bytes."""
        data = bytearray((self.count + 7) // 8)
        for i in self._set:
            data[i // 8] |= 1 << i % 8
        return bytes(data)

    def add(self, index: int) -> bool:
        """Add `index`. Returns False if it was in the set already."""
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
        """True if every index is in the set."""
        return len(self._set) == self.count

    def missing(self, limit: int) -> list[int]:
        """Return the lowest indices that are not in the set, at most `limit` of them."""
        return list(islice((i for i in range(self.count) if i not in self._set), limit))


def chunk_bytes_within(configured_bytes: int, max_packet_bytes: int | None) -> int:
    """Return the data bytes of a chunk that pass the broker's packet limit, at most `configured_bytes`.

    `max_packet_bytes` is None where the broker states no limit. Raises BrokerError below MIN_CHUNK_BYTES (8 KiB).
    """
    if max_packet_bytes is None:
        return configured_bytes
    data_bytes = max_packet_bytes - CHUNK_OVERHEAD_BYTES - _PACKET_OVERHEAD_BYTES
    if data_bytes < MIN_CHUNK_BYTES:
        raise BrokerError(
            f"the broker accepts packets of at most {max_packet_bytes} bytes, too few for chunks of {MIN_CHUNK_BYTES}; "
            "raise its packet limit (mosquitto: max_packet_size)"
        )
    return min(configured_bytes, data_bytes)


def describe(blob: bytes, *, chunk_bytes: int, encoding: str, raw_bytes: int, schema: str) -> Manifest:
    """Return the manifest of a blob.

    Args:
        blob: The bytes as they are sent.
        chunk_bytes: Data bytes of each chunk.
        encoding: Encoding of the blob, one of ENCODINGS.
        raw_bytes: Size of the blob when decompressed.
        schema: Digest of the schema of its tensors.

    Returns:
        The manifest that announces the blob.

    Raises:
        UsageError: The blob would have more than MAX_CHUNKS chunks.
    """
    count = -(-len(blob) // chunk_bytes)
    if count > MAX_CHUNKS:
        raise UsageError(
            f"the blob would have {count} chunks of {chunk_bytes} bytes, at most {MAX_CHUNKS} are possible; "
            "use larger chunks"
        )
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
    """Raise WireError if figures contradict each other or exceed `max_bytes`. Call it before allocating memory."""
    if manifest.chunk_count != -(-manifest.size_bytes // manifest.chunk_bytes):
        division = f"{manifest.size_bytes} bytes in chunks of {manifest.chunk_bytes}"
        raise WireError(f"manifest: {division} are not {manifest.chunk_count} chunks")
    if max(manifest.size_bytes, manifest.raw_bytes) > max_bytes:
        raise WireError(
            f"manifest announces {manifest.size_bytes} bytes ({manifest.raw_bytes} unpacked); the limit is {max_bytes}"
        )


def cut(blob: bytes, manifest: Manifest, index: int) -> Chunk:
    """Return chunk `index` of a blob.

    Args:
        blob: The bytes as they are sent.
        manifest: The manifest of `blob`.
        index: Index of the chunk, 0 to `manifest.chunk_count` - 1.

    Returns:
        The chunk.
    """
    start = index * manifest.chunk_bytes
    return Chunk(manifest.digest, index, manifest.chunk_count, blob[start : start + manifest.chunk_bytes])


def fits(chunk: Chunk, manifest: Manifest) -> bool:
    """Return whether a chunk belongs to the announced blob and has the length that its index requires."""
    if chunk.digest != manifest.digest or chunk.count != manifest.chunk_count:
        return False
    last = manifest.size_bytes - (manifest.chunk_count - 1) * manifest.chunk_bytes
    return len(chunk.data) == (last if chunk.index == manifest.chunk_count - 1 else manifest.chunk_bytes)


class Download:
    """The receiving end of the global model, which is one blob or several: tracks chunks, and asks for missing ones.

    `tick` asks once no new chunk has arrived for ASK_QUIET_S or, on a slow line, for twice the time of one chunk. This pause
    doubles up to MAX_QUIET_S while no chunk arrives, and each new chunk resets it. Where chunks arrive only on request, as
    from a broker that retains no messages, the next window is requested as soon as the last one is complete.

    Args:
        blobs: Manifests of the blobs to download.
        now: The time in seconds, from any fixed origin; as in all methods.
        have: Indices of the chunks kept from before a restart, by the digest of their blob.
        window: Most chunks to ask for at a time.
        asks: False while chunks are fetched by URL, which needs no requests; `ask_from` ends that.

    Example:
        >>> blob = b"x" * 20_000
        >>> manifest = describe(blob, chunk_bytes=8192, encoding="fp32", raw_bytes=20_000, schema="00" * 32)
        >>> download = Download([manifest], now=0.0)
        >>> [download.take(cut(blob, manifest, index), now=0.1) for index in range(3)]
        [True, True, True]
        >>> download.complete
        True
    """

    def __init__(
        self,
        blobs: Sequence[Manifest],
        now: float,
        *,
        have: Mapping[str, Iterable[int]] | None = None,
        window: int = 32,
        asks: bool = True,
    ) -> None:
        self.asks = asks
        self._blobs = {blob.digest: blob for blob in blobs}
        known = have or {}
        self._have = {blob.digest: Bitmap(blob.chunk_count, known.get(blob.digest, ())) for blob in blobs}
        self._window = window
        self._quiet_s = ASK_QUIET_S
        self._ask_at = now + ASK_QUIET_S
        self._asked: set[tuple[str, int]] = set()
        self._unasked = False  # whether a chunk that was not requested arrived since the last Need
        self._pulling = False  # whether no such chunk arrived before that Need, so chunks arrive on request only
        self._last_at = now
        self._pace_s = math.inf  # the shortest time between two chunks

    @property
    def have(self) -> dict[str, frozenset[int]]:
        """Indices of the chunks received, by the digest of their blob."""
        return {digest: frozenset(indices) for digest, indices in self._have.items()}

    @property
    def complete(self) -> bool:
        """True if all chunks have been received. The caller still has to check the SHA-256 of each blob."""
        return all(indices.full for indices in self._have.values())

    def take(self, chunk: Chunk, now: float) -> bool:
        """Register a chunk. Returns True if it is new and fits: the caller must then store it."""
        blob = self._blobs.get(chunk.digest)
        if blob is None or not fits(chunk, blob) or not self._have[chunk.digest].add(chunk.index):
            return False
        self._pace_s = min(self._pace_s, now - self._last_at)
        self._last_at = now
        self._quiet_s = min(max(ASK_QUIET_S, 2 * self._pace_s), MAX_QUIET_S)
        self._ask_at = now + self._quiet_s
        place = chunk.digest, chunk.index
        if place not in self._asked:
            self._unasked = True
        elif self._window_is_here(place) and self._pulling and not self._unasked:
            self._ask_at = now
        return True

    def next_deadline(self) -> float | None:
        """Return the time at which `tick` is due, or None when the download is complete."""
        return self._ask_at if self.asks and not self.complete else None

    def tick(self, now: float) -> list[Need]:
        """Return requests for missing chunks if a request is due, else nothing."""
        if not self.asks or self.complete or now < self._ask_at:
            return []
        self._quiet_s = min(2 * self._quiet_s, MAX_QUIET_S)
        self._ask_at = now + self._quiet_s
        self._pulling, self._unasked = not self._unasked, False
        self._asked = set()
        needs = []
        for digest, indices in self._have.items():
            wanted = Bitmap(indices.count, indices.missing(self._window - len(self._asked)))
            if len(wanted):
                self._asked.update((digest, index) for index in wanted)
                needs.append(Need(digest, wanted.to_bytes()))
        return needs

    def ask_from(self, now: float) -> None:
        """Ask for the missing chunks from now on, after ASK_QUIET_S."""
        self.asks, self._quiet_s, self._ask_at = True, ASK_QUIET_S, now + ASK_QUIET_S

    def on_reconnect(self, now: float) -> None:
        """Reset the pause after a reconnect, because requests may be lost: `tick` asks after at most ASK_QUIET_S."""
        self._quiet_s = ASK_QUIET_S
        self._ask_at = min(self._ask_at, now + self._quiet_s)

    def _window_is_here(self, arrived: tuple[str, int]) -> bool:
        self._asked.discard(arrived)
        return not self._asked


@dataclass(frozen=True)
class SendChunk:
    """Publish chunk `index` of the update."""

    index: int


class Upload:
    """The sending end of an update: it offers, sends chunks within the window, and offers again when no answer comes.

    Only the coordinator's Committed or Refused ends an upload; until then the device offers again and again. An offer is sent
    after the chunks in flight, so the Grant that answers it knows which of them arrived. The pause between offers doubles
    while no answer comes: up to MAX_QUIET_S, or up to GRANTED_QUIET_S while the device has an upload slot.

    Args:
        manifest: Manifest of the update.
        now: The time in seconds, from any fixed origin; as in all methods.

    Example:
        >>> manifest = describe(b"x" * 9000, chunk_bytes=8192, encoding="fp32", raw_bytes=9000, schema="00" * 32)
        >>> upload = Upload(manifest, now=0.0)
        >>> upload.tick(now=0.0) == [Offer(manifest)]
        True
        >>> upload.on_grant(Grant(manifest.digest, window=4, have=Bitmap(2).to_bytes()), now=0.5)
        [SendChunk(index=0), SendChunk(index=1)]
    """

    def __init__(self, manifest: Manifest, now: float) -> None:
        self.manifest = manifest
        self._acked = Bitmap(manifest.chunk_count)
        self._in_flight: set[int] = set()
        self._window = 0
        self._quiet_s = OFFER_QUIET_S
        self._longest_s = MAX_QUIET_S
        self._offer_at = now

    def next_deadline(self) -> float:
        """Return the time of the next offer if no answer comes before."""
        return self._offer_at

    def tick(self, now: float) -> list[Offer | SendChunk]:
        """Return an Offer if one is due. Chunks in flight then count as lost; the Grant will say which arrived."""
        if now < self._offer_at:
            return []
        self._in_flight.clear()
        self._window = 0
        self._offer_at = now + self._quiet_s
        self._quiet_s = min(2 * self._quiet_s, self._longest_s)
        return [Offer(self.manifest)]

    def on_reconnect(self, now: float) -> None:
        """Make an offer due at once, after a reconnect."""
        self._quiet_s = OFFER_QUIET_S
        self._offer_at = now

    def on_grant(self, grant: Grant, now: float) -> list[Offer | SendChunk]:
        """Open the window and return the chunks to send. Raises WireError if the bitmap does not fit."""
        have = Bitmap.from_bytes(self.manifest.chunk_count, grant.have)
        self._window = grant.window
        self._longest_s = GRANTED_QUIET_S
        return self._acknowledged(have, now)

    def on_ack(self, ack: Ack, now: float) -> list[Offer | SendChunk]:
        """Move the window and return the chunks to send. Raises WireError if the bitmap does not fit."""
        return self._acknowledged(Bitmap.from_bytes(self.manifest.chunk_count, ack.have), now)

    def on_retry_after(self, delay_s: float, now: float) -> None:
        """Put the next offer off for `delay_s`, at least 0.1 s: all upload slots are in use."""
        self._longest_s = MAX_QUIET_S
        self._offer_at = now + max(delay_s, 0.1)

    def _acknowledged(self, have: Bitmap, now: float) -> list[Offer | SendChunk]:
        before = len(self._acked)
        self._acked = have
        self._in_flight.difference_update(self._acked)
        if len(self._acked) > before:
            self._quiet_s = OFFER_QUIET_S
        self._quiet_s = min(self._quiet_s, self._longest_s)
        self._offer_at = now + self._quiet_s
        waiting = (i for i in range(have.count) if i not in have and i not in self._in_flight)
        sent = list(islice(waiting, max(0, self._window - len(self._in_flight))))
        self._in_flight.update(sent)
        return [SendChunk(index) for index in sent]
