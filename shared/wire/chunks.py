"""The chunks of a blob: their bytes, the manifest that announces them, and the set of those that a side has.

A PUBACK proves nothing about the receiver, so the receiver names the chunks that it lacks (chunk_download, chunk_upload; the
coordinator's end of an upload is coordinator.rounds.upload_scheduler). Neither side has more than one window in flight.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from fedpatch.shared.errors import DamagedChunk, UsageError, WireError
from fedpatch.shared.wire.messages import MAX_CHUNKS, Manifest

# magic, version, flags (0), SHA-256 of the blob, index, count, length of the data, CRC-32 of the data; network order.
_HEADER = struct.Struct(">2sBB32sIIII")
_MAGIC = b"fp"
_CHUNK_VERSION = 1

CHUNK_OVERHEAD_BYTES = _HEADER.size
MAX_QUIET_S = 30.0
"""Longest pause before a device asks for chunks, or offers an update, again."""


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
