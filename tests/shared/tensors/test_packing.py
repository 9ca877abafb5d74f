"""Tensors as bytes and back, between two honest sides."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedpatch.shared.errors import SchemaMismatch, UsageError
from fedpatch.shared.tensors.arrays import MOMENTS, Schema, TensorSpec, UnexpectedTensors
from fedpatch.shared.tensors.packing import (
    MAX_DEPTH,
    MAX_META_BYTES,
    Packed,
    is_plain,
    max_blob_bytes,
    max_raw_bytes,
    pack,
    unpack,
)
from fedpatch.shared.wire.messages import ENCODINGS
from tests.shared.arbitrary_tensors import LAYOUTS, awkward, nested, same, schemas, tensors_of

MODEL = Schema(
    (
        TensorSpec("bn.num_batches_tracked", (), "int64", "stats"),
        TensorSpec("bn.running_var", (3,), "float32", "stats"),
        TensorSpec("bn.weight", (3,), "float32", "affine"),
        TensorSpec("fc.weight", (3, 2), "float32", "weight"),
    )
).with_moments(MOMENTS)
VALUES = {spec.name: np.ones(spec.shape, spec.dtype) for spec in MODEL.specs}
META = {"num_examples": 40, "user_accuracy": 0.5}
HALF = Schema((TensorSpec("w", (4,), "float32", "weight"),))


def reopened(packed: Packed, schema: Schema):
    """Return the meta data and tensors that the other side reads."""
    return unpack(packed.blob, encoding=packed.encoding, raw_bytes=packed.raw_bytes, schema=schema)


# --- round trips ----------------------------------------------------------------------------------


@given(st.data(), st.sampled_from(["fp32", "fp32+zstd"]))
def test_fp32_returns_exact_tensors(data, encoding):
    schema = data.draw(schemas()).with_moments(data.draw(st.sampled_from([(), MOMENTS])))
    tensors = data.draw(tensors_of(schema))
    meta, found = reopened(pack(tensors, schema, META, encoding), schema)
    assert meta == META
    assert same(found, tensors)


@given(st.data(), st.sampled_from(LAYOUTS))
def test_memory_layout_and_byte_order_change_no_packed_byte(data, layout):
    schema = data.draw(schemas())
    tensors = data.draw(tensors_of(schema))
    odd = {name: awkward(array, layout) for name, array in tensors.items()}
    assert pack(odd, schema, META, "fp32") == pack(tensors, schema, META, "fp32")


@given(hnp.arrays(np.float32, (4,), elements=st.floats(-60000, 60000, width=32)))
def test_fp16_returns_values_within_half_precision(values):
    """fp16 returns a weight within 11 bits, or within 3e-8 if the weight is that small."""
    _, found = reopened(pack({"w": values}, HALF, {}, "fp16+zstd"), HALF)
    assert found["w"].dtype == np.float32
    assert np.all(np.abs(found["w"] - values) <= np.maximum(np.abs(values) * 2.0**-11, 2.0**-25))


def test_packing_halves_weights_and_affine_values_only():
    tiny = {spec.name: np.full(spec.shape, 1e-12 if spec.dtype != "int64" else 2**60) for spec in MODEL.specs}
    tiny = {spec.name: tiny[spec.name].astype(spec.dtype) for spec in MODEL.specs}
    packed = pack(tiny, MODEL, {}, "fp16")
    _, found = reopened(packed, MODEL)
    changed = {name for name in tiny if found[name].tobytes() != tiny[name].tobytes()}
    assert changed == {"fc.weight", "bn.weight"}
    assert pack(tiny, MODEL, {}, "fp32").raw_bytes - packed.raw_bytes == 2 * (6 + 3)


@pytest.mark.parametrize("value", [65520.0, 1e30, -1e30])
def test_a_tensor_beyond_half_precision_stays_whole(value):
    values = np.array([1 / 3, value, 0, 0], np.float32)
    _, found = reopened(pack({"w": values}, HALF, {}, "fp16"), HALF)
    assert found["w"].tobytes() == values.tobytes()


def test_wider_floats_are_brought_to_the_schema():
    values = np.array([1 / 3, 1e300, 0, -1])
    with np.errstate(over="ignore"):
        expected = values.astype(np.float32)
    _, found = reopened(pack({"w": values}, HALF, {}, "fp32"), HALF)
    assert same(found, {"w": expected})


@pytest.mark.parametrize("size", [255, 256, 65_535, 65_536])
def test_tensor_at_the_bounds_of_the_binary_formats_of_msgpack_comes_back(size):
    schema = Schema((TensorSpec("mask", (size,), "uint8", "buffer"),))
    tensors = {"mask": np.arange(size).astype(np.uint8)}
    _, found = reopened(pack(tensors, schema, {}, "fp32"), schema)
    assert same(found, tensors)


def test_unpacked_tensors_are_writable():
    _, found = reopened(pack(VALUES, MODEL, {}, "fp32+zstd"), MODEL)
    for array in found.values():
        array += 1


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_equal_input_gives_equal_bytes(encoding):
    backwards = dict(reversed(VALUES.items()))
    base = {name: np.zeros_like(values) for name, values in backwards.items()}
    assert pack(VALUES, MODEL, META, encoding, base=base) == pack(backwards, MODEL, META, encoding, base=base)


def test_container_has_these_bytes():
    """Version 1 of the layout, byte by byte: {meta, tensors: [[name, dtype, shape, little-endian values]]}."""
    packed = pack({"w": np.array([1, -2, 0.5, 65504], ">f8")}, HALF, {"n": 1}, "fp16")
    assert packed.blob.hex(" ") == (
        "82 a4 6d 65 74 61 81 a1 6e 01 a7 74 65 6e 73 6f 72 73 91 94 a1 77 a7 66 6c 6f 61 74 31 36 91 04 "
        "c4 08 00 3c 00 c0 00 38 ff 7b"
    )
    assert packed.raw_bytes == len(packed.blob)


# --- tensors that cannot be packed ----------------------------------------------------------------


@pytest.mark.parametrize(
    "array",
    [np.ones(3, np.float32), np.ones((4, 1), np.float32), np.ones(4, np.complex64), np.ones(4, np.int64)],
)
def test_packing_checks_the_schema(array):
    with pytest.raises(SchemaMismatch, match=r"w: (shape|dtype)"):
        pack({"w": array}, HALF, {}, "fp32")


def test_packing_takes_all_tensors_and_no_others():
    with pytest.raises(UnexpectedTensors, match="unexpected tensors 'patch'; missing tensors 'w'"):
        pack({"patch": np.ones(4, np.float32)}, HALF, {}, "fp32")


def test_an_unknown_encoding_is_a_usage_error():
    with pytest.raises(UsageError, match=r"unknown encoding 'fp16\+zst'; did you mean 'fp16\+zstd'"):
        pack(VALUES, MODEL, {}, "fp16+zst")


@pytest.mark.parametrize(
    "meta",
    [
        {1: "a"},
        {"a": {1: 2}},
        {"a": object()},
        {"a": np.float32(1)},
        {"a": 2**64},
        {"a": "x" * MAX_META_BYTES},
        {"a": nested(20)},
    ],
)
def test_pack_of_unreadable_meta_raises_value_error(meta):
    with pytest.raises(ValueError, match="meta"):
        pack(VALUES, MODEL, meta, "fp32")


def test_meta_nested_to_the_limit_comes_back():
    meta = {"a": nested(MAX_DEPTH - 2)}
    packed = pack(VALUES, MODEL, meta, "fp32")
    found, _ = unpack(packed.blob, encoding="fp32", raw_bytes=packed.raw_bytes, schema=MODEL)
    assert found == meta


@pytest.mark.parametrize("value", [nested(MAX_DEPTH), {"a": {"a": nested(MAX_DEPTH - 1)}}], ids=["lists", "maps"])
def test_meta_nested_deeper_is_not_plain(value):
    assert not is_plain(value)


def test_manifest_of_a_blob_names_its_schema_and_sizes():
    packed = pack(VALUES, MODEL, {}, "fp32+zstd")
    manifest = packed.manifest(100, MODEL)
    sizes = (manifest.size_bytes, manifest.raw_bytes, manifest.chunk_bytes)
    assert (manifest.schema, manifest.encoding) == (MODEL.digest, "fp32+zstd")
    assert sizes == (len(packed.blob), packed.raw_bytes, 100)


@pytest.mark.parametrize("encoding", ["fp32", "fp32+zstd"])
def test_blob_of_random_values_and_the_largest_meta_fits_the_bound(encoding):
    schema = Schema((TensorSpec("w", (20_000,), "float64", "weight"),))
    rng = np.random.default_rng(1)
    values = {"w": rng.integers(-(2**62), 2**62, 20_000).view(np.float64)}
    packed = pack(values, schema, {"a": rng.bytes(MAX_META_BYTES - 100)}, encoding)
    assert packed.raw_bytes <= max_raw_bytes(schema)
    assert len(packed.blob) <= max_blob_bytes(schema)
    assert max_blob_bytes(schema) > max_raw_bytes(schema) * 1.005
