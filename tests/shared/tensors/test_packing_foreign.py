"""Untrusted bytes: damaged bytes, foreign bytes and bombs are refused, and cost no more than they announced."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress

import msgpack
import numpy as np
import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from fedpatch.shared.errors import SchemaMismatch, WireError
from fedpatch.shared.tensors.arrays import MAX_TENSORS, Schema, TensorSpec, UnexpectedTensors
from fedpatch.shared.tensors.packing import MAX_META_BYTES, max_raw_bytes, pack, unpack
from fedpatch.shared.wire.messages import ENCODINGS, is_delta
from tests.shared.arbitrary_tensors import nested
from tests.support.examples import examples

HALF = Schema((TensorSpec("w", (4,), "float32", "weight"),))
MODEL = Schema((*HALF.specs, TensorSpec("n", (), "int64", "stats"), TensorSpec("mask", (3,), "bool", "buffer")))
VALUES = {spec.name: np.ones(spec.shape, spec.dtype) for spec in MODEL.specs}
BASE = {spec.name: np.full(spec.shape, 0.75).astype(spec.dtype) for spec in MODEL.specs}


def read_raw(container, schema: Schema, encoding: str = "fp32"):
    """Read an untrusted container whose size was announced correctly."""
    raw = container if isinstance(container, bytes) else msgpack.packb(container)
    blob = zstandard.compress(raw) if encoding.endswith("+zstd") or is_delta(encoding) else raw
    return unpack(blob, encoding=encoding, raw_bytes=len(raw), schema=schema, base=BASE)


def container_of(*entries):
    """Lay out a container that holds these entries."""
    return {"meta": {}, "tensors": list(entries)}


# --- foreign bytes --------------------------------------------------------------------------------


def entry(name="w", dtype="float32", shape=(4,), values=bytes(16)):
    """Entry of the container that fits HALF, by default."""
    return [name, dtype, list(shape), values]


@pytest.mark.parametrize(
    ("entries", "error", "complaint"),
    [
        ([entry("v")], UnexpectedTensors, "outside the schema: 'v'"),
        ([entry(), entry("v")], UnexpectedTensors, "outside the schema: 'v'"),
        ([], SchemaMismatch, "missing tensors 'w'"),
        ([entry(shape=(2, 2))], SchemaMismatch, r"w: shape \(2, 2\), agreed \(4,\)"),
        ([entry(dtype="float64", values=bytes(32))], SchemaMismatch, "w: dtype 'float64', agreed float32"),
        ([entry(dtype="float16", values=bytes(8))], SchemaMismatch, "w: dtype 'float16'"),
        ([entry(dtype="object")], SchemaMismatch, "w: dtype 'object'"),
        ([entry(), entry()], WireError, "appears twice"),
        ([entry("v"), entry("v")], WireError, "appears twice"),
        ([entry(name=7)], WireError, "not text"),
        ([entry(name="x" * 600)], WireError, "at most 512"),
        ([entry(dtype=7)], WireError, "the form must be text"),
        ([["w", "float32", 4, bytes(16)]], WireError, "the shape a list of sizes"),
        ([["w", "float32", [[4]], bytes(16)]], WireError, "the shape a list of sizes"),
        ([entry(values=bytes(15))], WireError, r"w: 15 bytes are not \(4,\) of float32"),
        ([entry(values=[0.0] * 4)], WireError, "not binary"),
        ([entry(values="0" * 16)], WireError, "not binary"),
        ([entry()[:3]], WireError, "must be"),
        ([{}], WireError, "not a msgpack container"),
    ],
)
def test_tensors_outside_the_schema_are_refused(entries, error, complaint):
    with pytest.raises(error, match=complaint):
        read_raw(container_of(*entries), HALF)


def test_unexpected_tensors_error_has_the_names():
    """A coordinator can see that a device sent private names, even if there are other errors."""
    with pytest.raises(UnexpectedTensors) as caught:
        read_raw(container_of(entry("b"), entry(), entry("a")), HALF)
    assert caught.value.names == ("a", "b")


def test_half_precision_is_for_weights_only():
    schema = Schema((TensorSpec("v", (4,), "float32", "stats"),))
    with pytest.raises(SchemaMismatch, match="v: dtype 'float16'"):
        read_raw(container_of(entry("v", "float16", values=bytes(8))), schema, "fp16")


@pytest.mark.parametrize(
    "container",
    [
        b"",
        b"\xc1",
        b"\x80",
        7,
        [],
        {"meta": {}},
        {"tensors": [], "meta": {}},
        {"meta": {}, "tensors": [], "more": 1},
        {"meta": {}, "tensors": {}},
        {"meta": [], "tensors": []},
        {"meta": {1: 2}, "tensors": []},
        {"meta": {b"a": 2}, "tensors": []},
        {"meta": {"a": msgpack.ExtType(5, b"")}, "tensors": []},
        {"meta": {"a": msgpack.Timestamp(1)}, "tensors": []},
        {"meta": {"a": "x" * MAX_META_BYTES}, "tensors": []},
        {"meta": {"a": nested(20)}, "tensors": []},
        msgpack.packb({"meta": {}, "tensors": []}) + b"\x00",
        b"\x82\xa4meta\x81\xa1a\xa1\xff\xa7tensors\x90",
    ],
)
@pytest.mark.parametrize("encoding", ["fp32", "fp32+zstd"])
def test_malformed_container_raises_wire_error(container, encoding):
    with pytest.raises(WireError):
        read_raw(container, Schema(()), encoding)


def test_bytes_after_the_last_tensor_raise_wire_error():
    with pytest.raises(WireError, match="2 bytes follow the last tensor"):
        read_raw(msgpack.packb(container_of()) + b"\x00\x00", Schema(()))


# --- damage ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_truncated_blob_raises_wire_error(encoding):
    packed = pack(VALUES, MODEL, {"n": 1}, encoding, base=BASE)
    for end in range(len(packed.blob)):
        for raw_bytes in (packed.raw_bytes, end):
            with pytest.raises(WireError):
                unpack(packed.blob[:end], encoding=encoding, raw_bytes=raw_bytes, schema=MODEL, base=BASE)


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_bytes_after_the_blob_raise_wire_error(encoding):
    packed = pack(VALUES, MODEL, {"n": 1}, encoding, base=BASE)
    for extra in (b"\x00", packed.blob):
        with pytest.raises(WireError):
            unpack(packed.blob + extra, encoding=encoding, raw_bytes=packed.raw_bytes, schema=MODEL, base=BASE)


def test_an_unknown_encoding_is_a_wire_error():
    """An encoding that this version does not know came from the network, not from the user."""
    with pytest.raises(WireError, match=r"unknown encoding 'int4' \(known: fp32\+zstd, "):
        unpack(b"", encoding="int4", raw_bytes=0, schema=MODEL)


@given(st.data(), st.sampled_from(ENCODINGS))
def test_a_flipped_byte_gives_a_result_or_a_refusal(data, encoding):
    packed = pack(VALUES, MODEL, {"n": [1, {"a": None}]}, encoding, base=BASE)
    damaged = bytearray(packed.blob)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with suppress(WireError, SchemaMismatch):
        _, found = unpack(bytes(damaged), encoding=encoding, raw_bytes=packed.raw_bytes, schema=MODEL, base=BASE)
        MODEL.check(found)


FIELD = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3) | st.integers(0, 9), inner),
    max_leaves=12,
)
NEARLY = st.fixed_dictionaries(
    {
        "meta": FIELD,
        "tensors": FIELD
        | st.lists(
            st.tuples(
                st.sampled_from(["w", "n", "mask", "v"]) | FIELD,
                st.sampled_from(["float32", "float16", "int64", "bool", "delta-int8", "delta-bf16"]) | FIELD,
                st.sampled_from([[4], [], [3]]) | FIELD,
                st.sampled_from([bytes(16), bytes(8), b"\x02\x00\xff"]) | FIELD,
            ),
            max_size=4,
        ),
    }
)


@examples(300)
@given(st.binary() | FIELD.map(msgpack.packb) | NEARLY.map(msgpack.packb), st.sampled_from(ENCODINGS))
@example(b"\xdc\xff\xff" * 200, "fp32")
@example(b"\x91" * 5000, "fp32")
def test_unpack_of_any_bytes_raises_documented_errors_alone(raw, encoding):
    with suppress(WireError, SchemaMismatch):
        _, found = read_raw(raw, MODEL, encoding)
        MODEL.check(found)


@given(st.binary(max_size=200), st.integers(-1, 300))
def test_decompression_of_any_bytes_raises_documented_errors_alone(blob, raw_bytes):
    for candidate in (blob, b"\x28\xb5\x2f\xfd" + blob):
        with suppress(WireError, SchemaMismatch):
            unpack(candidate, encoding="fp32+zstd", raw_bytes=raw_bytes, schema=HALF)


def test_a_bool_is_zero_or_one():
    """Any other byte becomes True; numpy never gets a bool with value 2."""
    schema = Schema((TensorSpec("mask", (3,), "bool", "buffer"),))
    _, found = read_raw(container_of(["mask", "bool", [3], b"\x02\x00\xff"]), schema)
    assert found["mask"].tobytes() == b"\x01\x00\x01"


# --- bombs ----------------------------------------------------------------------------------------

SMALL = 8 * 2**20


def peak_of_refusal(blob: bytes, encoding: str, raw_bytes: int, schema: Schema = HALF) -> int:
    """Return the peak memory of Python while it refuses the blob."""
    tracemalloc.start()
    try:
        with pytest.raises(WireError):
            unpack(blob, encoding=encoding, raw_bytes=raw_bytes, schema=schema)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


BOMB = zstandard.compress(bytes(256 * 2**20))
STREAM = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(256 * 2**20))


def hidden(blob: bytes, stated: int) -> bytes:
    """The same frame with another content size in its header (4 bytes at offset 6 for frames of this size)."""
    assert zstandard.get_frame_parameters(blob).content_size == int.from_bytes(blob[6:10], "little")
    return blob[:6] + stated.to_bytes(4, "little") + blob[10:]


@pytest.mark.parametrize(
    ("blob", "announced"),
    [(BOMB, 100), (hidden(BOMB, 100), 100), (STREAM, 100), (BOMB, 256 * 2**20)],
    ids=["states more than announced", "states a false size", "states no size", "announces more than the schema"],
)
def test_frame_of_256_mb_is_refused_in_little_memory(blob, announced):
    assert len(blob) < 32_000
    assert peak_of_refusal(blob, "fp32+zstd", announced) < SMALL


LISTS = b"\xdc\xf0\x00" * 500 + b"\xc0" * 62_000
MAPS = b"\xde\xf0\x00\xa0" * 500 + b"\xc0" * 62_000
TENSOR = b"\x82\xa4meta\x80\xa7tensors\x91\x94\xa1w\xa7float32"


@pytest.mark.parametrize(
    "raw",
    [
        LISTS,
        b"\x82" + LISTS,
        b"\x82\xa4meta" + LISTS,
        b"\x82\xa4meta" + MAPS,
        b"\x82\xa4meta" + b"\x91" * 60_000,
        b"\x82\xa4meta\xdb\xff\xff\xff\xff",
        b"\x82\xa4meta\x81\xa1a\xc9\xff\xff\xff\xff\x00",
        b"\x82\xa4meta\x80\xa7tensors\xdd\xff\xff\xff\xff",
        b"\x82\xa4meta\x80\xa7tensors\x91\x94" + LISTS,
        TENSOR + LISTS,
        TENSOR + b"\x91\x04" + LISTS,
    ],
)
def test_a_nested_bomb_is_refused(raw):
    """500 lists in lists, each stating 61,440 entries, would take 250 MB to build; they are not built."""
    assert peak_of_refusal(raw, "fp32", len(raw)) < SMALL


LARGE = Schema((TensorSpec("w", (2**20,), "float32", "weight"),))


@pytest.mark.parametrize(
    ("count", "complaint"),
    [(MAX_TENSORS, "not a msgpack container"), (MAX_TENSORS + 1, "has 65537 tensors; at most 65536")],
)
def test_stated_number_of_tensors_is_checked_before_the_first_one_is_read(count, complaint):
    with pytest.raises(WireError, match=complaint):
        read_raw(b"\x82\xa4meta\x80\xa7tensors\xdd" + count.to_bytes(4, "big"), HALF)


@pytest.mark.parametrize(
    ("blob", "raw_bytes", "complaint"),
    [
        (b"", max_raw_bytes(HALF), "not a whole zstd frame"),
        (b"", max_raw_bytes(HALF) + 1, f"{max_raw_bytes(HALF) + 1} bytes were announced, but the agreed tensors take"),
        (zstandard.compress(bytes(9)), 8, "the zstd frame states 9 bytes, but 8 were announced"),
        (zstandard.compress(bytes(9))[:-1], 9, "not a whole zstd frame"),
    ],
    ids=["none", "beyond the schema", "more than announced", "cut"],
)
def test_frame_unlike_its_announcement_is_refused_with_the_reason(blob, raw_bytes, complaint):
    with pytest.raises(WireError, match=complaint):
        unpack(blob, encoding="fp32+zstd", raw_bytes=raw_bytes, schema=HALF)


@pytest.mark.parametrize("meta", [[], {"a": nested(20)}], ids=["list", "deep"])
def test_meta_that_is_not_plain_is_refused_with_the_reason(meta):
    with pytest.raises(WireError, match="meta is not plain data with str keys"):
        read_raw({"meta": meta, "tensors": []}, HALF)


def test_many_small_values_take_bounded_memory():
    raw = b"\x82\xa4meta\xdd" + (4 * 2**20).to_bytes(4, "big") + b"\x90" * (4 * 2**20)
    assert peak_of_refusal(raw, "fp32", len(raw), LARGE) < 2 * len(raw) + SMALL
