"""Pack named tensors and metadata into one blob, and unpack a blob without trusting it.

A blob is one msgpack map {"meta": map, "tensors": [[name, form, shape, values], ...]}, with keys in this order and tensors
sorted by name. A form is either a dtype, with values little-endian in C order, or, in a delta encoding, the word of a rule
(shared.tensors.encodings). With `+zstd`, and in a delta encoding, the map is inside one zstd frame that states its content
size.

fp16 halves only weights and the gamma and beta of batch norm. Statistics and optimizer moments keep their dtype: most second
moments of Adam are below 6e-8, which fp16 rounds to zero, and the next step would divide by epsilon.

`Reader` reads a blob value by value, and builds no object before it is known to be complete and within its limit.
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
from fedpatch.shared.tensors.encodings import decode_all, encode_all
from fedpatch.shared.wire.chunks import describe
from fedpatch.shared.wire.messages import ENCODINGS, Manifest, is_delta

MAX_DEPTH = 16


class Reader:
    """Reader of msgpack values, one after the other; it builds only values that are complete and within a limit.

    A few bytes of hostile msgpack can state hundreds of nested lists, each with room for as many entries as the blob has
    bytes. `skip` builds no object, so it finds the end of a value without taking memory.

    Args:
        raw: The msgpack bytes.
        limit: Most bytes of a value, where a call does not set another limit.

    Example:
        >>> reader = Reader(msgpack.packb({"meta": 1}), limit=64)
        >>> reader.map_size(), reader.value(), reader.value()
        (1, 'meta', 1)
    """

    def __init__(self, raw: bytes, limit: int) -> None:
        self._limit = limit
        self._raw = memoryview(raw)
        self._unpacker = msgpack.Unpacker(max_buffer_size=max(1, len(raw)))
        self._unpacker.feed(raw)

    def map_size(self) -> int:
        """Enter a map, and return its stated number of pairs."""
        return int(self._unpacker.read_map_header())

    def array_size(self) -> int:
        """Enter a list, and return its stated number of values."""
        return int(self._unpacker.read_array_header())

    def skip(self) -> memoryview:
        """Skip the next value, and return its encoding."""
        start = self._unpacker.tell()
        self._unpacker.skip()
        return self._raw[start : self._unpacker.tell()]

    def value(self, limit: int | None = None) -> Any:
        """Return the next value, of at most `limit` bytes."""
        return build(self.skip(), limit or self._limit)

    def binary(self) -> memoryview:
        """Return the contents of the next value, which must be binary, without a copy. Raises WireError."""
        encoded = self.skip()
        header_bytes = {0xC4: 2, 0xC5: 3, 0xC6: 5}.get(encoded[0])
        if header_bytes is None:
            raise WireError("the values of a tensor are not binary")
        return encoded[header_bytes:]

    def expect_end(self) -> None:
        """Raise WireError if bytes are left."""
        extra = len(self._raw) - self._unpacker.tell()
        if extra:
            raise WireError(f"{extra} bytes follow the last tensor")


def build(encoded: bytes | memoryview, limit: int) -> Any:
    """Decode one complete value. Because it is complete, no list in it can have more entries than it has bytes."""
    if len(encoded) > limit:
        raise WireError(f"a value has {len(encoded)} bytes where at most {limit} are allowed")
    return msgpack.unpackb(encoded, ext_hook=_no_extension)


def _no_extension(code: int, data: bytes) -> None:
    raise ValueError(f"extension type {code} of {len(data)} bytes is not allowed")


def is_plain(value: Any, depth: int = 0) -> bool:
    """Return whether `value` has only msgpack's own types, with str keys, nested at most `MAX_DEPTH` deep."""
    match value:
        case None | bool() | int() | float() | str() | bytes():
            return True
        case dict() if depth < MAX_DEPTH:
            return all(isinstance(key, str) and is_plain(item, depth + 1) for key, item in value.items())
        case list() | tuple() if depth < MAX_DEPTH:
            return all(is_plain(item, depth + 1) for item in value)
    return False


_ZSTD = "+zstd"
ZSTD_LEVEL = 1
"""Level for values: the same size as at level 3, in two thirds of the time."""

ZSTD_LEVEL_OF_DELTAS = 6
"""Level for deltas: a tenth fewer bytes than at 3, in 3 ms for 200,000 codes. Level 9 takes twice as long for no gain."""
MAX_META_BYTES = 65_536
MAX_HEADER_BYTES = MAX_NAME_BYTES + 256
"""Most bytes of a tensor's entry without its values: name, form, shape and their msgpack headers."""


@dataclass(frozen=True)
class Packed:
    """A blob as it is sent; `raw_bytes` is its size when decompressed."""

    blob: bytes
    raw_bytes: int
    encoding: str

    def manifest(self, chunk_bytes: int, schema: Schema) -> Manifest:
        """Return the manifest of the blob, whose tensors have `schema`. Raises UsageError as `describe`."""
        return describe(
            self.blob,
            chunk_bytes=chunk_bytes,
            encoding=self.encoding,
            raw_bytes=self.raw_bytes,
            schema=schema.digest,
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
    """Pack exactly the tensors of `schema`. Equal arguments give equal bytes.

    Args:
        tensors: Arrays of any memory layout and byte order. Floats of another width are cast to the schema's dtype.
        schema: Names, shapes and dtypes of `tensors`.
        meta: Plain msgpack data with str keys, at most MAX_META_BYTES; `unpack` returns its tuples as lists.
        encoding: One of ENCODINGS.
        base: Tensors that a delta encoding subtracts: at least those of `schema`.
        seed: Seed of a delta encoding's random rounding.

    Returns:
        The blob.

    Raises:
        SchemaMismatch: `tensors` are not those of `schema`.
        UsageError: The encoding is unknown.
        ValueError: `meta` could not be read back, or a delta encoding lacks its base.

    Example:
        >>> from fedpatch.shared.tensors.arrays import Schema, TensorSpec
        >>> schema = Schema((TensorSpec("fc.bias", (2,), "float32", "weight"),))
        >>> packed = pack({"fc.bias": np.zeros(2, np.float32)}, schema, {"round": 7}, "fp32+zstd")
        >>> meta, tensors = unpack(packed.blob, encoding="fp32+zstd", raw_bytes=packed.raw_bytes, schema=schema)
        >>> meta, tensors["fc.bias"].tolist()
        ({'round': 7}, [0.0, 0.0])
    """
    if encoding not in ENCODINGS:
        raise unknown_name("encoding", encoding, ENCODINGS)
    schema.check_names(tensors)
    delta = is_delta(encoding)
    if delta and (fault := _fault_of(base, schema)):
        raise ValueError(f"{encoding} needs the tensors that both sides hold as `base`, but {fault}")
    forms = _forms(tensors, schema, encoding, base if delta else None, seed)
    _require_readable(dict(meta))
    entries = [(spec.name, form, spec.shape, data) for spec, (form, data) in zip(schema.specs, forms, strict=True)]
    raw = msgpack.packb({"meta": dict(meta), "tensors": entries})
    compressed = delta or encoding.endswith(_ZSTD)
    level = ZSTD_LEVEL_OF_DELTAS if delta else ZSTD_LEVEL
    blob = zstandard.ZstdCompressor(level=level).compress(raw) if compressed else raw
    return Packed(blob, len(raw), encoding)


def unpack(
    blob: bytes, *, encoding: str, raw_bytes: int, schema: Schema, base: Tensors | None = None
) -> tuple[dict[str, Any], dict[str, Array]]:
    """Unpack a blob from an untrusted peer.

    The schema bounds `raw_bytes`, and `raw_bytes` bounds the memory that is taken. No error other than those below is raised,
    whatever the bytes are.

    Args:
        blob: The bytes as they were received.
        encoding: Encoding that the manifest announced.
        raw_bytes: Decompressed size that the manifest announced.
        schema: Names, shapes and dtypes that the tensors must have.
        base: The tensors that a delta encoding was packed with.

    Returns:
        The metadata, and the tensors as absolute values in the schema's dtypes.

    Raises:
        WireError: The bytes are damaged, foreign or more than announced, or a delta encoding lacks its base.
        UnexpectedTensors: There are tensors that `schema` does not have.
        SchemaMismatch: Tensors are missing or have another shape or dtype.
    """
    if encoding not in ENCODINGS:
        raise WireError(f"unknown encoding {encoding[:40]!r} (known: {', '.join(ENCODINGS)})")
    delta = is_delta(encoding)
    raw = _decompress(blob, raw_bytes, schema, compressed=delta or encoding.endswith(_ZSTD))
    if delta and (fault := _fault_of(base, schema)):
        raise WireError(f"the blob is a difference to base tensors that are missing here: {fault}")
    try:
        reader = Reader(raw, MAX_HEADER_BYTES)
        if reader.map_size() != 2 or reader.value() != "meta":
            raise WireError("the blob does not begin with its meta")
        meta = reader.value(MAX_META_BYTES)
        if not isinstance(meta, dict) or not is_plain(meta):
            raise WireError("the blob's meta is not plain data with str keys")
        if reader.value() != "tensors":
            raise WireError("the blob has no tensors")
        tensors = _read_tensors(reader, schema, encoding, base if delta else None)
        reader.expect_end()
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise WireError(f"the blob is not a msgpack container of tensors: {error}") from error
    return meta, tensors


def max_raw_bytes(schema: Schema) -> int:
    """Return the most bytes that tensors of `schema` and their metadata take before compression."""
    return schema.nbytes + MAX_HEADER_BYTES * (len(schema) + 1) + MAX_META_BYTES


def max_blob_bytes(schema: Schema) -> int:
    """Return the most bytes of a blob: data that zstd cannot compress grow by zstd's own frame (RFC 8878, section 3)."""
    raw = max_raw_bytes(schema)
    return raw + raw // 128 + 1024


def _require_readable(meta: dict[str, Any]) -> None:
    if not is_plain(meta):
        raise ValueError(f"meta must be plain data with str keys, at most {MAX_DEPTH} deep")
    try:
        build(msgpack.packb(meta), MAX_META_BYTES)
    except (WireError, OverflowError, ValueError) as error:
        raise ValueError(f"meta could not be read back: {error}") from error


def _fault_of(base: Tensors | None, schema: Schema) -> str:
    """Return the reason for which `base` cannot be the base of a delta encoding; empty if it can."""
    if base is None:
        return "no base was given"
    unfit = [spec.name for spec in schema.specs if spec.name not in base or base[spec.name].shape != spec.shape]
    return f"{listing(unfit)} of the base absent or of another shape" if unfit else ""


def _forms(tensors: Tensors, schema: Schema, encoding: str, base: Tensors | None, seed: int) -> list[tuple[str, bytes]]:
    """Return the form and the bytes of each tensor of `schema`, in its order; `base` is None unless for a delta encoding."""
    for spec in schema.specs:
        _check_castable(tensors[spec.name], spec)
    rng = np.random.default_rng(seed)
    written = {} if base is None else encode_all(tensors, base, schema.specs, encoding, rng=rng)
    whole = {
        spec.name: _values(tensors[spec.name], spec, half=encoding.startswith("fp16"))
        for spec in schema.specs
        if spec.name not in written
    }
    written |= {name: (values.dtype.name, little_endian(values)) for name, values in whole.items()}
    return [written[spec.name] for spec in schema.specs]


def _check_castable(array: Array, spec: TensorSpec) -> None:
    if array.shape != spec.shape:
        raise SchemaMismatch(f"{spec.name}: shape {array.shape}, agreed {spec.shape}")
    if not np.can_cast(array.dtype, spec.dtype, "same_kind" if array.dtype.kind == "f" else "safe"):
        raise SchemaMismatch(f"{spec.name}: dtype {array.dtype}, agreed {spec.dtype}")


def _values(array: Array, spec: TensorSpec, *, half: bool) -> Array:
    """Return the values in the schema's dtype, or as float16 where `half` and the tensor allow it."""
    with np.errstate(over="ignore"):
        values = array.astype(spec.dtype, copy=False)
        if half and _may_be_half(spec):
            halves = values.astype(np.float16)
            # fp16 would make a value beyond 65504 infinite.
            values = halves if np.array_equal(np.isfinite(halves), np.isfinite(values)) else values
    return values


def _may_be_half(spec: TensorSpec) -> bool:
    return spec.trainable and np.dtype(spec.dtype).kind == "f"


def _decompress(blob: bytes, raw_bytes: int, schema: Schema, *, compressed: bool) -> bytes:
    ceiling = max_raw_bytes(schema)
    if raw_bytes > ceiling:
        raise WireError(f"{raw_bytes} bytes were announced, but the agreed tensors take at most {ceiling}")
    raw = decompress(blob, raw_bytes) if compressed else blob
    if len(raw) != raw_bytes:
        raise WireError(f"the blob holds {len(raw)} bytes, but {raw_bytes} were announced")
    return raw


def decompress(blob: bytes, raw_bytes: int) -> bytes:
    """Return the contents of a zstd frame, which must state that it has `raw_bytes`. Raises WireError."""
    try:
        # A frame without a stated size could grow without bound, so the size is always stated and required.
        stated = zstandard.get_frame_parameters(blob).content_size
        if stated != raw_bytes:
            raise WireError(f"the zstd frame states {stated} bytes, but {raw_bytes} were announced")
        return zstandard.ZstdDecompressor().decompress(blob, max_output_size=raw_bytes, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise WireError(f"the blob is not a whole zstd frame: {error}") from error


def _read_tensors(reader: Reader, schema: Schema, encoding: str, base: Tensors | None) -> dict[str, Array]:
    entries: dict[str, tuple[str, memoryview]] = {}
    unexpected: set[str] = set()
    specs = {spec.name: spec for spec in schema.specs}
    count = reader.array_size()
    if count > MAX_TENSORS:
        raise WireError(f"the blob has {count} tensors; at most {MAX_TENSORS} are allowed")
    for _ in range(count):
        if reader.array_size() != 4:
            raise WireError("a tensor must be [name, form, shape, values]")
        name, form, shape, values = reader.value(), reader.value(), reader.value(), reader.binary()
        if not isinstance(name, str) or name in entries or name in unexpected:
            raise WireError("the name of a tensor is not text or appears twice")
        if (spec := specs.get(name)) is not None:
            _check_shape(spec, form, shape)
            entries[name] = form, values
        else:
            unexpected.add(name)
    tensors = _arrays(entries, specs, encoding, base)
    if unexpected:
        raise UnexpectedTensors(sorted(unexpected), f"the blob has tensors outside the schema: {listing(unexpected)}")
    schema.check_names(tensors)
    return tensors


def _arrays(
    entries: Mapping[str, tuple[str, memoryview]], specs: Mapping[str, TensorSpec], encoding: str, base: Tensors | None
) -> dict[str, Array]:
    """Return the tensors by name, in the order of `entries`; `base` is None unless for a delta encoding."""
    decoded = {} if base is None else decode_all(entries, base, specs, encoding)
    half = encoding.startswith("fp16")
    return {
        name: decoded[name] if name in decoded else _array(specs[name], form, values, half=half)
        for name, (form, values) in entries.items()
    }


def _check_shape(spec: TensorSpec, form: Any, shape: Any) -> None:
    if not isinstance(form, str) or not isinstance(shape, list) or not all(type(size) is int for size in shape):
        raise WireError(f"{spec.name}: the form must be text and the shape a list of sizes")
    if tuple(shape) != spec.shape:
        raise SchemaMismatch(f"{spec.name}: shape {tuple(shape)}, agreed {spec.shape}")


def _array(spec: TensorSpec, dtype: str, values: memoryview, *, half: bool) -> Array:
    """Return a new array of the schema's shape and dtype."""
    if dtype != spec.dtype and not (half and dtype == "float16" and _may_be_half(spec)):
        raise SchemaMismatch(f"{spec.name}: dtype {dtype!r}, agreed {spec.dtype}")
    wire = np.dtype("u1" if dtype == "bool" else dtype).newbyteorder("<")
    if len(values) != wire.itemsize * math.prod(spec.shape):
        raise WireError(f"{spec.name}: {len(values)} bytes are not {spec.shape} of {dtype}")
    return np.frombuffer(values, wire).reshape(spec.shape).astype(spec.dtype)
