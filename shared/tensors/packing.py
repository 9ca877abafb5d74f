"""Named tensors and a little metadata as one blob of bytes, and back without trusting the bytes.

The container is one msgpack map {"meta": map, "tensors": [[name, form, shape, values], ...]}: keys in this order,
tensors sorted by name. A form is a dtype, and then the values are little-endian in C order; or, in a delta encoding, the
word of a rule (shared.tensors.encodings). With `+zstd`, and in a delta encoding, it is one zstd frame that states its content
size.

fp16 halves weights and batch norm's gamma and beta only. Statistics and optimizer moments stay as they are: most second
moments of Adam are below 6e-8, which is zero in fp16, and then the next step divides by epsilon.

msgpack from anybody, value by value: nothing is built before it is known to be whole and short.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np
import zstandard

from fedpatch.shared.errors import SchemaMismatch, WireError, unknown_name
from fedpatch.shared.tensors.arrays import (
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
from fedpatch.shared.tensors.encodings import decode, encode, rule_of
from fedpatch.shared.wire.chunked_transfer import describe
from fedpatch.shared.wire.messages import ENCODINGS, Manifest, is_delta

MAX_DEPTH = 16


class Reader:
    """Takes one msgpack value after the other, and builds only what is whole and short.

    A few bytes of msgpack can state hundreds of nested lists, each with room for as many entries as the blob has bytes,
    and every byte can be a list of its own. `skip` builds nothing, and so finds the end of a value for free.
    """

    def __init__(self, raw: bytes, limit: int) -> None:
        """`limit`: most bytes of a value of which nothing else is said."""
        self._limit = limit
        self._raw = memoryview(raw)
        self._unpacker = msgpack.Unpacker(max_buffer_size=max(1, len(raw)))
        self._unpacker.feed(raw)

    def map_size(self) -> int:
        """Enter a map, and return how many pairs it states."""
        return int(self._unpacker.read_map_header())

    def array_size(self) -> int:
        """Enter a list, and return how many values it states."""
        return int(self._unpacker.read_array_header())

    def skip(self) -> memoryview:
        """Bytes of the next value, whatever it is."""
        start = self._unpacker.tell()
        self._unpacker.skip()
        return self._raw[start : self._unpacker.tell()]

    def value(self, limit: int | None = None) -> Any:
        """Return the next value, of at most `limit` bytes."""
        return build(self.skip(), limit or self._limit)

    def binary(self) -> memoryview:
        """Bytes inside the next value, which must be binary; nothing is copied."""
        encoded = self.skip()
        header_bytes = {0xC4: 2, 0xC5: 3, 0xC6: 5}.get(encoded[0])
        if header_bytes is None:
            raise WireError("the values of a tensor are not binary")
        return encoded[header_bytes:]

    def expect_end(self) -> None:
        """Raise WireError where anything is left."""
        extra = len(self._raw) - self._unpacker.tell()
        if extra:
            raise WireError(f"{extra} bytes follow the last tensor")


def build(encoded: bytes | memoryview, limit: int) -> Any:
    """Value of a whole encoding: no list in it can have more entries than there are bytes."""
    if len(encoded) > limit:
        raise WireError(f"a value takes {len(encoded)} bytes where at most {limit} are allowed")
    return msgpack.unpackb(encoded, strict_map_key=True, ext_hook=_no_extension)


def _no_extension(code: int, data: bytes) -> None:
    raise ValueError(f"extension type {code} of {len(data)} bytes is not allowed")


def plain(value: Any, depth: int = 0) -> bool:
    """Whether `value` is nothing but what msgpack has by itself, with str keys, at most `MAX_DEPTH` deep."""
    match value:
        case None | bool() | int() | float() | str() | bytes():
            return True
        case dict() if depth < MAX_DEPTH:
            return all(isinstance(key, str) and plain(item, depth + 1) for key, item in value.items())
        case list() | tuple() if depth < MAX_DEPTH:
            return all(plain(item, depth + 1) for item in value)
    return False


ZSTD_LEVEL = 1
"""Values are as small at 1 as at 3, in two thirds of the time."""

ZSTD_LEVEL_OF_DELTAS = 6
"""A tenth fewer bytes than at 3, in 3 ms for 200,000 codes; 9 takes twice as long for nothing."""
MAX_META_BYTES = 65_536
MAX_HEADER_BYTES = MAX_NAME_BYTES + 256
"""Bytes of a tensor's entry beside its values: name, dtype, shape and what frames them."""


@dataclass(frozen=True)
class Packed:
    """A blob as it travels; `raw_bytes` is its size when decompressed."""

    blob: bytes
    raw_bytes: int
    encoding: str

    def manifest(self, chunk_bytes: int, schema: Schema) -> Manifest:
        """What announces it; `schema` is that of its tensors. UsageError as shared.wire.chunked_transfer.describe."""
        encoding, raw_bytes = self.encoding, self.raw_bytes
        return describe(
            self.blob, chunk_bytes=chunk_bytes, encoding=encoding, raw_bytes=raw_bytes, schema=schema.digest
        )


def pack(
    tensors: Tensors,
    schema: Schema,
    meta: Mapping[str, Any],
    encoding: str,
    *,
    base: Tensors | None = None,
    seed: int = 0,
) -> Packed:
    """Encode exactly the tensors of `schema`; equal arguments give equal bytes.

    Arrays of any layout and byte order are taken, and floats of another width are brought to the schema's dtype.
    `meta` is plain msgpack data with str keys, at most 64 KiB; tuples come back as lists. A delta encoding writes the
    difference to `base`, which holds at least the tensors of `schema`, and rounds at random as `seed` has it. Raises
    SchemaMismatch, UsageError for an unknown encoding, ValueError for a `meta` that could not be read back and for a delta
    encoding without its base.
    """
    if encoding not in ENCODINGS:
        raise unknown_name("encoding", encoding, ENCODINGS)
    schema.check_names(tensors)
    if is_delta(encoding) and (fault := _fault_of(base, schema)):
        raise ValueError(f"{encoding} needs the tensors that both sides hold as `base`, but {fault}")
    rng = np.random.default_rng(seed)
    entries = [_entry(tensors[spec.name], spec, encoding, base, rng) for spec in schema.specs]
    _require_readable(dict(meta))
    raw = msgpack.packb({"meta": dict(meta), "tensors": entries})
    level = ZSTD_LEVEL_OF_DELTAS if is_delta(encoding) else ZSTD_LEVEL
    blob = zstandard.ZstdCompressor(level=level).compress(raw) if _compressed(encoding) else raw
    return Packed(blob, len(raw), encoding)


def unpack(
    blob: bytes, *, encoding: str, raw_bytes: int, schema: Schema, base: Tensors | None = None
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Decode a blob whose `encoding` and `raw_bytes` were announced; returns (meta, tensors in the schema's dtypes).

    The tensors are absolute values in any encoding; `base` is what it was packed with. Raises WireError for bytes that
    are damaged, foreign or beyond what was announced and for a delta encoding without its base, SchemaMismatch
    (UnexpectedTensors for unknown names) for tensors other than agreed; nothing else, whatever the bytes are. The
    schema bounds what may be announced, and the announcement bounds the memory that is taken.
    """
    raw = _decompress(blob, encoding, raw_bytes, schema)
    if is_delta(encoding) and (fault := _fault_of(base, schema)):
        raise WireError(f"the blob is a step from tensors that are not here: {fault}")
    try:
        reader = Reader(raw, MAX_HEADER_BYTES)
        if reader.map_size() != 2 or reader.value() != "meta":
            raise WireError("the blob does not begin with its meta")
        meta = reader.value(MAX_META_BYTES)
        if not isinstance(meta, dict) or not plain(meta):
            raise WireError("the blob's meta is not plain data with str keys")
        if reader.value() != "tensors":
            raise WireError("the blob has no tensors")
        tensors = _read_tensors(reader, schema, encoding, base)
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
    if not plain(meta):
        raise ValueError(f"meta must be plain data with str keys, at most {MAX_DEPTH} deep")
    try:
        build(msgpack.packb(meta), MAX_META_BYTES)
    except (WireError, OverflowError, ValueError) as error:
        raise ValueError(f"meta could not be read back: {error}") from error


def _compressed(encoding: str) -> bool:
    return encoding.endswith("+zstd") or is_delta(encoding)


def _fault_of(base: Tensors | None, schema: Schema) -> str:
    """Why `base` cannot be what a delta is taken to; empty: it can."""
    if base is None:
        return "there are none"
    unfit = [spec.name for spec in schema.specs if spec.name not in base or base[spec.name].shape != spec.shape]
    return f"{listing(unfit)} of another shape or not there" if unfit else ""


def _entry(
    array: Array, spec: TensorSpec, encoding: str, base: Tensors | None, rng: np.random.Generator
) -> tuple[str, str, tuple[int, ...], bytes]:
    if array.shape != spec.shape:
        raise SchemaMismatch(f"{spec.name}: shape {array.shape}, agreed {spec.shape}")
    if not np.can_cast(array.dtype, spec.dtype, "same_kind" if array.dtype.kind == "f" else "safe"):
        raise SchemaMismatch(f"{spec.name}: dtype {array.dtype}, agreed {spec.dtype}")
    with np.errstate(over="ignore"):
        values = array.astype(spec.dtype, copy=False)
        if is_delta(encoding) and base is not None and (rule := rule_of(encoding, spec)):
            written = encode(values, base[spec.name], spec, rule, rng)
            if written is not None:
                return spec.name, rule.word, spec.shape, written
        if encoding.startswith("fp16") and _may_be_half(spec):
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
    if not _compressed(encoding):
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


def _read_tensors(reader: Reader, schema: Schema, encoding: str, base: Tensors | None) -> dict[str, Array]:
    tensors: dict[str, Array] = {}
    unexpected: set[str] = set()
    count = reader.array_size()
    if count > MAX_TENSORS:
        raise WireError(f"the blob has {count} tensors; at most {MAX_TENSORS} are allowed")
    for _ in range(count):
        if reader.array_size() != 4:
            raise WireError("a tensor must be [name, form, shape, values]")
        name, form, shape, values = reader.value(), reader.value(), reader.value(), reader.binary()
        if not isinstance(name, str) or name in tensors or name in unexpected:
            raise WireError("the name of a tensor is no text or comes twice")
        if name in schema:
            spec = schema.spec(name)
            _check_shape(spec, form, shape)
            rule = rule_of(encoding, spec) if base is not None and is_delta(encoding) else None
            if rule and base is not None and form == rule.word:
                tensors[name] = decode(values, base[name], spec, rule)
            else:
                tensors[name] = _array(spec, form, values, half=encoding.startswith("fp16"))
        else:
            unexpected.add(name)
    if unexpected:
        raise UnexpectedTensors(sorted(unexpected), f"the blob has tensors nobody agreed on: {listing(unexpected)}")
    schema.check_names(tensors)
    return tensors


def _check_shape(spec: TensorSpec, form: Any, shape: Any) -> None:
    if not isinstance(form, str) or not isinstance(shape, list) or not all(type(size) is int for size in shape):
        raise WireError(f"{spec.name}: a dtype must be a word and a shape a list of sizes")
    if tuple(shape) != spec.shape:
        raise SchemaMismatch(f"{spec.name}: shape {tuple(shape)}, agreed {spec.shape}")


def _array(spec: TensorSpec, dtype: str, values: memoryview, *, half: bool) -> Array:
    """Fresh array of the schema's shape and dtype."""
    if dtype != spec.dtype and not (half and dtype == "float16" and _may_be_half(spec)):
        raise SchemaMismatch(f"{spec.name}: dtype {dtype!r}, agreed {spec.dtype}")
    wire = np.dtype("u1" if dtype == "bool" else dtype).newbyteorder("<")
    if len(values) != wire.itemsize * math.prod(spec.shape):
        raise WireError(f"{spec.name}: {len(values)} bytes are not {spec.shape} of {dtype}")
    return np.frombuffer(values, wire).reshape(spec.shape).astype(spec.dtype)
