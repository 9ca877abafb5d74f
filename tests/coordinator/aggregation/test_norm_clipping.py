"""Bounds of an update: its weight, its norm, its moments and its step counts."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.coordinator.aggregation.aggregate import aggregate
from fedpatch.coordinator.aggregation.aggregate_result import AggregateResult
from fedpatch.coordinator.aggregation.example_weights import example_weights
from fedpatch.coordinator.aggregation.limit_syntax import (
    MAX_NAMED,
    MAX_PARTS,
    ExamplesCap,
    Limits,
    NormBound,
    parse_aggregate_rule,
    parse_examples_cap,
    parse_norm_bound,
)
from fedpatch.coordinator.aggregation.medians import lower_median
from fedpatch.coordinator.aggregation.norm_clipping import Clipped, clip
from fedpatch.coordinator.aggregation.norm_limits import check_norm, limits_of, norm_limits
from fedpatch.coordinator.aggregation.norm_pace import Pace
from fedpatch.coordinator.aggregation.reference_norms import KEPT_REFERENCES, References, references, remembered
from fedpatch.coordinator.aggregation.registered_counts import check_registered
from fedpatch.coordinator.aggregation.round_updates import RoundBase, RoundUpdates
from fedpatch.coordinator.aggregation.update_norms import norm, norms, weights_norm
from fedpatch.shared.errors import UpdateRefused, UsageError
from fedpatch.shared.tensors.arrays import MOMENTS, Schema, TensorSpec
from fedpatch.shared.tensors.moment_bounds import check_moments, check_steps
from fedpatch.shared.wire.messages import TrainPlan
from fedpatch.shared.wire.plan_terms import TrainPhase

WEIGHTS = Schema((TensorSpec("b", (3,), "float32", "weight"), TensorSpec("w", (2, 2), "float32", "weight")))
SCHEMA = Schema((*WEIGHTS.specs, TensorSpec("n", (), "int64", "stats"), TensorSpec("s", (2,), "float32", "stats")))
MOVING = WEIGHTS.with_moments(MOMENTS)
PLAN = TrainPlan("adam", 0.01, 20)


Update = dict[str, np.ndarray]


def fold(
    updates: dict[str, Update],
    counts: int | dict[str, int] = 1,
    *,
    bound: str = "off",
    cap: str = "off",
    schema: Schema = MOVING,
    base: Update | None = None,
    order: Iterable[str] = (),
    past: References | None = None,
) -> AggregateResult:
    """Return the aggregate with a plan of 20 examples per step; the default `base` is a model of zeros."""
    counted = counts if isinstance(counts, dict) else dict.fromkeys(updates, counts)
    return aggregate(
        RoundUpdates({device: counted[device] for device in list(order) or list(updates)}, updates.__getitem__),
        RoundBase(schema, tensors(schema, 0.0) if base is None else base, PLAN, past or {}),
        Limits(parse_norm_bound(bound), parse_examples_cap(cap)),
    )


def tensors_of(update: dict[str, np.ndarray], pulled: Clipped | None) -> dict[str, np.ndarray]:
    return update if pulled is None else pulled.tensors


values = st.floats(-(2.0**60), 2.0**60, width=32)
sane = st.floats(-100, 100, width=32)


def tensors(schema: Schema, value: float) -> dict[str, np.ndarray]:
    return {spec.name: np.full(spec.shape, value, spec.dtype) for spec in schema.specs}


@st.composite
def models(
    draw: st.DrawFn, schema: Schema = SCHEMA, element: st.SearchStrategy[float] = values
) -> dict[str, np.ndarray]:
    """Return any tensors of a schema; integers are small."""
    drawn = {}
    for spec in schema.specs:
        one = st.integers(0, 99) if spec.dtype == "int64" else element
        size = math.prod(spec.shape)
        drawn[spec.name] = np.array(draw(st.lists(one, min_size=size, max_size=size)), spec.dtype).reshape(spec.shape)
    return drawn


limits = st.floats(1e-3, 1e6)


@given(models(), models(), limits)
def test_clip_any_update_is_within_the_bound(base, update, limit):
    pulled = clip(update, base, SCHEMA, {"weights": limit})
    assert norm(tensors_of(update, pulled), base, SCHEMA) <= limit * (1 + 1e-9)


@given(st.lists(sane.filter(lambda value: abs(value) > 1), min_size=1, max_size=9), st.floats(1e-6, 1.0))
def test_clip_in_float64_from_zero_is_within_the_bound_to_the_last_bit(way, limit):
    schema = Schema((TensorSpec("w", (len(way),), "float64", "weight"),))
    pulled = clip({"w": np.array(way)}, tensors(schema, 0.0), schema, {"weights": limit})
    assert pulled is not None
    assert norm(pulled.tensors, tensors(schema, 0.0), schema) <= limit


@given(models(element=sane), models(element=sane), limits)
def test_clip_leaves_an_update_within_the_bound_as_it_is(base, update, limit):
    assert (clip(update, base, SCHEMA, {"weights": limit}) is None) == (norm(update, base, SCHEMA) <= limit)


@given(models(element=sane), models(element=sane), limits)
def test_clipping_keeps_the_direction(base, update, limit):
    """Each value moves by the same share from the global model's value to the update's value, except for rounding."""
    pulled = clip(update, base, SCHEMA, {"weights": limit})
    if pulled is None:
        return
    share = limit / norm(update, base, SCHEMA)
    for name in ("b", "w", "s"):
        start, way, got = (one[name].astype(np.float64) for one in (base, update, pulled.tensors))
        step = np.spacing(np.maximum(np.abs(base[name]), np.abs(pulled.tensors[name]))).astype(np.float64)
        assert (np.abs(got - (start + share * (way - start))) <= 2 * step + 1e-12).all()
        assert ((got - start) * (way - start) >= 0).all()
    assert (pulled.tensors["n"] == update["n"]).all()


@pytest.mark.parametrize("start", [-1e308, 1.0])
def test_clip_of_an_infinite_norm_gives_the_global_model(start):
    schema = Schema((TensorSpec("w", (2,), "float64", "weight"),))
    base, update = tensors(schema, start), tensors(schema, 1e308)
    pulled = clip(update, base, schema, {"weights": 1.0})
    assert pulled is not None
    assert (pulled.tensors["w"] == base["w"]).all()


@given(st.dictionaries(st.text(max_size=3), st.integers(1, 2**53), min_size=1, max_size=9), st.floats(1, 50))
def test_weight_is_at_most_the_cap_and_the_reported_examples(num_examples, factor):
    capped = example_weights(num_examples, ExamplesCap(factor=factor))
    most = math.floor(factor * lower_median(num_examples.values()))
    assert capped == {device: min(count, most) for device, count in num_examples.items()}
    assert min(capped.values()) >= 1


def test_half_of_the_devices_cannot_raise_the_lower_median():
    assert lower_median([10, 12, 2**53, 2**53]) == 12
    with pytest.raises(ValueError, match="median of no values"):
        lower_median([])


def test_huge_factor_caps_nothing():
    assert example_weights({"a": 7, "b": 2**53}, parse_examples_cap("auto:1e308")) == {"a": 7, "b": 2**53}


@given(st.permutations("abcd"), st.sampled_from(["off", "clip:0.5", "auto:2"]))
def test_aggregate_order_of_updates_changes_no_bit(order, bound):
    updates = {device: tensors(MOVING, 0.1 * 3**at) for at, device in enumerate("abcd")}
    counts = {device: 10 ** (at + 1) for at, device in enumerate("abcd")}
    folded, other = (fold(updates, counts, bound=bound, cap="auto:3", order=one) for one in (order, "abcd"))
    assert folded.capped == other.capped == {"c": 300, "d": 300}
    assert folded.bounded() == other.bounded()
    assert bits(folded.mean) == bits(other.mean)


@given(st.permutations("abcde"))
def test_mean_of_updates_that_cancel_out_is_the_same_in_every_order(order):
    """Sums of numbers of very different size depend on the order of summation."""
    sent = zip("abcde", (1e30, 1.0, -1e30, 3e-8, 0.1), strict=True)
    updates = {device: tensors(MOVING, value) for device, value in sent}
    assert bits(fold(updates, order=order).mean) == bits(fold(updates).mean)


def test_cap_on_examples_changes_the_mean():
    folded = fold({"a": tensors(MOVING, 0.0), "b": tensors(MOVING, 1.0)}, {"a": 10, "b": 10**6}, cap="30")
    assert folded.capped == {"b": 30}
    for spec in MOVING.specs:
        if spec.dtype == "float32":
            np.testing.assert_allclose(folded.mean[spec.name], 30 / 40)


def test_auto_bound_clips_moments():
    updates = {device: tensors(MOVING, 0.1) for device in "abcd"}
    updates["d"] = {**updates["d"], "w:exp_avg_sq": np.full((2, 2), 1e10, np.float32)}
    folded, base = fold(updates, bound="auto:2"), tensors(MOVING, 0.0)
    assert {device: set(parts) for device, parts in folded.clipped.items()} == {"d": {"exp_avg_sq"}}
    cohort = {device: norms(one, base, MOVING) for device, one in updates.items()}
    most = norm_limits(references(cohort, {}), NormBound("auto", 2.0))
    assert norms(folded.mean, base, MOVING)["exp_avg_sq"] <= most["exp_avg_sq"]
    assert (folded.mean["w"] == np.float32(0.1)).all()  # the weights are within their bound


TRACKING = Schema((*SCHEMA.specs, TensorSpec("bn.running_var", (2,), "float32", "stats")))
BOUNDS = ("clip:1e9", "reject:1e9", "auto:10")


def bits(update: Update) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in update.items()}


@pytest.mark.parametrize("bound", BOUNDS)
def test_huge_variance_of_one_device_is_clipped(bound):
    """A variance of 1e30 counts as ten times the usual change; the rest of that update stays unchanged."""
    updates = {device: tensors(TRACKING, 1.5) for device in "abcd"}
    updates["d"]["bn.running_var"] = np.full((2,), 1e30, np.float32)
    folded = fold(updates, bound=bound, schema=TRACKING, base=tensors(TRACKING, 1.0))
    assert {device: list(times) for device, times in folded.clipped.items()} == {"d": ["stats bn.running_var"]}
    assert folded.mean["bn.running_var"] == pytest.approx([1 + (3 * 0.5 + 10 * 0.5) / 4] * 2)
    for name in ("b", "w", "s"):
        assert (folded.mean[name] == 1.5).all()


def test_bound_off_clips_nothing():
    base = tensors(TRACKING, 1.0)
    folded = fold({"a": base, "b": {**base, "s": np.full((2,), 1e30, np.float32)}}, schema=TRACKING, base=base)
    assert np.array_equal(folded.mean["s"], np.full(2, 5e29, np.float32))
    assert fold({"a": tensors(MOVING, 1e9)}).clipped == {}


def test_fixed_bound_clips_weights():
    """A model without statistics and counters needs no reference."""
    folded, base = fold({"a": tensors(WEIGHTS, 3.0)}, bound="clip:2", schema=WEIGHTS), tensors(WEIGHTS, 0.0)
    assert norm(folded.mean, base, WEIGHTS) == pytest.approx(2.0)
    assert folded.clipped == {"a": {"weights": pytest.approx(3 * math.sqrt(7) / 2)}}


@given(models(TRACKING, sane), st.lists(models(TRACKING, sane), min_size=1, max_size=5), st.sampled_from(BOUNDS))
def test_clip_any_statistics_are_within_their_bound(base, sent, bound):
    """Each tensor is clipped alone, on the line to the global model; a tensor within its bound keeps every bit."""
    cohort = {str(at): norms(one, base, TRACKING) for at, one in enumerate(sent)}
    limits = norm_limits(references(cohort, {}), parse_norm_bound(bound))
    for update in sent:
        # The limit of the weights is left out, because it would pull back all tensors.
        most = {part: limit for part, limit in limits.items() if part.startswith("stats ")}
        pulled = tensors_of(update, clip(update, base, TRACKING, most))
        for name in ("n", "s", "bn.running_var"):
            part = f"stats {name}"
            assert norm(pulled, base, TRACKING, part) <= most[part] * (1 + 1e-9)
            if norm(update, base, TRACKING, part) <= most[part]:
                assert pulled[name].tobytes() == update[name].tobytes()
            low, high = np.minimum(base[name], update[name]), np.maximum(base[name], update[name])
            assert ((low <= pulled[name]) & (pulled[name] <= high)).all()
        for name in ("b", "w"):
            assert pulled[name].tobytes() == update[name].tobytes()


@given(st.lists(models(TRACKING, sane), min_size=4, max_size=4), st.permutations("abcd"), st.sampled_from(BOUNDS))
def test_aggregate_order_of_statistics_changes_no_bit(sent, order, bound):
    updates = dict(zip("abcd", sent, strict=True))
    one, other = (fold(updates, bound=bound, schema=TRACKING, order=turn) for turn in (order, "abcd"))
    assert bits(one.mean) == bits(other.mean)


@given(
    models(WEIGHTS, sane),
    st.lists(st.lists(models(WEIGHTS, sane), min_size=1, max_size=5), min_size=1, max_size=3),
    st.sampled_from([(0.9, 0.999), (0.5, 0.9), (0.0, 0.5)]),
)
def test_moments_of_any_gradients_are_accepted(_, clients, betas):
    """Moments after any number of steps, averaged over any clients, are accepted. They are float32, as on devices."""
    first, second = (np.float32(beta) for beta in betas)
    sums: dict[str, np.ndarray] = tensors(MOVING, 0.0)
    for gradients in clients:
        own = tensors(MOVING, 0.0)
        for gradient in gradients:
            for name in WEIGHTS.names:
                m, v = f"{name}:exp_avg", f"{name}:exp_avg_sq"
                own[m] = first * own[m] + (1 - first) * gradient[name]
                own[v] = second * own[v] + (1 - second) * gradient[name] ** 2
        sums = {name: (sums[name] + own[name] / len(clients)).astype(own[name].dtype) for name in MOVING.names}
    check_moments(sums, MOVING, TrainPlan("adam", 0.1, 20, beta_1=betas[0], beta_2=betas[1]))


def test_impossible_moments_are_refused():
    wild = tensors(MOVING, 0.0)
    wild["w:exp_avg"][0, 0] = 1.0
    wild["w:exp_avg_sq"][0, 0] = 1e-4
    with pytest.raises(UpdateRefused, match="greater than w:exp_avg_sq allows"):
        check_moments(wild, MOVING, PLAN)
    check_moments(tensors(WEIGHTS, 1e30), WEIGHTS, PLAN)


@pytest.mark.parametrize("gradient", [1e8, 1e11, 1e18])
def test_second_moments_have_no_bound_since_gradients_follow_the_units_of_the_data(gradient):
    sent = tensors(MOVING, 0.0)
    sent |= {name: np.full_like(value, 1e-3 * gradient**2) for name, value in sent.items() if "exp_avg_sq" in name}
    sent["w:exp_avg"][:] = 0.1 * gradient
    check_moments(sent, MOVING, PLAN)


@pytest.mark.parametrize(("beta_1", "beta_2"), [(0.9, 0.75), (0.5, 0.25)])
def test_betas_whose_series_has_no_sum_bound_no_first_moment(beta_1, beta_2):
    """If older gradients weigh no less in the first than in the second moment, any first moment is possible."""
    wild = tensors(MOVING, 0.0) | {"w:exp_avg": np.full((2, 2), 1e6, np.float32)}
    check_moments(wild, MOVING, TrainPlan("adam", 0.1, 20, beta_1=beta_1, beta_2=beta_2))


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.5, 0.9), (0.8, 0.7)])
def test_first_moment_is_bounded_by_the_greatest_that_gradients_give(betas):
    """The gradients that make m / sqrt(v) greatest are accepted; a first moment one fifth larger is refused."""
    (b1, b2), ages = betas, np.arange(500)
    gradients = (b1 / b2) ** ages
    second = (1 - b2) * np.sum(b2**ages * gradients**2)
    first = (1 - b1) * np.sum(b1**ages * gradients) / math.sqrt(second)
    plan = TrainPlan("adam", 0.1, 20, beta_1=b1, beta_2=b2)
    sent = tensors(MOVING, 0.0) | {"w:exp_avg_sq": np.ones((2, 2), np.float32)}
    check_moments(sent | {"w:exp_avg": np.full((2, 2), first, np.float32)}, MOVING, plan)
    with pytest.raises(UpdateRefused, match="w:exp_avg is greater"):
        check_moments(sent | {"w:exp_avg": np.full((2, 2), 1.2 * first, np.float32)}, MOVING, plan)


def test_update_beyond_the_bound_is_refused_with_reject_only():
    with pytest.raises(UpdateRefused) as refused:
        check_norm(2.5, NormBound("reject", 2.0))
    assert refused.value.reason == "norm_bound"
    for bound in (NormBound(), NormBound("clip", 2.0), NormBound("auto", 2.0), NormBound("reject", 2.5)):
        check_norm(2.5, bound)


@pytest.mark.parametrize(
    ("found", "registered", "refused"), [(300, 100, False), (301, 100, True), (2**53, None, False)]
)
def test_examples_far_above_the_registered_are_refused(found, registered, refused):
    """Data grow, so twice the registered number plus a hundred is accepted."""
    try:
        check_registered(found, registered)
    except UpdateRefused as error:
        assert (refused, error.reason) == (True, "num_examples")
    else:
        assert not refused


@pytest.mark.parametrize(
    "text", ["", "clip", "clip:", "clip:0", "clip:-1", "clip:nan", "clip:inf", "reject:x", "auto:0", "Off", "on:3"]
)
def test_malformed_norm_bound_is_a_usage_error(text):
    with pytest.raises(UsageError, match="off, clip:X, reject:X or auto:F"):
        parse_norm_bound(text)


@pytest.mark.parametrize("text", ["", "0", "-5", "auto:0.5", "auto:", "auto:inf", "1e3", "none", "\u0665"])
def test_malformed_examples_cap_is_a_usage_error(text):
    with pytest.raises(UsageError, match="off, a number of examples, or auto:F"):
        parse_examples_cap(text)


def test_bounds_and_caps_are_parsed():
    assert parse_norm_bound("clip:2.5") == NormBound("clip", 2.5)
    assert parse_norm_bound("off") == NormBound()
    assert parse_examples_cap("500") == ExamplesCap(most=500)
    assert parse_examples_cap("1") == ExamplesCap(most=1)
    assert parse_examples_cap("auto:1") == ExamplesCap(factor=1.0)
    assert example_weights({"a": 10, "b": 1000}, parse_examples_cap("500")) == {"a": 10, "b": 500}
    assert example_weights({"a": 10}, parse_examples_cap("off")) == {"a": 10}


@given(st.permutations([1.0, 2.0, 30.0, 4.0, 1e9]))
def test_references_of_three_updates_ignore_the_past(found):
    for count in (3, 4, 5):
        cohort = {str(at): {"weights": value} for at, value in enumerate(found[:count])}
        assert references(cohort, {"weights": (1e-9, 1e-9)}) == {"weights": lower_median(found[:count])}


@pytest.mark.parametrize(
    ("found", "past", "reference"),
    [
        ([1e9], (2.0, 3.0), 3.0),  # one update against two rounds
        ([1e9], (2.0,), 2.0),
        ([1e9], (), 1e9),  # first round
        ([1.0, 1e9], (), 1.0),  # the lower of two
        ([1.0, 1e9], (2.0, 50.0), 2.0),  # one earlier round is used
        ([0.0, 1.0], (2.0,), 1.0),  # a device that changes nothing does not hold the other one back
    ],
)
def test_of_fewer_than_three_updates_the_rounds_before_take_part(found, past, reference):
    cohort = {str(at): {"weights": value} for at, value in enumerate(found)}
    assert references(cohort, {"weights": past} if past else {}) == {"weights": reference}


def test_single_device_raises_its_reference_by_the_factor_at_most():
    past: dict[str, tuple[float, ...]] = {"weights": (1.0, 1.0)}
    bound = NormBound("auto", 3.0)
    for at in range(1, 6):
        usual = references({"a": {"weights": 1e30}}, past)
        most = norm_limits(usual, bound)
        assert most["weights"] <= 3.0**at
        past = remembered({"weights": 1e30}, most, past, 1)
    assert len(past["weights"]) == KEPT_REFERENCES


def test_single_device_in_the_first_round_moves_the_weights_by_the_factor_times_the_model():
    """The first round has no other reference. With a model of zeros there is no reference at all."""
    base, updates = tensors(WEIGHTS, 1.0), {"a": tensors(WEIGHTS, 1e30)}
    folded = fold(updates, 5, bound="auto:3", schema=WEIGHTS, base=base)
    assert norm(folded.mean, base, WEIGHTS) <= 3 * math.sqrt(7) * (1 + 1e-6)
    assert folded.clipped.keys() == {"a"}
    assert not fold(updates, 5, bound="auto:3", schema=WEIGHTS).clipped
    # Another update, or an earlier round, is a reference.
    assert not fold(updates | {"b": updates["a"]}, 5, bound="auto:3", schema=WEIGHTS, base=base).clipped
    past: References = {**folded.references, "weights": (1e30, 1e30)}
    assert not fold(updates, 5, bound="auto:3", schema=WEIGHTS, base=base, past=past).clipped


def test_booleans_have_no_norm():
    schema = Schema((TensorSpec("mask", (2,), "bool", "buffer"), *WEIGHTS.specs))
    assert norms(tensors(schema, 1), tensors(schema, 0), schema) == {"weights": math.sqrt(7)}


def test_norm_of_large_weights_is_finite():
    assert weights_norm(tensors(WEIGHTS, 1e30), WEIGHTS) == pytest.approx(1e30 * math.sqrt(7))


@pytest.mark.parametrize(("updates", "kept"), [(1, 2.0), (2, 5.0)])
def test_reference_of_a_single_update_is_kept_at_its_limit(updates, kept):
    past = {"weights": (7.0, 8.0), "stats s": (9.0,)}
    assert remembered({"weights": 5.0}, {"weights": 2.0}, past, updates) == {**past, "weights": (kept, 7.0)}


@given(st.lists(models(MOVING, sane), min_size=1, max_size=3), st.lists(models(MOVING, sane), min_size=1, max_size=2))
def test_references_of_a_round_do_not_depend_on_the_order(first, second):
    """A round that is aggregated again after a crash gives the same bits and references."""
    found = []
    for turn in (list, reversed):
        past: Any = {}
        for sent in (first, second):
            updates = dict(zip("abc", [_plausible(one) for one in sent], strict=False))
            folded = fold(updates, 40, bound="auto:2", order=list(turn(list(updates))), past=past)
            past = folded.references
        found.append((past, bits(folded.mean), folded.clipped))
    assert found[0] == found[1]
    assert all(len(values) <= KEPT_REFERENCES for values in found[0][0].values())


def _plausible(update: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the update with step counts of two steps."""
    return {
        name: np.float32(2.0) * np.ones_like(array) if name.endswith(":step") else array
        for name, array in update.items()
    }


COUNTED = Schema((*WEIGHTS.specs, TensorSpec("bn.num_batches_tracked", (), "int64", "stats"))).with_moments(MOMENTS)


@pytest.mark.parametrize(("bound", "factor"), [("auto:2", 2), ("clip:1e9", 10), ("reject:1e9", 10)])
@pytest.mark.parametrize("devices", [1, 2, 3, 6])
def test_counters_grow_by_the_plans_steps(bound, factor, devices):
    """With any number of devices: 40 examples in batches of 20 are two steps."""
    base, names = tensors(COUNTED, 0.0), "abcdef"[:devices]
    honest, wild = (
        {name: np.full_like(array, count) if _is_counter(name) else array for name, array in base.items()}
        for count in (2, 10**9)
    )
    updates = {**dict.fromkeys(names, honest), names[-1]: wild}
    folded = fold(updates, 40, bound=bound, schema=COUNTED)
    for name, array in folded.mean.items():
        if name.endswith(":step"):
            assert 0 < float(array) <= 2 + 1e-3
        elif _is_counter(name):
            assert 0 < int(array) <= 2 * factor
    assert set(folded.clipped) == {names[-1]}
    assert len(folded.bounded_devices()[names[-1]]) <= MAX_PARTS


def test_steps_for_more_examples_than_the_cap_are_not_named_beside_the_cap():
    base = tensors(COUNTED, 0.0)
    many = {name: np.full_like(array, 5) if _is_counter(name) else array for name, array in base.items()}
    few = {name: np.ones_like(array) if _is_counter(name) else array for name, array in base.items()}
    updates = {**dict.fromkeys("abc", few), "d": many}
    counts = {**dict.fromkeys("abc", 20), "d": 100}
    capped = fold(updates, counts, bound="auto:2", cap="20", schema=COUNTED)
    assert (capped.clipped, capped.capped) == ({}, {"d": 20})
    assert fold(updates, 20, bound="auto:2", schema=COUNTED).clipped.keys() == {"d"}


@pytest.mark.parametrize("rule", ["mean", "centred"])
def test_reference_of_moments_is_zero_for_steps_without_gradients(rule):
    """Two steps of the plan multiply the moments of the global model by beta^2."""
    base = tensors(MOVING, 3.0)
    update = dict(base)
    for name in WEIGHTS.names:
        update[f"{name}:exp_avg"] = base[f"{name}:exp_avg"] * np.float32(0.9**2)
        update[f"{name}:exp_avg_sq"] = base[f"{name}:exp_avg_sq"] * np.float32(0.999**2)
    limits = Limits(parse_norm_bound("auto:2"), rule=parse_aggregate_rule(rule))
    found = aggregate(
        RoundUpdates(dict.fromkeys("abc", 40), lambda _: update), RoundBase(MOVING, base, PLAN), limits
    ).references
    assert [found[part][0] for part in ("exp_avg", "exp_avg_sq")] == pytest.approx([0.0, 0.0], abs=1e-3)


def _is_counter(name: str) -> bool:
    return name.endswith((":step", "num_batches_tracked"))


@given(st.integers(0, 2**26), st.integers(1, 3000), st.floats(0.0, 0.99))
def test_step_counts_of_honest_devices_are_accepted(begun, steps, fraction):
    """Counted as in torch: one by one in float32, beginning with a mean that can be a fraction."""
    base = tensors(MOVING, 0.0)
    start = np.float32(begun + fraction)
    end = start
    for _ in range(steps):
        end = np.float32(end + np.float32(1.0))
    base = {name: np.full_like(one, start) if name.endswith(":step") else one for name, one in base.items()}
    update = {name: np.full_like(one, end) if name.endswith(":step") else one for name, one in base.items()}
    check_steps(update, base, MOVING, steps)
    own = limits_of({}, base, Pace(steps, {}, steps))
    assert clip(update, base, MOVING, own) is None


def test_step_count_at_the_limit_of_rounding_is_accepted_and_the_next_number_is_refused():
    limit = np.nextafter(np.float32(1), np.float32(2))
    update = tensors(MOVING, 0.0) | {"w:step": np.asarray(limit)}
    check_steps(update, tensors(MOVING, 0.0), MOVING, 1)
    with pytest.raises(UpdateRefused, match="w:step changes by"):
        check_steps(update | {"w:step": np.nextafter(limit, np.float32(2))}, tensors(MOVING, 0.0), MOVING, 1)


@pytest.mark.parametrize("sent", [-1.0, 8.5, 1e9])
def test_step_counts_that_no_plan_leads_to_are_refused(sent):
    base = tensors(MOVING, 4.0)
    update = {**base, "w:step": np.array(4.0 + sent, np.float32)}
    with pytest.raises(UpdateRefused, match=r"w:step changes by .* and the plan has 8 steps"):
        check_steps(update, base, MOVING, 8)


def test_pace_makes_norms_of_many_and_few_examples_comparable():
    few, many = (Pace.of(PLAN, count) for count in (20, 2000))
    for pace, steps in ((few, 1), (many, 100)):
        found = {"count n": 3.0 * steps, "weights": 30.0, "exp_avg": 1 - 0.9**steps, "exp_avg_sq": 1 - 0.999**steps}
        assert pace.per_unit(found) == pytest.approx(
            {"count n": 3.0, "weights": 30.0, "exp_avg": 1.0, "exp_avg_sq": 1.0}
        )


def test_moments_do_not_decay_by_steps_that_train_private_tensors_only():
    phases = (TrainPhase("private", 1, steps=3), TrainPhase("public", 1, steps=5))
    pace = Pace.of(replace(PLAN, phases=phases), 100)
    assert pace.decays == {"exp_avg": PLAN.beta_1**5, "exp_avg_sq": PLAN.beta_2**5}


def test_bound_of_a_counter_is_a_multiple_of_its_reference_but_at_least_of_one_a_step():
    usual = {"count few": 0.5, "count many": 3.0}
    assert norm_limits(usual, NormBound("auto", 2.0)) == {"count few": 2.0, "count many": 6.0}


def test_second_moments_that_were_pushed_up_are_no_measure_of_the_next_push():
    """In each round one of four devices sends an excessive value; the mean stays within the bound of honest gradients."""
    steps, honest = 2, 1.0
    state = tensors(MOVING, 0.0)
    past: References = {}
    for _ in range(200):
        kind, foe = dict(state), dict(state)
        for second in (f"{name}:exp_avg_sq" for name in WEIGHTS.names):
            kind[second] = np.asarray(state[second] * 0.999**steps + (1 - 0.999**steps) * honest, np.float32)
            foe[second] = np.full_like(state[second], 1e15)
        folded = fold({**dict.fromkeys("abc", kind), "d": foe}, 40, bound="auto:2", base=state, past=past)
        assert folded.clipped.keys() == {"d"}
        state, past = folded.mean, folded.references
    # One of four devices contributes four times the mean square of honest gradients.
    assert max(float(state[f"{name}:exp_avg_sq"].max()) for name in WEIGHTS.names) <= (3 + 4) / 4 * honest * 1.5


def test_record_names_sixteen_devices_and_four_parts_of_each():
    far = {f"stats {at}": float(at + 2) for at in range(9)}
    folded = AggregateResult({}, {f"d{at:02}": far for at in range(40)}, {"d00": 5})
    named = folded.bounded_devices()
    assert list(named) == [f"d{at:02}" for at in range(MAX_NAMED)]
    assert named["d00"] == ["num_examples", "stats 8", "stats 7", "stats 6"]
    assert named["d01"] == ["stats 8", "stats 7", "stats 6", "stats 5"]
    assert folded.bounded() == {"norm": 40, "num_examples": 1}


@pytest.mark.parametrize(("last", "readings"), [(1.1, 1), (2.0, 1), (99.0, 2)])  # the bound is 2
def test_updates_are_read_again_only_if_one_is_beyond_its_bound(last, readings):
    updates = {device: tensors(WEIGHTS, value) for device, value in (("a", 1.0), ("b", 1.0), ("c", last))}
    read: list[str] = []

    def reader(device: str) -> Update:
        read.append(device)
        return updates[device]

    limits = Limits(parse_norm_bound("auto:2"))
    aggregate(RoundUpdates(dict.fromkeys(updates, 1), reader), RoundBase(WEIGHTS, tensors(WEIGHTS, 0.0), PLAN), limits)
    assert read == ["a", "b", "c"] * readings
