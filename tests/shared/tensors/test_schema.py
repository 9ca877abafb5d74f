"""Named tensors: the schema as an agreement, and the checks against it."""

from __future__ import annotations

import hashlib
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.shared.errors import SchemaMismatch, UpdateRefused, WireError
from fedpatch.shared.tensors.arrays import (
    MAX_SCHEMA_BYTES,
    MAX_TENSORS,
    MOMENTS,
    TRAINABLE,
    Schema,
    TensorSpec,
    UnexpectedTensors,
    listing,
    require_finite,
    values_digest,
)
from fedpatch.shared.tensors.common_update_checks import untrained
from fedpatch.shared.tensors.schema import Frozen
from tests.shared.arbitrary_tensors import schemas

MODEL = Schema(
    (
        TensorSpec("fc1.weight", (3, 2), "float32", "weight"),
        TensorSpec("bn1.weight", (3,), "float32", "affine"),
        TensorSpec("bn1.num_batches_tracked", (), "int64", "stats"),
    )
)
VALUES = {
    "fc1.weight": np.ones((3, 2), np.float32),
    "bn1.weight": np.ones(3, np.float32),
    "bn1.num_batches_tracked": np.array(7),
}

# --- names ----------------------------------------------------------------------------------------


def test_specs_are_kept_sorted_by_name():
    assert MODEL.names == ("bn1.num_batches_tracked", "bn1.weight", "fc1.weight")
    assert Schema(MODEL.specs[::-1]) == MODEL


def test_schema_with_a_name_twice_is_refused():
    with pytest.raises(SchemaMismatch, match=r"'fc1\.weight' twice"):
        Schema((*MODEL.specs, TensorSpec("fc1.weight", (), "float32", "buffer")))


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        (("", (1,), "float32", "weight"), "1 to 256"),
        (("x" * 257, (1,), "float32", "weight"), "name 'x{40}' must have 1 to 256"),
        (("a\nb", (1,), "float32", "weight"), "printable"),
        (("\ud800", (1,), "float32", "weight"), "printable"),
        (("a", (-1,), "float32", "weight"), "none negative"),
        (("a", (1,) * 9, "float32", "weight"), "at most 8"),
        (("a", (1,), "bfloat16", "weight"), "'bfloat16' cannot travel; use one of float16, float32, float64, int8, "),
        (("a", (1,), ">f4", "weight"), ">f4"),
        (("a", (1,), "float32", "secret"), r"unknown role 'secret' \(known: weight, affine, "),
        (("a:exp_avg", (1,), "float32", "weight"), "':'"),
        (("a", (1,), "float32", "moment"), "':'"),
    ],
)
def test_spec_that_cannot_be_sent_is_refused(spec, complaint):
    with pytest.raises(SchemaMismatch, match=complaint):
        TensorSpec(*spec)


def test_bytes_are_counted():
    """A schema knows the uncompressed size of its values: 6 + 3 floats of 4 bytes, and one integer of 8."""
    assert MODEL.nbytes == 44
    assert Schema(()).nbytes == 0
    assert len(MODEL) == 3


# --- moments and parts ----------------------------------------------------------------------------


def test_moments_are_those_of_trainable_tensors():
    added = {spec for spec in MODEL.with_moments(MOMENTS).specs if spec not in MODEL.specs}
    assert added == {
        TensorSpec("fc1.weight:exp_avg", (3, 2), "float32", "moment"),
        TensorSpec("fc1.weight:exp_avg_sq", (3, 2), "float32", "moment"),
        TensorSpec("fc1.weight:step", (), "float32", "moment"),
        TensorSpec("bn1.weight:exp_avg", (3,), "float32", "moment"),
        TensorSpec("bn1.weight:exp_avg_sq", (3,), "float32", "moment"),
        TensorSpec("bn1.weight:step", (), "float32", "moment"),
    }


def test_an_unknown_moment_is_refused():
    with pytest.raises(SchemaMismatch, match=r"'momentum' \(known: exp_avg"):
        MODEL.with_moments(["momentum"])


@given(schemas())
def test_moments_do_not_get_moments(schema):
    extended = schema.with_moments(MOMENTS)
    assert set(schema.specs) <= set(extended.specs)
    assert len(extended) == len(schema) + 3 * sum(spec.role in TRAINABLE for spec in schema.specs)


def test_a_part_holds_only_what_was_asked_for():
    assert MODEL.subset(["fc1.weight"]).names == ("fc1.weight",)
    with pytest.raises(UnexpectedTensors, match=r"'fc2\.weight' is not in the schema") as caught:
        MODEL.subset(["fc2.weight"])
    assert caught.value.names == ("fc2.weight",)


# --- digests --------------------------------------------------------------------------------------


@given(schemas(), schemas())
def test_schemas_have_one_digest_only_if_they_are_equal(one, other):
    assert (one.digest == other.digest) == (one == other)


def test_the_digest_is_pinned():
    """Coordinator and device may be of different versions: the same schema must keep its digest for ever."""
    assert MODEL.digest == "c20057dbec1cfbcd9b9808213ba5d795631236c4fb4a9a8e940342df52ab7557"


# --- checks ---------------------------------------------------------------------------------------


def without(name: str) -> dict[str, np.ndarray]:
    return {other: array for other, array in VALUES.items() if other != name}


@pytest.mark.parametrize(
    ("tensors", "unexpected", "complaint"),
    [
        (VALUES | {"fc1.weight": np.ones((2, 3), np.float32)}, (), r"fc1.weight: shape \(2, 3\), agreed \(3, 2\)"),
        (VALUES | {"fc1.weight": np.ones((3, 2))}, (), "fc1.weight: dtype float64, agreed float32"),
        (VALUES | {"fc1.weight": np.ones((3, 2), ">f4")}, (), "fc1.weight: dtype >f4, agreed float32"),
        (without("bn1.weight"), (), r"missing tensors 'bn1\.weight'"),
        (
            without("bn1.weight") | {"fc9.bias": np.ones(3)},
            ("fc9.bias",),
            "^unexpected tensors 'fc9.bias'; missing tensors 'bn1.weight': both sides need the same task, model and",
        ),
        (
            VALUES | {f"t{i}": np.zeros(1) for i in range(100)},
            tuple(sorted(f"t{i}" for i in range(100))),
            "'t12' and 95 more: both",
        ),
    ],
    ids=["shape", "dtype", "byte order", "missing", "unexpected", "many unexpected"],
)
def test_error_names_what_differs_from_the_schema(tensors, unexpected, complaint):
    with pytest.raises(SchemaMismatch, match=complaint) as caught:
        MODEL.check(tensors)
    assert getattr(caught.value, "names", ()) == unexpected
    assert isinstance(caught.value, UnexpectedTensors) == bool(unexpected)


def test_untrained_tensors_are_statistics_and_buffers_that_are_there():
    schema = Schema(
        (
            TensorSpec("weight", (1,), "float32", "weight"),
            TensorSpec("affine", (1,), "float32", "affine"),
            TensorSpec("stats", (1,), "float32", "stats"),
            TensorSpec("buffer", (1,), "float32", "buffer"),
            TensorSpec("weight:exp_avg", (1,), "float32", "moment"),
        )
    )
    tensors = {spec.name: np.zeros(1, "f4") for spec in schema.specs}
    assert untrained(tensors, schema).keys() == {"stats", "buffer"}
    assert untrained({"stats": tensors["stats"]}, schema).keys() == {"stats"}


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_refused(bad):
    weight = VALUES["fc1.weight"].copy()
    weight[1, 1] = bad
    with pytest.raises(
        UpdateRefused, match=r"fc1.weight: 1 of 6 values are not finite; a smaller learning rate"
    ) as caught:
        require_finite({**VALUES, "fc1.weight": weight})
    assert caught.value.reason == "not_finite"
    require_finite(VALUES)


# --- on the wire ----------------------------------------------------------------------------------


@given(schemas())
def test_a_schema_comes_back_from_lists(schema):
    extended = schema.with_moments(MOMENTS)
    assert Schema.from_lists(extended.to_lists()) == extended


@pytest.mark.medium
@pytest.mark.parametrize(
    ("lists", "complaint"),
    [
        ({"a": 1}, "must be a list"),
        ([["a", [1], "float32", "weight"]] * (MAX_TENSORS + 1), "at most 65536"),
        ([["a", [1], "float32", "weight"]] * MAX_TENSORS, "twice"),
        ([["a", [1], "float32"]], "must be"),
        ([["a", [True], "float32", "weight"]], "must be"),
        ([["a", [1.0], "float32", "weight"]], "must be"),
        ([[b"a", [1], "float32", "weight"]], "must be"),
        ([["a", [1], "object", "weight"]], "dtype 'object'"),
        ([["a", [1], "float32", "weight"]] * 2, "twice"),
        ([["a", [2**31, 2**31], "float32", "weight"]], "more than the limit"),
        ([["a", [2**31 + 1], "int8", "buffer"]], "more than the limit"),
    ],
)
def test_foreign_lists_are_a_wire_error(lists, complaint):
    with pytest.raises(WireError, match=complaint):
        Schema.from_lists(lists)


def test_schema_of_the_most_bytes_is_accepted():
    assert Schema.from_lists([["a", [2**31], "int8", "buffer"]]).nbytes == MAX_SCHEMA_BYTES


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=2),
)


@given(PLAIN | st.lists(st.tuples(st.text(), st.lists(st.integers()), st.text(), st.text()).map(list), max_size=2))
def test_from_lists_of_any_lists_raises_wire_error_alone(lists):
    with suppress(WireError):
        assert Schema.from_lists(lists).to_lists() == sorted(lists)


def test_values_have_one_digest_whatever_their_layout():
    schema = Schema((TensorSpec("b", (), "int64", "buffer"), TensorSpec("a", (2, 2), "float32", "weight")))
    values = {"a": np.arange(4, dtype=np.float32).reshape(2, 2), "b": np.array(7)}
    odd = {"b": np.array(7), "a": np.asfortranarray(values["a"])}
    expected = hashlib.sha256(
        b'["a","float32",[2,2]]\n' + values["a"].tobytes() + b'["b","int64",[]]\n' + b"\7" + bytes(7)
    )
    assert values_digest(values, schema) == values_digest(odd, schema) == expected.hexdigest()
    other = {**values, "a": np.where(values["a"] == 0, np.float32(-0.0), values["a"])}
    assert values_digest(other, schema) != expected.hexdigest()
    with pytest.raises(SchemaMismatch):
        values_digest({"a": values["a"]}, schema)


@pytest.mark.parametrize(
    ("spec", "trainable", "never_negative"),
    [
        (TensorSpec("fc.weight", (2,), "float32", "weight"), True, False),
        (TensorSpec("bn.weight", (2,), "float32", "affine"), True, False),
        (TensorSpec("bn.running_mean", (2,), "float32", "stats"), False, False),
        (TensorSpec("bn.running_var", (2,), "float32", "stats"), False, True),
        (TensorSpec("bn.num_batches_tracked", (), "int64", "stats"), False, True),
        (TensorSpec("running_var", (2,), "float32", "buffer"), False, False),
        (TensorSpec("fc.weight:exp_avg", (2,), "float32", "moment"), False, False),
        (TensorSpec("fc.weight:exp_avg_sq", (2,), "float32", "moment"), False, True),
        (TensorSpec("fc.weight:step", (), "float32", "moment"), False, True),
    ],
    ids=lambda value: value.name if isinstance(value, TensorSpec) else "",
)
def test_spec_is_trainable_or_never_negative_by_role_and_name(spec, trainable, never_negative):
    assert (spec.trainable, spec.never_negative) == (trainable, never_negative)


@pytest.mark.parametrize(
    ("count", "shown"), [(5, "'a', 'b', 'c', 'd', 'e'"), (6, "'a', 'b', 'c', 'd', 'e' and 1 more")]
)
def test_listing_names_five_and_counts_the_rest(count, shown):
    assert listing("fedcba"[-count:]) == shown


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (("a",), "1 tensor (4.1 kB, digest ab12ab12ab12): 'a'"),
        (("a", "b"), "2 tensors (4.1 kB, digest ab12ab12ab12): "),
    ],
)
def test_text_of_frozen_values_has_their_number_size_and_digest(names, text):
    assert str(Frozen(names, "ab12" * 16, 4096)).startswith(text)


def test_text_of_frozen_values_names_three_of_them():
    assert str(Frozen(tuple("abcd"), "ab" * 32, 1)).endswith(": 'a', 'b', 'c' and 1 more")
