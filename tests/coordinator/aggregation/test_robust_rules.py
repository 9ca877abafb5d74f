"""Laws of the aggregation rules: centred clipping, trimmed mean."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.coordinator.rules import RULES, Updates
from fedpatch.coordinator.aggregation.aggregate import aggregate
from fedpatch.coordinator.aggregation.aggregate_result import AggregateResult
from fedpatch.coordinator.aggregation.limit_syntax import (
    AggregateRule,
    ExamplesCap,
    Limits,
    NormBound,
    parse_aggregate_rule,
)
from fedpatch.coordinator.aggregation.robust_rules import (
    BLOCK_BYTES,
    CENTRING_PASSES,
    Changes,
    clip_centred,
    trim,
)
from fedpatch.coordinator.aggregation.round_updates import RoundBase, RoundUpdates
from fedpatch.shared.errors import UsageError
from fedpatch.shared.tensors.arrays import Array, Schema, TensorSpec
from fedpatch.shared.wire.messages import TrainPlan

ROBUST = ("centred", "centred:0.5", "trimmed:0.2")
SCHEMA = Schema(
    (
        TensorSpec("bn.running_var", (2,), "float32", "stats"),
        TensorSpec("layer.bias", (2,), "float32", "weight"),
        TensorSpec("layer.weight", (2, 3), "float32", "weight"),
    )
)
WEIGHTS = SCHEMA.subset({"layer.bias", "layer.weight"})
PLAN = TrainPlan("sgd", 0.1, 20)
Update = dict[str, Array]

values = st.floats(-100, 100, width=32)


def model(*numbers: float) -> Update:
    """Return a model whose eight trained values repeat these numbers; the statistics are 1."""
    flat = np.resize(np.array(numbers, np.float32), 8)
    return {
        "bn.running_var": np.ones(2, np.float32),
        "layer.bias": flat[:2],
        "layer.weight": flat[2:].reshape(2, 3),
    }


ZERO = model(0.0)
models = st.lists(values, min_size=8, max_size=8).map(lambda numbers: model(*numbers))
fleets = st.dictionaries(st.text("abcdef", min_size=1, max_size=3), st.tuples(models, st.integers(1, 500)), min_size=1)


def combine(
    updates: dict[str, Update],
    rule: str,
    counts: dict[str, int] | None = None,
    norm: NormBound | None = None,
    base: Update = ZERO,
    **changes: Any,
) -> AggregateResult:
    return aggregate(
        RoundUpdates(counts or dict.fromkeys(updates, 1), updates.__getitem__),
        RoundBase(SCHEMA, base, PLAN),
        Limits(norm or NormBound(), ExamplesCap(), parse_aggregate_rule(rule)),
        **changes,
    )


def flat(tensors: Update) -> Array:
    return np.concatenate([tensors[name].astype(np.float64).reshape(-1) for name in WEIGHTS.names])


@given(update=models, counts=st.dictionaries(st.sampled_from("abcdefg"), st.integers(1, 1000), min_size=1))
@pytest.mark.parametrize("rule", [one for one in ROBUST if one != "centred:0.5"])
def test_equal_updates_are_their_own_aggregate(rule, update, counts):
    found = combine(dict.fromkeys(counts, update), rule, counts)
    assert np.allclose(flat(found.mean), flat(update), rtol=1e-6, atol=1e-6)


@given(fleet=fleets)
@pytest.mark.parametrize("rule", ROBUST)
def test_order_of_the_devices_changes_no_bit(rule, fleet):
    updates = {device: update for device, (update, _) in fleet.items()}
    counts = {device: count for device, (_, count) in fleet.items()}
    forward = combine(updates, rule, counts)
    backward = combine(updates, rule, dict(reversed(counts.items())))
    assert all(np.array_equal(forward.mean[name], backward.mean[name]) for name in SCHEMA.names)
    assert forward.pulls == backward.pulls


@given(fleet=fleets, radius=st.floats(0.01, 50))
def test_clip_centred_moves_by_at_most_the_radius_in_each_pass(fleet, radius):
    updates = {device: update for device, (update, _) in fleet.items()}
    changes = Changes(dict.fromkeys(updates, 1.0), updates.__getitem__, ZERO, SCHEMA)
    moved = math.sqrt(sum(float(np.sum(values**2)) for values in clip_centred(changes, radius).step.values()))
    assert moved <= CENTRING_PASSES * radius * (1 + 1e-9)


def test_radius_of_the_rule_bounds_the_step_of_a_round():
    found = combine({"a": model(100.0)}, "centred:0.5")
    assert np.linalg.norm(flat(found.mean)) == pytest.approx(CENTRING_PASSES * 0.5)


def test_radius_without_a_number_is_that_of_the_second_pass_in_the_third_one():
    """Radii 1.5, 1.1 and 1.1: the centre goes from 0 to 1.1, 1.38 and 1.548."""
    one = Schema((TensorSpec("w", (1,), "float32", "weight"),))
    updates = {str(value): {"w": np.array([value], np.float32)} for value in (0.0, 1.0, 1.5, 10.0, 12.0)}
    changes = Changes(dict.fromkeys(updates, 1.0), updates.__getitem__, {"w": np.zeros(1, np.float32)}, one)
    assert clip_centred(changes).step["w"] == pytest.approx([1.548])


@given(
    honest=st.lists(models, min_size=4, max_size=8),
    bad=models,
    scale=st.sampled_from([1.0, 1e3, 1e6]),
)
def test_trimmed_mean_stays_within_the_honest_extremes(honest, bad, scale):
    """With 20 %, one bad device of five or more is left out for each value in which it is extreme."""
    updates = {f"honest-{number}": update for number, update in enumerate(honest)}
    updates["bad"] = {name: array * np.float32(scale) for name, array in bad.items()}
    found = flat(combine(updates, "trimmed:0.2").mean)
    all_honest = np.array([flat(update) for update in honest])
    slack = 1e-4 * (1 + np.abs(all_honest).max())
    assert (found >= all_honest.min(axis=0) - slack).all()
    assert (found <= all_honest.max(axis=0) + slack).all()


@given(first=models, second=models)
@pytest.mark.parametrize("rule", ROBUST)
def test_one_or_two_devices_have_an_aggregate_between_the_global_model_and_their_updates(rule, first, second):
    alone = combine({"a": first}, rule).mean
    both = combine({"a": first, "b": second}, rule).mean
    longest = max(np.linalg.norm(flat(first)), np.linalg.norm(flat(second)))
    for found in (alone, both):
        assert np.linalg.norm(flat(found)) <= longest * (1 + 1e-6) + 1e-6


@pytest.mark.parametrize("rule", ["centred", "trimmed:0.2"])
def test_one_far_update_of_five_moves_a_robust_rule_less_than_the_mean(rule):
    updates = {f"honest-{number}": model(1.0 + number / 10) for number in range(4)} | {"bad": model(-1000.0)}
    honest = flat(model(1.15))
    plain = np.abs(flat(combine(updates, "mean").mean) - honest).max()
    robust = combine(updates, rule)
    assert plain > 100
    assert np.abs(flat(robust.mean) - honest).max() < 1.0
    assert max(robust.pulls, key=robust.pulls.__getitem__) == "bad"


@pytest.mark.parametrize(("beta", "devices"), [(0.29, 100), (0.1, 10), (0.35, 180)])
def test_trim_leaves_out_the_whole_share_of_the_devices(beta, devices):
    bad = round(beta * devices)
    updates = {f"{number:03}": model(-1e6 if number < bad else 1.0) for number in range(devices)}
    assert np.allclose(flat(combine(updates, f"trimmed:{beta}").mean), 1.0)


@pytest.mark.parametrize("rule", ["centred", "trimmed:0.2"])
@pytest.mark.parametrize("length", [1e4, 1e10, 1e30])
def test_far_update_moves_a_robust_rule_by_less_than_the_honest_steps_at_any_length(rule, length):
    updates = {f"honest-{number}": model(1.0 + number / 100) for number in range(9)} | {"bad": model(-length)}
    found = flat(combine(updates, rule).mean)
    assert np.abs(found - 1.0).max() < 0.2


@pytest.mark.parametrize("rule", ["centred", "trimmed:0.45"])
def test_far_updates_of_four_devices_of_nine_move_a_large_model_by_less_than_two_honest_steps(rule):
    honest = {f"honest-{number}": model(1001.0 + number / 100) for number in range(5)}
    bad = {f"bad-{number}": model(-1e10) for number in range(4)}
    found = flat(combine(honest | bad, rule, base=model(1000.0)).mean)
    assert np.abs(found - 1000.0).max() < 2


@pytest.mark.parametrize("scale", [2.0**-20, 2.0**20])
@pytest.mark.parametrize("rule", ["centred", "trimmed:0.2"])
def test_rule_without_a_radius_follows_the_scale_of_the_updates(rule, scale):
    ways = {f"honest-{number}": 1.0 + number / 10 for number in range(6)} | {"bad": -50.0}
    plain, scaled = (
        combine({device: model(way * factor) for device, way in ways.items()}, rule) for factor in (1.0, scale)
    )
    assert flat(scaled.mean) == pytest.approx(flat(plain.mean) * scale, rel=1e-5)
    assert scaled.pulls == pytest.approx(plain.pulls, abs=1e-5)


def test_centred_gives_honest_weight_to_more_examples():
    updates = {"few": model(1.0), "many": model(1.1)}
    counts = {"few": 1, "many": 99}
    assert np.allclose(flat(combine(updates, "centred", counts).mean), 1.1, atol=0.02)


def test_statistics_are_averaged_with_the_share_that_an_update_counts():
    updates = {device: model(1.0) for device in "abc"} | {"far": model(1e6)}
    updates["far"]["bn.running_var"] = np.full(2, 1e6, np.float32)
    found = combine(updates, "centred")
    assert found.pulls["far"] > 0.99999
    assert (found.mean["bn.running_var"] < 3).all()


def test_pulls_multiply_the_norm_bound_and_the_rule():
    updates = {device: model(1.0) for device in "abc"} | {"far": model(100.0)}
    found = combine(updates, "centred", norm=NormBound("auto", 2.0))
    assert found.clipped["far"]["weights"] == pytest.approx(50.0)
    assert 1 - found.pulls["far"] < 1 / 50
    assert "a" not in found.pulls


def test_pull_of_the_norm_bound_alone_is_the_share_beyond_it():
    updates = {device: model(1.0) for device in "abc"} | {"far": model(100.0)}
    assert combine(updates, "mean", norm=NormBound("auto", 2.0)).pulls == {"far": pytest.approx(1 - 1 / 50)}


def test_trim_in_small_blocks_gives_the_bits_of_one_block(monkeypatch):
    updates = {str(number): model(*np.random.default_rng(number).normal(size=8)) for number in range(7)}
    changes = Changes(dict.fromkeys(updates, 1.0), updates.__getitem__, ZERO, SCHEMA)
    whole = trim(changes, 0.2, lambda shape: np.empty(shape, np.float32))
    monkeypatch.setattr("fedpatch.coordinator.aggregation.robust_rules.BLOCK_BYTES", 1)
    blocks = trim(changes, 0.2, lambda shape: np.empty(shape, np.float32))
    assert all(np.array_equal(whole.step[name], blocks.step[name]) for name in whole.step)
    assert whole.shares == blocks.shares


def test_trim_with_its_table_in_a_file_gives_the_bits_of_one_in_memory(tmp_path: Path):
    def in_file(shape: tuple[int, int]) -> Array:
        return np.memmap(tmp_path / "table", np.float32, "w+", shape=shape)

    base = model(*np.random.default_rng(9).normal(size=8) / 1000)
    updates = {str(number): model(*np.random.default_rng(number).normal(size=8)) for number in range(7)}
    memory = combine(updates, "trimmed:0.2", base=base)
    file = combine(updates, "trimmed:0.2", base=base, scratch=in_file)
    assert flat(memory.mean).tobytes() == flat(file.mean).tobytes()


def test_trim_adds_values_in_float64():
    """In float32 the sum would be rounded."""
    updates = {str(place): model(value) for place, value in enumerate((2.0**24, 2.0**24, 3.0))}
    changes = Changes(dict.fromkeys(updates, 1.0), updates.__getitem__, ZERO, SCHEMA)
    step = trim(changes, 0.1, lambda shape: np.empty(shape, np.float32)).step
    assert step["layer.bias"].tolist() == [(2**25 + 3) / 3] * 2


@given(numbers=st.lists(values, min_size=4, max_size=9))
def test_trim_counts_equal_values_of_all_devices_alike(numbers):
    """A value that no device changes reduces no device's share, in any order of the names."""
    updates = {str(place): model(number, *[0.0] * 7) for place, number in enumerate(numbers)}
    changes = Changes(dict.fromkeys(updates, 1.0), updates.__getitem__, ZERO, SCHEMA)
    shares = trim(changes, 0.25, lambda shape: np.empty(shape, np.float32)).shares
    assert all(share in (0.875, 1.0) for share in shares.values())


@pytest.mark.parametrize("rule", ROBUST)
def test_model_without_public_trained_values_has_the_mean_of_its_statistics(rule):
    statistics = SCHEMA.subset({"bn.running_var"})
    updates = {str(value): {"bn.running_var": np.full(2, value, np.float32)} for value in (1.0, 2.0, 6.0)}
    limits, base = Limits(rule=parse_aggregate_rule(rule)), {"bn.running_var": np.ones(2, np.float32)}
    found = aggregate(
        RoundUpdates(dict.fromkeys(updates, 1), updates.__getitem__), RoundBase(statistics, base, PLAN), limits
    )
    assert found.mean["bn.running_var"].tolist() == [3.0, 3.0]


@pytest.mark.medium
@pytest.mark.matrix
@pytest.mark.parametrize("rule", RULES)
def test_memory_of_a_rule_is_that_of_the_model_for_10_and_1000_updates(rule):
    """Each update has 80 kB; names, weights and distances take about a thousandth of that."""
    updates = Updates(20_000)
    few, many = (updates.peak_bytes(rule, count) for count in (10, 1000))
    block = 2 * BLOCK_BYTES if rule.startswith("trimmed") else 0
    assert many < few + 1000 * 2048 + block


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("mean", AggregateRule()),
        ("centred:1.5", AggregateRule("centred", radius=1.5)),
        ("trimmed:0.1", AggregateRule("trimmed", beta=0.1)),
    ],
)
def test_parse_aggregate_rule_reads_the_number_after_the_name(text, rule):
    assert parse_aggregate_rule(text) == rule


@pytest.mark.parametrize(
    "text", ["", "median", "mean:1", "centred:0", "centred:nan", "bucketed", "trimmed", "trimmed:0.5"]
)
def test_parse_aggregate_rule_refuses_any_other_text(text):
    with pytest.raises(UsageError, match="is no rule"):
        parse_aggregate_rule(text)


def test_result_names_at_most_sixteen_devices_and_has_quantiles_over_all_updates():
    pulls = {f"device-{number:02}": number / 20 for number in range(1, 20)}
    found = AggregateResult({}, pulls=pulls, num_updates=21)
    assert list(found.farthest_pulls()) == [f"device-{number:02}" for number in range(19, 3, -1)]
    assert found.pull_quantiles() == {"p50": 0.45, "p90": 0.85, "max": 0.95}
    assert AggregateResult({}, num_updates=21).pull_quantiles() == {}
