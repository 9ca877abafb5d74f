"""The patch policy: the values that stay on the device, and splitting and merging a model by it."""

from __future__ import annotations

from fnmatch import fnmatchcase

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fedpatch.shared.errors import SchemaMismatch, UsageError
from fedpatch.shared.tensors.arrays import MOMENTS, Schema, TensorSpec, UnexpectedTensors, base_name
from fedpatch.shared.tensors.patch_policy import check_private, names_policy
from fedpatch.shared.tensors.patches import MAX_TEXT, PatchPolicy, merge, parse_policy, split
from fedpatch.shared.tensors.schema import Frozen
from tests.shared.arbitrary_tensors import same, schemas, tensors_of


def norm(name: str) -> list[TensorSpec]:
    """Batch norm over three channels."""
    return [
        TensorSpec(f"{name}.weight", (3,), "float32", "affine"),
        TensorSpec(f"{name}.bias", (3,), "float32", "affine"),
        TensorSpec(f"{name}.running_mean", (3,), "float32", "stats"),
        TensorSpec(f"{name}.running_var", (3,), "float32", "stats"),
        TensorSpec(f"{name}.num_batches_tracked", (), "int64", "stats"),
    ]


WEIGHTS = [
    TensorSpec("fc1.weight", (3, 2), "float32", "weight"),
    TensorSpec("fc1.bias", (3,), "float32", "weight"),
    TensorSpec("fc10.weight", (3, 2), "float32", "weight"),
]
MODEL = Schema((*WEIGHTS, *norm("bn1"), *norm("bn10")))
PLAIN = Schema(tuple(WEIGHTS))

AFFINE = {"bn1.weight", "bn1.bias", "bn10.weight", "bn10.bias"}
STATS = {f"bn{i}.{name}" for i in (1, 10) for name in ("running_mean", "running_var", "num_batches_tracked")}


@pytest.mark.parametrize(
    ("text", "kept"), [("none", set()), ("stats", STATS), ("names:fc1.*", {"fc1.weight", "fc1.bias"})]
)
def test_policy_keeps_names_without_moments(text, kept):
    assert parse_policy(text).keeps(MODEL.with_moments(MOMENTS)) == kept


# --- policies that depend on the model ---


@given(st.data())
def test_patterns_of_a_set_of_names_match_this_set_and_no_other_name(data):
    part = st.sampled_from(["0", "1", "12", "bn", "bn1", "norm", "a[b", "w*", "q?"])
    all_names = st.sets(st.lists(part, min_size=1, max_size=3).map(".".join), min_size=1, max_size=12)
    names = sorted(data.draw(all_names))
    private = data.draw(st.sets(st.sampled_from(names), min_size=1))
    policy = names_policy(private, names)
    assert {name for name in names if any(fnmatchcase(name, glob) for glob in policy.globs)} == private


def test_patterns_of_many_layers_are_few():
    names = {f"layers.{i}.norm{j}.{kind}" for i in range(40) for j in (1, 2) for kind in ("weight", "bias")}
    assert names_policy(names, names | {"head.weight"}).globs == ("layers.*.norm1.*", "layers.*.norm2.*")


def test_unknown_policy_of_a_user_gets_the_nearest_known_name():
    with pytest.raises(UsageError, match="norms"):
        check_private("norm")
    assert [check_private(text) for text in (" head", "norms", "names:b,a")] == ["head", "norms", "names:a,b"]


# --- reading a policy -----------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["none", "stats", "affine", "all", "names:bn1.*", "names:bn1.*,fc?.weight"])
def test_a_policy_comes_back_from_its_text(text):
    assert str(parse_policy(text)) == text


@pytest.mark.parametrize("text", ["names:b,a", " names: a , b,a ", "names:a,b"])
def test_policies_that_mean_the_same_are_the_same(text):
    assert parse_policy(text) == PatchPolicy("names", ("a", "b"))
    assert str(parse_policy(text)) == "names:a,b"


def test_policy_of_the_longest_text_is_read():
    assert len(str(parse_policy(f"names:{'x' * 494}"))) == MAX_TEXT


@given(st.lists(st.from_regex(r"[!-+\--~]{1,30}", fullmatch=True), min_size=1, max_size=4))
def test_every_policy_by_name_can_be_printed_and_read(globs):
    """parse_policy is the inverse of str, for any printable globs without commas."""
    policy = PatchPolicy("names", tuple(globs))
    assert parse_policy(str(policy)) == policy


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("affin", r"unknown patch policy 'affin'; did you mean 'affine'\?"),
        ("fc3.*", r"unknown patch policy 'fc3\.\*' .*; named tensors are written as names:fc2\.\*,bn1\.\*$"),
        ("names", "^patch policy names: write"),
        ("", "unknown patch policy ''"),
        ("Affine", "did you mean 'affine'"),
        ("names", "write names:"),
        ("names:", "write names:"),
        ("names:a,,b", "write names:"),
        ("names:a b", "write names:"),
        ("names:a\x1fb", "write names:"),
        ("affine:bn1", "'affine' takes nothing after it"),
        (f"names:{'x' * 500}", "at most 500 characters"),
    ],
)
def test_malformed_policy_raises_usage_error(text, complaint):
    with pytest.raises(UsageError, match=complaint):
        parse_policy(text)


# --- private values -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "private"),
    [
        ("none", set()),
        ("stats", STATS),
        ("affine", AFFINE),
        ("all", STATS | AFFINE),
        ("names:fc1.weight", {"fc1.weight"}),
        ("names:bn1.*", {spec.name for spec in norm("bn1")}),
        ("names:bn1*", {spec.name for spec in norm("bn1") + norm("bn10")}),
        ("names:fc?.bias,bn10.weight", {"fc1.bias", "bn10.weight"}),
    ],
)
def test_private_names_are_those_of_the_policy(text, private):
    """Each policy of the paper's Table 2 and globs, which match whole names: bn1.* does not match bn10.*."""
    policy = parse_policy(text)
    assert policy.private_names(MODEL) == private
    assert set(policy.patch(MODEL).names) == private
    assert set(policy.public(MODEL).names) == set(MODEL.names) - private


@pytest.mark.parametrize("text", ["affine", "names:bn1.weight,fc1.bias"])
def test_moments_go_with_their_parameters(text):
    policy, extended = parse_policy(text), MODEL.with_moments(MOMENTS)
    private = policy.private_names(MODEL)
    expected = private | {f"{name}:{moment}" for name in private for moment in MOMENTS}
    assert policy.private_names(extended) == expected


def test_statistics_have_no_moments():
    assert parse_policy("stats").private_names(MODEL.with_moments(MOMENTS)) == STATS


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("stats", "the model has no batch norm statistics; use none or names:"),
        ("affine", "the model has no batch norm trainable gamma or beta"),
        ("all", "the model has no batch norm values"),
        ("names:fc1.wieght", r"'fc1.wieght' matches no tensor of the model; did you mean 'fc1.weight'\?"),
        ("names:fc1.*,conv.*", r"'conv.\*' matches no tensor of the model; the model has 'fc1.bias'"),
        ("names:FC1.*", "matches no tensor"),
        ("names:*:exp_avg", "matches no tensor"),
        ("names:*", "keeps every tensor private; nothing is left to federate"),
    ],
)
def test_policy_without_effect_raises_usage_error(text, complaint):
    """A policy that matches nothing is a mistake: silently keeping nothing private would be worse."""
    with pytest.raises(UsageError, match=complaint):
        parse_policy(text).private_names(PLAIN.with_moments(MOMENTS))


def test_pattern_of_frozen_values_alone_names_three_of_them():
    schema = Schema(MODEL.specs, Frozen(("base.a", "base.b", "base.c", "base.d"), "ab" * 32, 16))
    with pytest.raises(UsageError, match=r"'base\.\*' matches only frozen .*'base.a', 'base.b', 'base.c' and 1 more"):
        parse_policy("names:base.*").private_names(schema)


def test_all_is_satisfied_by_one_kind_of_value():
    for role in ("stats", "affine"):
        some = Schema((*WEIGHTS, *(spec for spec in norm("bn1") if spec.role == role)))
        assert parse_policy("all").private_names(some)


# --- split and merge ------------------------------------------------------------------------------


@st.composite
def policies_for(draw, schema: Schema):
    """Any policy that `schema` allows."""
    names = st.lists(st.sampled_from(schema.names), min_size=1).map(lambda chosen: PatchPolicy("names", tuple(chosen)))
    policy = draw(st.sampled_from(["none", "stats", "affine", "all"]).map(PatchPolicy) | names)
    try:
        policy.private_names(schema)
    except UsageError:
        assume(False)
    return policy


@given(st.data())
def test_merge_undoes_split(data):
    """merge(*split(x)) == x for every model, with moments or without, and every policy."""
    schema = data.draw(schemas(min_size=2))
    policy = data.draw(policies_for(schema))
    tensors = data.draw(tensors_of(schema.with_moments(data.draw(st.sampled_from([(), MOMENTS])))))
    assert same(merge(*split(tensors, policy, schema)), tensors)


@given(st.data())
def test_the_parts_fit_the_parts_of_the_schema(data):
    schema = data.draw(schemas(min_size=2))
    policy = data.draw(policies_for(schema))
    extended = schema.with_moments(MOMENTS)
    public, patch = split(data.draw(tensors_of(extended)), policy, extended)
    policy.public(extended).check(public)
    policy.patch(extended).check(patch)
    assert {base_name(name) for name in public}.isdisjoint(base_name(name) for name in patch)
    assert extended.names == tuple(sorted({*public, *patch}))


def test_a_model_schema_is_enough_to_split_moments():
    """Moments of private values are private even if the given schema is that of the model alone."""
    tensors = {"bn1.weight:exp_avg": np.zeros(3, np.float32), "fc1.bias:exp_avg": np.zeros(3, np.float32)}
    public, patch = split(tensors, PatchPolicy("affine"), MODEL)
    assert (set(public), set(patch)) == ({"fc1.bias:exp_avg"}, {"bn1.weight:exp_avg"})


def test_tensor_outside_the_schema_is_never_public():
    with pytest.raises(UnexpectedTensors, match=r"'bn2\.weight' is not in the model's schema"):
        split({"bn2.weight": np.zeros(3, np.float32)}, PatchPolicy("affine"), MODEL)


def test_a_tensor_cannot_be_public_and_private():
    tensor = {"fc1.bias": np.zeros(3, np.float32)}
    with pytest.raises(SchemaMismatch, match=r"'fc1\.bias' is public and private at once"):
        merge(tensor, tensor)
