"""Updates of earlier models: their rebase to the present model, and their weight in the mean."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedpatch.coordinator.aggregation.aggregate import aggregate
from fedpatch.coordinator.aggregation.limit_syntax import Limits, parse_examples_cap, parse_norm_bound
from fedpatch.coordinator.aggregation.rebased_updates import Staleness, rebase
from fedpatch.coordinator.aggregation.round_updates import RoundBase, RoundUpdates
from fedpatch.shared.tensors.arrays import MOMENTS, Schema, TensorSpec
from fedpatch.shared.wire.messages import TrainPlan

SCHEMA = Schema(
    (
        TensorSpec("w", (3,), "float32", "weight"),
        TensorSpec("n.running_var", (3,), "float32", "stats"),
        TensorSpec("n.num_batches_tracked", (), "int64", "stats"),
    )
)
PLAN = TrainPlan("sgd", 0.1, 20)
OPEN = Limits(parse_norm_bound("off"), parse_examples_cap("off"))


def model(weight: float, variance: float = 1.0, batches: int = 0) -> dict[str, np.ndarray]:
    return {
        "w": np.full(3, weight, np.float32),
        "n.running_var": np.full(3, variance, np.float32),
        "n.num_batches_tracked": np.asarray(batches, np.int64),
    }


def mean_of(
    updates: dict[str, dict[str, np.ndarray]],
    base: dict[str, np.ndarray],
    stale: dict[str, Staleness],
    limits: Limits = OPEN,
):
    counts = dict.fromkeys(updates, 1)
    return aggregate(RoundUpdates(counts, updates.__getitem__, stale=stale), RoundBase(SCHEMA, base, PLAN), limits).mean


def test_change_of_weights_and_steps_of_counters_are_added_to_the_present_model():
    moved = rebase(model(2.0, batches=7), model(1.5, batches=5), model(10.0, batches=9), SCHEMA)
    assert moved["w"].tolist() == [10.5] * 3
    assert moved["n.num_batches_tracked"] == 11


def test_rebase_to_its_own_base_keeps_small_weights_that_replace_large_ones():
    moved = rebase(model(1e-8), model(1.0), model(1.0), SCHEMA)
    assert moved["w"] == pytest.approx([1e-8] * 3, rel=1e-6)


def test_statistics_stay_those_of_the_device():
    assert (
        rebase(model(0.0, 0.1), model(0.0, 5.0), model(0.0, 0.2), SCHEMA)["n.running_var"].tolist()
        == [np.float32(0.1)] * 3
    )


def test_booleans_stay_those_of_the_device_and_integers_stay_within_their_dtype():
    schema = Schema((TensorSpec("mask", (2,), "bool", "buffer"), TensorSpec("level", (2,), "uint8", "buffer")))

    def buffers(mask: list[bool], level: list[int]) -> dict[str, np.ndarray]:
        return {"mask": np.array(mask), "level": np.array(level, np.uint8)}

    update, old, present = (
        buffers([True, False], [1, 250]),
        buffers([True] * 2, [5, 100]),
        buffers([False] * 2, [2, 200]),
    )
    moved = rebase(update, old, present, schema)
    assert (moved["mask"].tolist(), moved["level"].tolist()) == ([True, False], [0, 255])
    assert [array.dtype for array in moved.values()] == [np.uint8, np.bool_]


@given(arrays(np.float32, 3, elements=st.floats(-1e3, 1e3, width=32)))
def test_update_of_the_present_model_is_moved_nowhere(values):
    update, base = {**model(0.0), "w": values}, model(1.0)
    assert np.allclose(rebase(update, base, base, SCHEMA)["w"], values, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("bound", ["off", "auto:10"])
def test_stale_update_counts_as_its_change_with_less_weight(bound):
    base, old = model(4.0), model(0.0)
    updates = {"a": model(5.0), "b": model(3.0)}
    mean = mean_of(updates, base, {"b": Staleness(3, 0.5, old)}, Limits(parse_norm_bound(bound)))
    # Update a moves the weights by 1 and has weight 1; update b moves them by 3 and has weight 1/2.
    assert np.allclose(mean["w"], 4.0 + (1.0 + 1.5) / 1.5)


def test_fresh_updates_give_the_same_bits_with_and_without_ages():
    base, updates = model(0.3), {"a": model(0.7), "b": model(0.1)}
    plain, aged = mean_of(updates, base, {}), mean_of(updates, base, {"b": Staleness(0, 1.0, base)})
    assert all(plain[name].tobytes() == aged[name].tobytes() for name in plain)


def test_order_of_arrival_changes_no_bit():
    base, stale = model(0.3), {"b": Staleness(1, 0.7, model(0.2))}
    updates = {"a": model(0.7), "b": model(0.1), "c": model(0.5)}
    other = dict(reversed(updates.items()))
    one, two = mean_of(updates, base, stale), mean_of(other, base, stale)
    assert all(one[name].tobytes() == two[name].tobytes() for name in one)


def test_step_count_of_a_moment_advances_by_the_steps_of_the_device_and_moments_stay_its_own():
    schema = Schema((TensorSpec("w", (1,), "float32", "weight"),)).with_moments(MOMENTS)

    def moments(weight: float, moment: float, steps: float) -> dict[str, np.ndarray]:
        values = {"w": weight, "w:exp_avg": moment, "w:exp_avg_sq": moment, "w:step": steps}
        return {spec.name: np.full(spec.shape, values[spec.name], spec.dtype) for spec in schema.specs}

    moved = rebase(moments(2.0, 0.5, 7.0), moments(1.5, 0.25, 5.0), moments(10.0, 4.0, 9.0), schema)
    found = {name: float(value.reshape(-1)[0]) for name, value in moved.items()}
    assert found == {"w": 10.5, "w:exp_avg": 0.5, "w:exp_avg_sq": 0.5, "w:step": 11.0}
    assert moved["w:step"].dtype == np.float32
