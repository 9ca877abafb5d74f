"""The bytes of a chunk, and sets of chunks: what both ends of a transfer are made of."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from fedpatch.shared.errors import WireError
from fedpatch.shared.wire.messages import MAX_CHUNKS

# magic, version, flags (0), SHA-256 of the blob, index, count, length of the data, CRC-32 of the data; network order.
_HEADER = struct.Struct(">2sBB32sIIII")
_MAGIC = b"fp"
_CHUNK_VERSION = 1

CHUNK_OVERHEAD_BYTES = _HEADER.size


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
        return cls(count, (8 * at + bit for at, byte in enumerate(data) if byte for bit in range(8) if byte >> bit & 1))

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
        return list(islice((i for i in range(self.count) if i not in self._set), limit))
