"""A moved base: other values by a hair, the same for the same salt, in trained tensors only."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.coordinator.aggregation.moved_base import MOST_STEPS, MOVED_VALUES, moved
from fedpatch.shared.tensors.arrays import Schema, TensorSpec, values_digest

SCHEMA = Schema(
    (
        TensorSpec("count", (), "int64", "stats"),
        TensorSpec("mean", (3,), "float32", "stats"),
        TensorSpec("w", (20, 30), "float32", "weight"),
        TensorSpec("z", (16,), "float16", "weight"),
    )
)


def values(seed):
    drawn = np.random.default_rng(seed)
    return {
        "count": np.array(3, np.int64),
        "mean": np.ones(3, np.float32),
        "w": drawn.normal(size=(20, 30)).astype(np.float32),
        "z": np.zeros(16, np.float16),
    }


@given(seed=st.integers(0, 99), salts=st.lists(st.binary(max_size=16), min_size=2, max_size=2, unique=True))
def test_each_salt_gives_values_of_its_own_and_the_same_salt_the_same(seed, salts):
    bases = [values(seed), *(moved(values(seed), SCHEMA, salt) for salt in salts)]
    assert len({values_digest(base, SCHEMA) for base in bases}) == 3
    again = moved(values(seed), SCHEMA, salts[0])
    assert values_digest(again, SCHEMA) == values_digest(bases[1], SCHEMA)


@given(seed=st.integers(0, 99), salt=st.binary(max_size=16))
def test_few_trained_values_move_by_a_few_steps_of_their_type(seed, salt):
    before = values(seed)
    after = moved(before, SCHEMA, salt)
    assert after["count"] is before["count"] and after["mean"] is before["mean"]
    changed = 0
    for name in ("w", "z"):
        assert after[name].dtype == before[name].dtype and after[name].shape == before[name].shape
        step = np.maximum(np.spacing(np.abs(before[name])), np.finfo(before[name].dtype).tiny).astype(np.float64)
        distance = np.abs(after[name].astype(np.float64) - before[name].astype(np.float64))
        assert np.all(distance <= (MOST_STEPS + 1) * step)
        changed += int(np.count_nonzero(distance))
    assert changed == MOVED_VALUES


def test_values_move_up_and_down_by_each_number_of_steps():
    schema = Schema((TensorSpec("w", (600,), "float32", "weight"),))
    distance = moved({"w": np.full(600, 1.5, np.float32)}, schema, b"1")["w"] - np.float32(1.5)
    steps = set(range(1, MOST_STEPS + 1))
    assert set((distance / np.spacing(np.float32(1.5))).tolist()) == {0} | steps | {-step for step in steps}


def test_each_value_of_a_small_model_moves():
    schema = Schema(tuple(TensorSpec(name, (2,), "float32", "weight") for name in "abc"))
    after = moved({name: np.ones(2, np.float32) for name in "abc"}, schema, b"1")
    assert all((values != 1).all() for values in after.values())


def test_model_without_trained_values_stays():
    schema = Schema((TensorSpec("mean", (3,), "float32", "stats"),))
    before = {"mean": np.ones(3, np.float32)}
    assert moved(before, schema, b"1")["mean"] is before["mean"]
