"""Named tensors and a little metadata as one blob of bytes, and back without trusting the bytes.

The container is one msgpack map {"meta": map, "tensors": [[name, dtype, shape, values], ...]}: keys in this order,
tensors sorted by name, values little-endian in C order. With `+zstd` it is one zstd frame that states its content size.

fp16 halves weights and batch norm's gamma and beta only. Statistics and optimizer moments stay as they are: most second
moments of Adam are below 6e-8, which is zero in fp16, and then the next step divides by epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np
import zstandard

from shared.errors import SchemaMismatch, WireError, unknown_name
from shared.messages import ENCODINGS
from shared.tensors import (
    MAX_NAME_BYTES,
    MAX_TENSORS,
    Array,
    Schema,
    Tensors,
    TensorSpec,
    UnexpectedTensors,
    listing,
    little_endian,
)

ZSTD_LEVEL = 3
MAX_META_BYTES = 65_536
MAX_META_DEPTH = 16
MAX_HEADER_BYTES = MAX_NAME_BYTES + 256
"""Bytes of a tensor's entry beside its values: name, dtype, shape and what frames them."""


@dataclass(frozen=True)
class Packed:
    """A blob as it travels; `raw_bytes` is its size when decompressed."""

    blob: bytes
    raw_bytes: int
    encoding: str


def pack(tensors: Tensors, schema: Schema, meta: Mapping[str, Any], encoding: str) -> Packed:
    """Encode exactly the tensors of `schema`; equal input gives equal bytes.

    Arrays of any layout and byte order are taken, and floats of another width are brought to the schema's dtype.
    `meta` is plain msgpack data with str keys, at most 64 KiB; tuples come back as lists. Raises SchemaMismatch,
    UsageError for an unknown encoding, ValueError for a `meta` that could not be read back.
    """
    if encoding not in ENCODINGS:
        raise unknown_name("encoding", encoding, ENCODINGS)
    schema.check_names(tensors)
    entries = [_entry(tensors[spec.name], spec, half=encoding.startswith("fp16")) for spec in schema.specs]
    _require_readable(dict(meta))
    raw = msgpack.packb({"meta": dict(meta), "tensors": entries})
    blob = zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(raw) if encoding.endswith("+zstd") else raw
    return Packed(blob, len(raw), encoding)


def unpack(blob: bytes, *, encoding: str, raw_bytes: int, schema: Schema) -> tuple[dict[str, Any], dict[str, Array]]:
    """Decode a blob whose `encoding` and `raw_bytes` were announced; returns (meta, tensors in the schema's dtypes).

    Raises WireError for bytes that are damaged, foreign or beyond what was announced, SchemaMismatch
    (UnexpectedTensors for unknown names) for tensors other than agreed; nothing else, whatever the bytes are. The
    schema bounds what may be announced, and the announcement bounds the memory that is taken.
    """
    raw = _decompress(blob, encoding, raw_bytes, schema)
    try:
        reader = _Reader(raw)
        if reader.map_size() != 2 or reader.value() != "meta":
            raise WireError("the blob does not begin with its meta")
        meta = reader.value(MAX_META_BYTES)
        if not isinstance(meta, dict) or not _plain(meta):
            raise WireError("the blob's meta is not plain data with str keys")
        if reader.value() != "tensors":
            raise WireError("the blob has no tensors")
        tensors = _read_tensors(reader, schema, half=encoding.startswith("fp16"))
        reader.expect_end()
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise WireError(f"the blob is not a msgpack container of tensors: {error}") from error
    return meta, tensors


def max_raw_bytes(schema: Schema) -> int:
    """Most bytes that tensors of `schema` and their meta take before they are compressed."""
    return schema.nbytes + MAX_HEADER_BYTES * (len(schema) + 1) + MAX_META_BYTES


def max_blob_bytes(schema: Schema) -> int:
    """Most bytes that they take as a blob: what cannot be compressed grows by zstd's own frame (RFC 8878, section 3)."""
    raw = max_raw_bytes(schema)
    return raw + raw // 128 + 1024


def _require_readable(meta: dict[str, Any]) -> None:
    if not _plain(meta):
        raise ValueError(f"meta must be plain data with str keys, at most {MAX_META_DEPTH} deep")
    try:
        _build(msgpack.packb(meta), MAX_META_BYTES)
    except (WireError, OverflowError, ValueError) as error:
        raise ValueError(f"meta could not be read back: {error}") from error


def _entry(array: Array, spec: TensorSpec, *, half: bool) -> tuple[str, str, tuple[int, ...], bytes]:
    if array.shape != spec.shape:
        raise SchemaMismatch(f"{spec.name}: shape {array.shape}, agreed {spec.shape}")
    if not np.can_cast(array.dtype, spec.dtype, "same_kind" if array.dtype.kind == "f" else "safe"):
        raise SchemaMismatch(f"{spec.name}: dtype {array.dtype}, agreed {spec.dtype}")
    with np.errstate(over="ignore"):
        values = array.astype(spec.dtype, copy=False)
        if half and _may_be_half(spec):
            halves = values.astype(np.float16)
            # A value beyond 65504 would become infinite.
            values = halves if np.array_equal(np.isfinite(halves), np.isfinite(values)) else values
    return spec.name, values.dtype.name, spec.shape, little_endian(values)


def _may_be_half(spec: TensorSpec) -> bool:
    return spec.trainable and np.dtype(spec.dtype).kind == "f"


def _decompress(blob: bytes, encoding: str, raw_bytes: int, schema: Schema) -> bytes:
    if encoding not in ENCODINGS:
        raise WireError(f"unknown encoding {encoding[:40]!r} (known: {', '.join(ENCODINGS)})")
    ceiling = max_raw_bytes(schema)
    if raw_bytes > ceiling:
        raise WireError(f"{raw_bytes} bytes were announced, but the agreed tensors take at most {ceiling}")
    if not encoding.endswith("+zstd"):
        raw = blob
    else:
        try:
            # Without a stated size a frame can grow without end, so we always state it and insist on it.
            stated = zstandard.get_frame_parameters(blob).content_size
            if stated != raw_bytes:
                raise WireError(f"the zstd frame states {stated} bytes, but {raw_bytes} were announced")
            raw = zstandard.ZstdDecompressor().decompress(blob, max_output_size=raw_bytes, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise WireError(f"the blob is not a whole zstd frame: {error}") from error
    if len(raw) != raw_bytes:
        raise WireError(f"the blob holds {len(raw)} bytes, but {raw_bytes} were announced")
    return raw


class _Reader:
    """Takes one msgpack value after the other, and builds only what is whole and short.

    A few bytes of msgpack can state hundreds of nested lists, each with room for as many entries as the blob has bytes,
    and every byte can be a list of its own. `skip` builds nothing, and so finds the end of a value for free.
    """

    def __init__(self, raw: bytes) -> None:
        self._raw = memoryview(raw)
        self._unpacker = msgpack.Unpacker(max_buffer_size=max(1, len(raw)))
        self._unpacker.feed(raw)

    def map_size(self) -> int:
        return int(self._unpacker.read_map_header())

    def array_size(self) -> int:
        return int(self._unpacker.read_array_header())

    def skip(self) -> memoryview:
        """Bytes of the next value, whatever it is."""
        start = self._unpacker.tell()
        self._unpacker.skip()
        return self._raw[start : self._unpacker.tell()]

    def value(self, limit: int = MAX_HEADER_BYTES) -> Any:
        """Return the next value, of at most `limit` bytes."""
        return _build(self.skip(), limit)

    def binary(self) -> memoryview:
        """Bytes inside the next value, which must be binary; nothing is copied."""
        encoded = self.skip()
        header_bytes = {0xC4: 2, 0xC5: 3, 0xC6: 5}.get(encoded[0])
        if header_bytes is None:
            raise WireError("the values of a tensor are not binary")
        return encoded[header_bytes:]

    def expect_end(self) -> None:
        extra = len(self._raw) - self._unpacker.tell()
        if extra:
            raise WireError(f"{extra} bytes follow the last tensor")


def _build(encoded: bytes | memoryview, limit: int) -> Any:
    """Value of a whole encoding: no list in it can have more entries than there are bytes."""
    if len(encoded) > limit:
        raise WireError(f"a value takes {len(encoded)} bytes where at most {limit} are allowed")
    return msgpack.unpackb(encoded, strict_map_key=True, ext_hook=_no_extension)


def _no_extension(code: int, data: bytes) -> None:
    raise ValueError(f"extension type {code} of {len(data)} bytes is not allowed")


def _read_tensors(reader: _Reader, schema: Schema, *, half: bool) -> dict[str, Array]:
    tensors: dict[str, Array] = {}
    unexpected: set[str] = set()
    count = reader.array_size()
    if count > MAX_TENSORS:
        raise WireError(f"the blob has {count} tensors; at most {MAX_TENSORS} are allowed")
    for _ in range(count):
        if reader.array_size() != 4:
            raise WireError("a tensor must be [name, dtype, shape, values]")
        name, dtype, shape, values = reader.value(), reader.value(), reader.value(), reader.binary()
        if not isinstance(name, str) or name in tensors or name in unexpected:
            raise WireError("the name of a tensor is no text or comes twice")
        if name in schema:
            tensors[name] = _array(schema.spec(name), dtype, shape, values, half=half)
        else:
            unexpected.add(name)
    if unexpected:
        raise UnexpectedTensors(sorted(unexpected), f"the blob has tensors nobody agreed on: {listing(unexpected)}")
    schema.check_names(tensors)
    return tensors


def _array(spec: TensorSpec, dtype: Any, shape: Any, values: memoryview, *, half: bool) -> Array:
    """Fresh array of the schema's shape and dtype."""
    if not isinstance(dtype, str) or not isinstance(shape, list) or not all(type(size) is int for size in shape):
        raise WireError(f"{spec.name}: a dtype must be a word and a shape a list of sizes")
    if tuple(shape) != spec.shape:
        raise SchemaMismatch(f"{spec.name}: shape {tuple(shape)}, agreed {spec.shape}")
    if dtype != spec.dtype and not (half and dtype == "float16" and _may_be_half(spec)):
        raise SchemaMismatch(f"{spec.name}: dtype {dtype!r}, agreed {spec.dtype}")
    wire = np.dtype("u1" if dtype == "bool" else dtype).newbyteorder("<")
    if len(values) != wire.itemsize * math.prod(spec.shape):
        raise WireError(f"{spec.name}: {len(values)} bytes are not {spec.shape} of {dtype}")
    return np.frombuffer(values, wire).reshape(spec.shape).astype(spec.dtype)


def _plain(value: Any, depth: int = 0) -> bool:
    """Whether `value` is nothing but what msgpack has by itself, with str keys."""
    match value:
        case None | bool() | int() | float() | str() | bytes():
            return True
        case dict() if depth < MAX_META_DEPTH:
            return all(isinstance(key, str) and _plain(item, depth + 1) for key, item in value.items())
        case list() | tuple() if depth < MAX_META_DEPTH:
            return all(_plain(item, depth + 1) for item in value)
    return False
