"""Tensors as differences from a base that both sides hold: decoded values, their errors, and values that stay exact."""

from __future__ import annotations

import tracemalloc

import msgpack
import numpy as np
import pytest
import zstandard
from hypothesis import example, given
from hypothesis import strategies as st

from fedpatch.shared.errors import SchemaMismatch, WireError
from fedpatch.shared.tensors.arrays import MOMENTS, Schema, TensorSpec
from fedpatch.shared.tensors.encoding_rules import rule_of
from fedpatch.shared.tensors.encodings import decode, encode, to_bf16
from fedpatch.shared.tensors.integer_codes import TOP
from fedpatch.shared.tensors.packing import pack, unpack
from fedpatch.shared.wire.messages import ENCODINGS, is_delta
from tests.shared.arbitrary_tensors import LAYOUTS, awkward, same, schemas, tensors_of

DELTAS = [encoding for encoding in ENCODINGS if is_delta(encoding)]
MODEL = Schema(
    (
        TensorSpec("bn.num_batches_tracked", (), "int64", "stats"),
        TensorSpec("bn.running_mean", (3,), "float32", "stats"),
        TensorSpec("bn.running_var", (3,), "float32", "stats"),
        TensorSpec("bn.weight", (3,), "float32", "affine"),
        TensorSpec("fc.weight", (60, 50), "float32", "weight"),
    )
).with_moments(MOMENTS)
WEIGHT = Schema((TensorSpec("w", (4,), "float32", "weight"),))
MATRIX = Schema((TensorSpec("w", (4, 1), "float32", "weight"),))
BASE = {spec.name: np.ones(spec.shape, spec.dtype) for spec in MODEL.specs}


def trained(seed: int = 0):
    """Values near those of BASE, as a round of training would leave them."""
    rng = np.random.default_rng(seed)
    return {
        spec.name: np.abs(BASE[spec.name] + 0.01 * rng.normal(size=spec.shape)).astype(spec.dtype)
        for spec in MODEL.specs
    }


def reopened(packed, schema, base):
    """Return the tensors that the other side reads."""
    return unpack(packed.blob, encoding=packed.encoding, raw_bytes=packed.raw_bytes, schema=schema, base=base)[1]


# --- round trips ----------------------------------------------------------------------------------


@given(st.data(), st.sampled_from(DELTAS), st.integers(0, 2**64 - 1))
def test_unpacked_tensors_are_within_the_error_of_their_rules(data, encoding, seed):
    """Names, shapes and dtypes are kept; values that no rule can encode are exact, others are at most one step off."""
    schema = data.draw(schemas()).with_moments(data.draw(st.sampled_from([(), MOMENTS])))
    tensors, base = data.draw(tensors_of(schema)), data.draw(tensors_of(schema, finite=True))
    found = reopened(pack(tensors, schema, {}, encoding, base=base, seed=seed), schema, base)
    schema.check(found)
    for spec in schema.specs:
        value, rule = tensors[spec.name], rule_of(encoding, spec)
        if rule is None:
            assert found[spec.name].tobytes() == value.tobytes()
        elif not np.isfinite(value).all():
            assert np.array_equal(np.isnan(found[spec.name]), np.isnan(value))
            assert np.array_equal(np.isinf(found[spec.name]), np.isinf(value))
        else:
            assert np.isfinite(found[spec.name]).all()
            off = np.abs(found[spec.name].astype(np.float64) - value.astype(np.float64))
            assert np.all(off <= bound(value, base[spec.name], spec, rule)), (spec, rule)


def bound(value, base, spec, rule):
    """Return the permitted error of decoded values: of the rule, and of the sums in the schema's dtype."""
    value, base = value.astype(np.float64), base.astype(np.float64)
    change = value - base if rule.delta else value
    info = np.finfo(spec.dtype)
    rounding = (np.abs(value) + np.abs(base)) * (4 * float(info.eps)) + 4 * float(info.smallest_subnormal) + 2.0**-130
    if rule.kind == "levels":
        return np.abs(value) / 10 + value.max(initial=0) * 2.0**-30 + rounding
    if rule.kind == "bf16":
        return np.abs(change) / 128 + rounding
    return np.abs(change).max(initial=0) * (1.01 / TOP) + rounding


@given(st.data(), st.sampled_from(DELTAS), st.sampled_from(LAYOUTS))
def test_memory_layout_changes_no_encoded_byte(data, encoding, layout):
    schema = data.draw(schemas())
    tensors, base = data.draw(tensors_of(schema)), data.draw(tensors_of(schema, finite=True))
    odd, odd_base = ({name: awkward(array, layout) for name, array in part.items()} for part in (tensors, base))
    packed = pack(tensors, schema, {}, encoding, base=base, seed=7)
    assert pack(odd, schema, {}, encoding, base=odd_base, seed=7) == packed
    assert same(reopened(packed, schema, odd_base), reopened(packed, schema, base))


@pytest.mark.parametrize("encoding", DELTAS)
def test_pack_with_equal_arguments_gives_equal_bytes(encoding):
    packed = pack(trained(), MODEL, {}, encoding, base=BASE, seed=1)
    assert pack(trained(), MODEL, {}, encoding, base=BASE, seed=1) == packed
    assert (pack(trained(), MODEL, {}, encoding, base=BASE, seed=2) == packed) == (encoding == "delta-bf16")


@pytest.mark.parametrize("encoding", DELTAS)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_values_of_a_wider_dtype_are_packed_as_those_of_the_schema(encoding, dtype):
    """Also a value that is infinite in the schema's dtype."""
    schema = Schema(tuple(TensorSpec(name, (2, 1), dtype, "weight") for name in ("v", "w")))
    values = {"v": np.array([[1 + 2.0**-12], [1.5]]), "w": np.array([[1e300], [1]])}
    base = {name: np.ones((2, 1), dtype) for name in values}
    with np.errstate(over="ignore"):
        narrow = {name: array.astype(dtype) for name, array in values.items()}
    assert pack(values, schema, {}, encoding, base=base) == pack(narrow, schema, {}, encoding, base=base)


@pytest.mark.parametrize("encoding", DELTAS)
def test_delta_of_equal_tensors_takes_few_bytes(encoding):
    packed = pack(BASE, MODEL, {}, encoding, base=BASE)
    found = reopened(packed, MODEL, BASE)
    assert same({name: found[name] for name in found if ":" not in name}, {n: BASE[n] for n in BASE if ":" not in n})
    assert len(packed.blob) < 800


@pytest.mark.parametrize(("encoding", "ratio"), [("delta-bf16", 1.9), ("delta-int8", 3.9)])
def test_a_blob_is_smaller_before_it_is_compressed(encoding, ratio):
    plain = MODEL.subset(["fc.weight"])
    packed = pack({"fc.weight": trained()["fc.weight"]}, plain, {}, encoding, base=BASE)
    assert packed.raw_bytes < plain.nbytes / ratio + 100


@pytest.mark.parametrize(
    ("name", "rule", "values"),
    [
        ("w", "delta-int8", "00 00 00 3c 7f 00 c1 00"),  # 1/128 a step: 127, 0, -63, 0
        ("w:exp_avg", "int8-blocks", "00 00 80 3c 7f 00 00 00"),
        ("w:exp_avg_sq", "delta-level", "08 00 ff f7 00 00"),  # the level of 2 is 8; that of the base, 1, is 247
        ("v", "delta-bf16", "3f bf 80 00"),
    ],
)
def test_rule_writes_these_bytes(name, rule, values):
    schema = Schema((*WEIGHT.specs, TensorSpec("v", (2,), "float32", "stats"))).with_moments(("exp_avg", "exp_avg_sq"))
    base = {spec.name: np.zeros(spec.shape, np.float32) for spec in schema.specs}
    after = {
        "w": np.array([127 / 128, 0, -63 / 128, 0], np.float32),
        "w:exp_avg": np.array([127 / 64, 0, 0, 0], np.float32),
        "w:exp_avg_sq": np.array([2, 1, 0, 0], np.float32),
        "v": np.array([1, -0.5], np.float32),
    }
    packed = pack(after, schema, {}, "delta-int8", base=base)
    container = msgpack.unpackb(zstandard.decompress(packed.blob))
    written = {entry[0]: (entry[1], entry[3].hex(" ")) for entry in container["tensors"]}
    assert written[name] == (rule, values)


@pytest.mark.parametrize("encoding", DELTAS)
def test_a_variance_never_comes_back_negative(encoding):
    """A running variance and a second moment near zero stay at zero or above, though their difference is rounded."""
    # bf16 rounds 1.006 up.
    before = {**BASE, "bn.running_var": np.array([1.006, 1e-3, 1e-30], np.float32)}
    after = {**BASE, "bn.running_var": np.zeros(3, np.float32)}
    found = reopened(pack(after, MODEL, {}, encoding, base=before), MODEL, before)
    for spec in MODEL.specs:
        assert not spec.never_negative or (found[spec.name] >= 0).all()


@pytest.mark.parametrize("encoding", DELTAS)
def test_second_moment_is_decoded_within_a_level(encoding):
    """The moment is a number, not a difference from the base: base and value are both near 1 here."""
    name = "fc.weight:exp_avg_sq"
    found = reopened(pack(trained(), MODEL, {}, encoding, base=BASE), MODEL, BASE)
    assert np.abs(found[name] / trained()[name] - 1).max() < 0.1


def test_first_moment_is_rounded_towards_zero():
    name = "fc.weight:exp_avg"
    found = reopened(pack(trained(), MODEL, {}, "delta-int8", base=BASE), MODEL, BASE)
    assert (found[name] <= trained()[name] * (1 + 2e-6)).all()
    assert (found[name] >= 0).all()


@pytest.mark.parametrize(("size", "scale"), [(1024, 3 / 127), (1025, 3.0)])
def test_scale_of_a_large_tensor_is_coarse(size, scale):
    """The scale is then the root mean square."""
    spec = TensorSpec("w", (size,), "float32", "weight")
    rule = rule_of("delta-int8", spec)
    assert rule is not None
    data = encode(np.full(size, 3, np.float32), np.zeros(size, np.float32), spec, rule, np.random.default_rng(0))
    assert data is not None
    assert np.frombuffer(data[:4], "<f4")[0] == pytest.approx(scale)


def test_decode_in_half_precision_adds_in_float32():
    """In float32 the sum 1 + 2^-11 + 2^-30 is 1 + 2^-11, hence 1 in float16; from float64 it would be the next number."""
    spec = TensorSpec("w", (1,), "float16", "weight")
    rule = rule_of("delta-int8", spec)
    assert rule is not None
    data = np.array([2.0**-11 + 2.0**-30], "<f4").tobytes() + b"\x01"
    assert decode(memoryview(data), np.ones(1, np.float16), spec, rule) == 1


def test_decode_of_no_difference_returns_every_bit_of_a_base_in_double_precision():
    spec = TensorSpec("bn.running_mean", (1,), "float64", "stats")
    rule, base = rule_of("delta-bf16", spec), np.array([1 / 3])
    assert rule is not None
    assert decode(memoryview(bytes(2)), base, spec, rule) == base


def test_decode_of_a_difference_takes_the_memory_of_one_result():
    spec = TensorSpec("w", (10, 20_000), "float32", "weight")
    rule, base = rule_of("delta-int8", spec), np.zeros(spec.shape, np.float32)
    assert rule is not None
    data = encode(base, base, spec, rule, np.random.default_rng(0))
    assert data is not None
    tracemalloc.start()
    decode(memoryview(data), base, spec, rule)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert spec.nbytes <= peak < 1.5 * spec.nbytes


def test_decode_of_infinite_and_too_large_values_is_silent():
    """The tests turn numpy's warnings into errors."""
    spec = TensorSpec("w", (2,), "float16", "weight")
    rule = rule_of("delta-bf16", spec)
    assert rule is not None
    found = decode(memoryview(to_bf16(np.array([-np.inf, 1e30]))), np.array([np.inf, 1], np.float16), spec, rule)
    assert np.isnan(found[0])
    assert found[1] == np.inf


@pytest.mark.parametrize("encoding", DELTAS)
@pytest.mark.parametrize("name", ["bn.running_var", "fc.weight:exp_avg_sq"])
def test_negative_variance_arrives_unchanged(encoding, name):
    """The decoder hides no fault: a value that should never be negative arrives unchanged."""
    values = {**BASE, name: -BASE[name]}
    assert (reopened(pack(values, MODEL, {}, encoding, base=BASE), MODEL, BASE)[name] == -1).all()


def test_variance_that_a_change_takes_below_zero_is_decoded_as_zero():
    """No encoder of fedpatch writes such a change; one of another maker may round so."""
    spec = TensorSpec("bn.running_var", (2,), "float32", "stats")
    rule = rule_of("delta-bf16", spec)
    assert rule is not None
    found = decode(memoryview(to_bf16(np.array([-1.5, -0.5]))), np.ones(2, np.float32), spec, rule)
    assert found.tolist() == [0.0, 0.5]


@pytest.mark.parametrize("encoding", DELTAS)
@pytest.mark.parametrize("spoilt", [np.nan, np.inf, -np.inf, 3e38])
def test_values_that_a_rule_cannot_write_arrive_unchanged(encoding, spoilt):
    values = trained()
    values["fc.weight"][3, 3] = spoilt
    found = reopened(pack(values, MODEL, {}, encoding, base=BASE), MODEL, BASE)
    assert found["fc.weight"].tobytes() == values["fc.weight"].tobytes()
    assert np.isfinite(found["bn.weight"]).all()


@pytest.mark.parametrize("encoding", DELTAS)
def test_values_too_far_from_their_base_arrive_unchanged(encoding):
    base = {"w": np.array([-3e38, np.inf, 1, 1], np.float32)}
    values = {"w": np.array([3e38, np.inf, 1, 1], np.float32)}
    assert same(reopened(pack(values, WEIGHT, {}, encoding, base=base), WEIGHT, base), values)


def test_outlier_is_decoded_within_its_scale():
    """The greatest value that a rule accepts is decoded as a finite number, the other values within one step."""
    values = np.array([np.finfo(np.float32).max / 4, 1, -1, 0], np.float32)
    base = {"w": np.zeros(4, np.float32)}
    found = reopened(pack({"w": values}, WEIGHT, {}, "delta-int8", base=base), WEIGHT, base)["w"]
    assert np.isfinite(found).all()
    assert abs(found[0] / values[0] - 1) < 1 / 127
    assert found[1] == 0  # encoded by its rule, not sent unchanged


# --- without a base, or with another one ----------------------------------------------------------


@pytest.mark.parametrize("encoding", DELTAS)
@pytest.mark.parametrize("base", [None, {}, {"w": np.ones(3, np.float32)}])
def test_delta_without_its_base_is_refused(encoding, base):
    """Packing without the base is a programming error; a receiver without the base refuses the blob."""
    held = {"w": np.zeros(4, np.float32)}
    with pytest.raises(ValueError, match=f"{encoding} needs the tensors that both sides hold"):
        pack(held, WEIGHT, {}, encoding, base=base)
    packed = pack(held, WEIGHT, {}, encoding, base=held)
    with pytest.raises(WireError, match="base tensors that are missing here"):
        reopened(packed, WEIGHT, base)


@pytest.mark.parametrize("encoding", DELTAS)
def test_a_tensor_of_another_length_is_refused(encoding):
    [spec] = WEIGHT.specs
    rule, base = rule_of(encoding, spec), np.zeros(4, np.float32)
    assert rule is not None
    data = encode(np.ones(4, np.float32), base, spec, rule, np.random.default_rng(0))
    assert data is not None and decode(memoryview(data), base, spec, rule).shape == spec.shape
    for wrong in (data[:-1], data + b"\0"):
        with pytest.raises(WireError, match=f"^w: {len(wrong)} bytes where .* takes {len(data)} for"):
            decode(memoryview(wrong), base, spec, rule)


@pytest.mark.parametrize("encoding", DELTAS)
def test_form_of_another_rule_is_refused(encoding):
    """A blob is read by the rules of the encoding that was announced, never by rules that the blob itself names."""
    held = {"w": np.zeros((4, 1), np.float32)}
    packed = pack({"w": np.ones((4, 1), np.float32)}, MATRIX, {}, encoding, base=held)
    for other in set(DELTAS) - {encoding}:
        with pytest.raises(SchemaMismatch, match="w: dtype 'delta-"):
            unpack(packed.blob, encoding=other, raw_bytes=packed.raw_bytes, schema=MATRIX, base=held)


# --- statistics -----------------------------------------------------------------------------------


STATISTICS = Schema(
    (
        TensorSpec("bn.running_mean", (3,), "float32", "stats"),
        TensorSpec("bn.running_var", (3,), "float32", "stats"),
        TensorSpec("scale", (3,), "float32", "buffer"),
    )
)


@pytest.mark.parametrize("encoding", ENCODINGS)
@given(
    base=st.lists(st.floats(2.0**-100, 2.0**100, width=32), min_size=3, max_size=3),
    values=st.lists(st.floats(2.0**-100, 2.0**100, width=32) | st.just(0.0), min_size=3, max_size=3),
)
@example(base=[1.0, 1.0, 1.0], values=[1e-4, 1e-8, 0.9])
@example(base=[0.9, 1000.0, 1.0], values=[1e-5, 20.0, 0.0])
def test_statistics_arrive_with_the_precision_of_bf16_however_far_they_fall(encoding, base, values):
    """A variance that becomes 0 would let every device divide by epsilon."""
    before = {spec.name: np.array(base, np.float32) for spec in STATISTICS.specs}
    sent = {spec.name: np.array(values, np.float32) for spec in STATISTICS.specs}
    packed = pack(sent, STATISTICS, {}, encoding, base=before)
    _, read = unpack(packed.blob, encoding=encoding, raw_bytes=packed.raw_bytes, schema=STATISTICS, base=before)
    for name, array in read.items():
        np.testing.assert_allclose(array, sent[name], rtol=2.0**-8 * 1.001, atol=0, err_msg=name)


def test_statistics_that_hardly_change_take_two_bytes_a_value():
    before = {spec.name: np.full(3, 2.0, np.float32) for spec in STATISTICS.specs}
    sent = {name: array + np.float32(0.001) for name, array in before.items()}
    for name, array in sent.items():
        spec = STATISTICS.spec(name)
        rule = rule_of("delta-int8", spec)
        assert rule is not None
        data = encode(array, before[name], spec, rule, np.random.default_rng(0))
        assert data is not None and len(data) == 6
