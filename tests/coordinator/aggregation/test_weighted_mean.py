"""The checks of an update, and the weighted mean."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedpatch.coordinator.aggregation.aggregate import aggregate
from fedpatch.coordinator.aggregation.limit_syntax import Limits, parse_aggregate_rule, parse_norm_bound
from fedpatch.coordinator.aggregation.rebased_updates import Staleness
from fedpatch.coordinator.aggregation.round_updates import RoundBase, RoundUpdates
from fedpatch.coordinator.aggregation.update_norms import squared_distance, squared_norm
from fedpatch.coordinator.aggregation.weighted_mean import WeightedMean
from fedpatch.shared.errors import SchemaMismatch, UpdateRefused
from fedpatch.shared.tensors.arrays import DTYPES, MOMENTS, Array, Schema, TensorSpec
from fedpatch.shared.tensors.common_update_checks import check_private, check_update
from fedpatch.shared.wire.messages import TrainPlan
from fedpatch.shared.wire.reason_codes import RefuseReason
from tests.shared.arbitrary_tensors import FLOATS, same, schemas, tensors_of

SCHEMA = Schema(
    (
        TensorSpec("bn.num_batches_tracked", (), "int64", "stats"),
        TensorSpec("bn.running_mean", (2,), "float32", "stats"),
        TensorSpec("bn.running_var", (2,), "float32", "stats"),
        TensorSpec("fc.weight", (2,), "float32", "weight"),
    )
).with_moments(MOMENTS)
PRIVATE = frozenset({"bn.weight", "bn.bias"})


def update(**changes) -> dict[str, np.ndarray]:
    """Return an acceptable update; `fc_weight=[..]` changes a tensor."""
    tensors = {spec.name: np.ones(spec.shape, spec.dtype) for spec in SCHEMA.specs}
    for name, value in changes.items():
        spec = next(spec for spec in SCHEMA.specs if spec.name.replace(".", "_").replace(":", "_") == name)
        tensors[spec.name] = np.full(spec.shape, value, spec.dtype)
    return tensors


def refusal(tensors, num_examples: int = 5) -> UpdateRefused:
    """Return the error of a refused update."""
    with pytest.raises(UpdateRefused) as caught:
        check_update(tensors, SCHEMA, PRIVATE, num_examples)
    assert caught.value.reason in set(RefuseReason)
    return caught.value


# --- refused updates ------------------------------------------------------------------------------


def test_update_of_the_schema_is_accepted():
    check_update(update(bn_running_mean=-3, fc_weight=-3, fc_weight_exp_avg=-3), SCHEMA, PRIVATE, 1)


@pytest.mark.parametrize("name", ["bn.weight", "bn.weight:exp_avg", "bn.bias:step"])
def test_private_values_are_refused_first(name):
    error = refusal({name: np.array([np.nan])}, num_examples=0)
    assert error.reason == RefuseReason.PRIVATE_VALUE
    assert f"'{name}' must stay on the device" in str(error)


def test_private_names_are_checked_without_values():
    check_private(["fc.weight", "fc.bias:exp_avg"], PRIVATE)
    with pytest.raises(UpdateRefused, match=r"'bn\.bias', 'bn\.weight' must stay"):
        check_private(["fc.weight", "bn.weight", "bn.bias"], PRIVATE)


def test_update_of_other_tensors_is_refused():
    complete = update()
    wrong = [
        {name: array for name, array in complete.items() if name != "fc.weight"},
        complete | {"fc.bias": np.ones(2, np.float32)},
        complete | {"fc.weight": np.ones(3, np.float32)},
        complete | {"fc.weight": np.ones(2)},
    ]
    for error in map(refusal, wrong):
        assert error.reason == RefuseReason.SCHEMA_MISMATCH
        assert "fc." in str(error)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["fc_weight", "bn_running_var", "fc_weight_exp_avg_sq"])
def test_values_that_are_not_finite_are_refused(name, value):
    assert refusal(update(**{name: value})).reason == RefuseReason.NOT_FINITE


@pytest.mark.parametrize("name", ["bn_running_var", "bn_num_batches_tracked", "fc_weight_exp_avg_sq", "fc_weight_step"])
def test_negative_variances_and_counts_are_refused(name):
    refused = refusal(update(**{name: -1}))
    assert refused.reason == RefuseReason.OUT_OF_RANGE
    assert "has a negative value" in str(refused)
    check_update(update(**{name: 0}), SCHEMA, PRIVATE, 1)


@pytest.mark.parametrize("num_examples", [0, -1])
def test_update_without_examples_is_refused(num_examples):
    error = refusal(update(), num_examples)
    assert error.reason == RefuseReason.OUT_OF_RANGE
    assert str(error) == f"trained on {num_examples} examples; at least 1 is needed"


# --- the mean -------------------------------------------------------------------------------------

PAIR = Schema((TensorSpec("n", (), "int64", "stats"), TensorSpec("w", (2,), "float32", "weight")))


def pair(count: int, *weights: float) -> dict[str, np.ndarray]:
    return {"n": np.array(count), "w": np.array(weights, np.float32)}


def test_mean_is_weighted_by_examples():
    """(1 * [0, 4] + 3 * [4, 0]) / 4 = [3, 1]; the integer (1 * 10 + 3 * 11) / 4 = 10.75 is rounded to 11."""
    mean = WeightedMean(PAIR)
    mean.add(pair(10, 0, 4), 1)
    mean.result()["w"] += 100  # updates can be added after a result
    mean.add(pair(11, 4, 0), 3)
    assert same(mean.result(), pair(11, 3, 1))
    assert (mean.num_updates, mean.weight) == (2, 4)


def test_greatest_integer_does_not_wrap_round():
    mean = WeightedMean(PAIR)
    mean.add(pair(2**63 - 1, 0, 0), 1)
    assert mean.result()["n"] == 2**63 - 1024


def test_mean_of_no_updates_raises():
    with pytest.raises(ValueError, match="no updates"):
        WeightedMean(PAIR).result()


@pytest.mark.parametrize(
    ("tensors", "num_examples", "error"),
    [
        (pair(1, 2, 2), 0, UpdateRefused),
        ({"n": np.array(1)}, 1, SchemaMismatch),
        ({"n": np.array(1), "w": np.ones(3, np.float32)}, 1, SchemaMismatch),
    ],
)
def test_refused_update_changes_nothing(tensors, num_examples, error):
    mean = WeightedMean(PAIR)
    mean.add(pair(5, 1, 1), 2)
    with pytest.raises(error):
        mean.add(tensors, num_examples)
    assert same(mean.result(), pair(5, 1, 1))
    assert (mean.num_updates, mean.weight) == (1, 2)


@st.composite
def updates(draw, dtypes=DTYPES):
    """Return a schema and some weighted updates that match it."""
    schema = draw(schemas(min_size=1, dtypes=dtypes))
    update = st.tuples(tensors_of(schema, finite=True), st.integers(1, 1000))
    return schema, draw(st.lists(update, min_size=1, max_size=4))


def mean_of(schema: Schema, weighted) -> dict[str, np.ndarray]:
    """Add all updates in the given order, and return their mean."""
    mean = WeightedMean(schema)
    for tensors, num_examples in weighted:
        mean.add(tensors, num_examples)
    return mean.result()


@given(updates(), st.randoms(use_true_random=False))
def test_mean_does_not_depend_on_the_order(drawn, random):
    schema, weighted = drawn
    shuffled = random.sample(weighted, len(weighted))
    one, other = mean_of(schema, weighted), mean_of(schema, shuffled)
    for spec in schema.specs:
        rounding = np.finfo(spec.dtype).eps if spec.dtype in FLOATS else 1e-12
        np.testing.assert_allclose(
            one[spec.name].astype(float), other[spec.name].astype(float), rtol=2 * rounding, atol=1e-9
        )


@given(updates(dtypes=("float64", "float32", "int32", "uint8", "bool")))
def test_mean_lies_between_least_and_greatest(drawn):
    schema, weighted = drawn
    mean = mean_of(schema, weighted)
    schema.check(mean)
    for name, array in mean.items():
        sent = np.stack([tensors[name].astype(float) for tensors, _ in weighted])
        assert np.all(array >= sent.min(axis=0) - 1e-9)
        assert np.all(array <= sent.max(axis=0) + 1e-9)


@given(updates(dtypes=("float64",)))
def test_mean_equals_exact_sums(drawn):
    schema, weighted = drawn
    total = sum(num_examples for _, num_examples in weighted)
    for name, array in mean_of(schema, weighted).items():
        for index in np.ndindex(array.shape):
            exact = math.fsum(tensors[name][index] * num_examples for tensors, num_examples in weighted) / total
            assert array[index] == pytest.approx(exact, rel=1e-12, abs=1e-9)


def test_mean_of_many_updates_takes_the_memory_of_one_model():
    schema = Schema(tuple(TensorSpec(f"w{i}", (100_000,), "float32", "weight") for i in range(10)))
    mean = WeightedMean(schema)
    tensors = {name: np.ones(100_000, np.float32) for name in schema.names}
    tracemalloc.start()
    try:
        for _ in range(20):
            mean.add(tensors, 3)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * 800_000


@pytest.mark.parametrize("shape", [(), (1,), (65_536,), (65_537,), (300, 700)])
def test_mean_of_a_large_tensor_is_the_same_bits(shape):
    schema = Schema((TensorSpec("w", shape, "float32", "weight"),))
    mean, total = WeightedMean(schema), np.zeros(shape)
    for number, weight in enumerate((3, 700, 123_457)):
        values = np.random.default_rng(number).standard_normal(shape).astype(np.float32).reshape(shape)
        mean.add({"w": values}, weight)
        total = total + values.astype(np.float64) * weight
    assert np.array_equal(mean.result()["w"], (total / (3 + 700 + 123_457)).astype(np.float32))


@pytest.mark.parametrize("shape", [(), (8192,), (8193,), (300, 70)])
def test_measured_update_gives_the_mean_and_the_distance_to_the_bit(shape):
    schema = Schema((TensorSpec("n", (), "int64", "stats"), TensorSpec("w", shape, "float32", "weight")))
    plain, measured = WeightedMean(schema), WeightedMean(schema)
    for number, weight in enumerate((3, 700)):
        drawn = np.random.default_rng(number).standard_normal((2, *shape)).astype(np.float32)
        update = {"n": np.asarray(2**60 + number), "w": drawn[0].reshape(shape)}
        plain.add(update, weight, 0.3)
        found = measured.add_measured(update, weight, 0.3, origins={"w": drawn[1].astype(np.float64)})
        assert found == {"w": squared_distance(update["w"], drawn[1])}
    assert all(np.array_equal(measured.result()[name], values) for name, values in plain.result().items())
    assert measured.num_updates == 2


@pytest.mark.parametrize("shape", [(), (0,), (8192,), (8193,), (300, 70)])
def test_squared_norm_of_a_change_is_its_distance_from_zero_to_the_bit(shape):
    change = np.asarray(np.random.default_rng(1).standard_normal(shape))
    assert squared_norm(change) == squared_distance(change, np.zeros(shape))


def test_square_beyond_float64_is_infinite():
    """A warning would be an error here."""
    schema = Schema((TensorSpec("w", (2,), "float64", "weight"),))
    update, base = {"w": np.full(2, 1e308)}, {"w": np.full(2, -1e308)}
    found = WeightedMean(schema).add_measured(update, 1, origins=base)
    assert (found, squared_distance(update["w"], base["w"])) == ({"w": math.inf}, math.inf)
    assert squared_norm(update["w"]) == math.inf


@given(
    start=st.integers(-(2**63), 2**63 - 1),
    steps=st.lists(st.integers(-(2**20), 2**20), min_size=1, max_size=5),
    bound=st.sampled_from(["off", "auto:2", "clip:1"]),
    rule=st.sampled_from(["mean", "centred", "trimmed:0.2"]),
)
@example(2**60, [1], "auto:2", "mean")
@example(1_764_000_000_000_000_000, [50, 50, 50], "auto:2", "mean")
@example(2**63 - 2, [1, 5], "off", "mean")
@example(-(2**63), [-1, 3], "auto:2", "mean")
def test_integers_advance_by_the_mean_of_their_steps_whatever_their_size(start, steps, bound, rule):
    """Also beyond 2^53, where float64 has no odd numbers; bounds apply to the steps."""
    schema = Schema((TensorSpec("time_ns", (), "int64", "buffer"), TensorSpec("w", (1,), "float32", "weight")))
    most = 2**63 - 1
    ends = [min(max(start + step, -most - 1), most) for step in steps]
    base: dict[str, Array] = {"time_ns": np.array(start, np.int64), "w": np.zeros(1, np.float32)}
    updates = {str(at): base | {"time_ns": np.array(end, np.int64)} for at, end in enumerate(ends)}
    limits = Limits(parse_norm_bound(bound), rule=parse_aggregate_rule(rule))
    plan = TrainPlan("sgd", 0.1, 1)
    found = aggregate(
        RoundUpdates(dict.fromkeys(updates, 1), updates.__getitem__), RoundBase(schema, base, plan), limits
    )
    moved = [end - start for end in ends]
    reached = int(found.mean["time_ns"]) - start
    assert min(moved) - 1 <= reached <= max(moved) + 1
    if len(set(moved)) == 1:
        assert reached == moved[0]
    if bound == "off" and rule == "mean" and abs(start) > 2**53:
        assert reached == int(np.rint(np.mean(moved)))


def test_values_that_are_not_finite_and_not_trained_stay_as_they_are_in_a_mean():
    schema = Schema(
        (TensorSpec("mask", (3,), "float32", "buffer"), TensorSpec("w", (2,), "float32", "weight"))
    ).with_moments(MOMENTS)
    base = {spec.name: np.zeros(spec.shape, spec.dtype) for spec in schema.specs}
    base["mask"] = np.array([0.0, -np.inf, np.nan], np.float32)
    updates = {
        name: base | {"w": np.array([step, -step], np.float32)} for name, step in (("a", 1.0), ("b", 2.0), ("c", 99.0))
    }
    plan = TrainPlan("adam", 0.1, 1, moments=MOMENTS)
    for rule in ("mean", "centred"):
        limits = Limits(parse_norm_bound("auto:2"), rule=parse_aggregate_rule(rule))
        with np.errstate(all="raise"):
            found = aggregate(
                RoundUpdates(dict.fromkeys(updates, 1), updates.__getitem__), RoundBase(schema, base, plan), limits
            )
        np.testing.assert_array_equal(found.mean["mask"], base["mask"])
        assert found.mean["mask"].dtype == np.float32
        assert 0 < found.mean["w"][0] < 3
        assert not any(part.startswith("stats") for parts in found.clipped.values() for part in parts)


def test_stale_update_of_a_model_with_a_mask_joins_the_mean():
    schema = Schema((TensorSpec("mask", (1,), "float32", "buffer"), TensorSpec("w", (1,), "float32", "weight")))
    older, present = (
        {"mask": np.array([-np.inf], np.float32), "w": np.array([value], np.float32)} for value in (0.0, 1.0)
    )
    updates = {"a": older | {"w": np.array([0.5], np.float32)}, "b": present | {"w": np.array([1.5], np.float32)}}
    found = aggregate(
        RoundUpdates(dict.fromkeys(updates, 1), updates.__getitem__, stale={"a": Staleness(1, 1.0, older)}),
        RoundBase(schema, present, TrainPlan("sgd", 0.1, 1)),
        Limits(),
    )
    assert (found.mean["mask"][0], found.mean["w"][0]) == (-np.inf, 1.5)
