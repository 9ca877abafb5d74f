"""The noised mean of clipped updates: its laws, and an audit of its claimed epsilon by canaries."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.coordinator.aggregation.gaussian_noise import normals, private_mean, random_bytes_for, values_of
from fedpatch.coordinator.aggregation.privacy_policy import (
    PrivacyPolicy,
    check_public,
    policy_of,
)
from fedpatch.shared.errors import UsageError
from fedpatch.shared.privacy.gaussian import epsilon_of, mu_of
from fedpatch.shared.privacy.skellam import steps_of
from fedpatch.shared.tensors.arrays import Array, Schema, TensorSpec
from tests.support.canaries import found_epsilon

SCHEMA = Schema((TensorSpec("a", (2, 3), "float64", "weight"), TensorSpec("b", (4,), "float64", "affine")))
BASE = {"a": np.arange(6.0).reshape(2, 3), "b": np.full(4, -2.0)}
POLICY = PrivacyPolicy(noise_multiplier=1.5, clip=0.5)
SILENT = np.zeros(values_of(SCHEMA))


def moved(way: Array) -> dict[str, Array]:
    """Return an update that moves the model by these ten values."""
    return {"a": BASE["a"] + way[:6].reshape(2, 3), "b": BASE["b"] + way[6:]}


def step(updates: list[dict[str, Array]], noise: Array = SILENT, denominator: int = 1) -> Array:
    """Return the change of the model as a flat array."""
    mean = private_mean(updates, noise, schema=SCHEMA, base=BASE, policy=POLICY, denominator=denominator)
    return np.concatenate([(mean[name] - BASE[name]).reshape(-1) for name in ("a", "b")])


ways = st.lists(st.floats(-1e6, 1e6), min_size=10, max_size=10).map(np.array)


@given(ways)
def test_one_update_moves_the_sum_by_the_clip_at_most(way):
    assert np.linalg.norm(step([moved(way)])) <= POLICY.clip * (1 + 1e-9)


@given(st.lists(ways, min_size=1, max_size=5), ways, st.integers(0, 99))
def test_one_more_update_changes_the_release_by_the_clip_at_most(others, way, seed):
    """The sensitivity is the clip, with any noise and any other updates."""
    noise = np.random.default_rng(seed).normal(size=10)
    updates = [moved(one) for one in others]
    change = step([*updates, moved(way)], noise) - step(updates, noise)
    assert np.linalg.norm(change) <= POLICY.clip * (1 + 1e-6)


@given(st.lists(ways, min_size=2, max_size=4), st.integers(0, 99))
def test_order_of_updates_changes_no_bit(some, seed):
    noise = np.random.default_rng(seed).normal(size=10)
    updates = [moved(way) for way in some]
    results = {step(list(order), noise).tobytes() for order in itertools.permutations(updates)}
    assert len(results) == 1


def test_update_within_the_clip_counts_unchanged_to_the_grid():
    way = np.linspace(-0.1, 0.1, 10)
    assert step([moved(way)]) == pytest.approx(way, abs=POLICY.noise_multiplier * POLICY.clip * 2.0**-19)


def test_updates_weigh_alike_and_are_divided_by_the_fixed_denominator():
    ways = [np.full(10, 0.1), np.full(10, -0.05), np.full(10, 0.01)]
    assert step([moved(way) for way in ways], denominator=5) == pytest.approx(sum(ways) / 5, abs=1e-6)


def test_noise_has_the_deviation_of_the_policy():
    noise = normals(np.random.default_rng(1).bytes(random_bytes_for(10)), 10)
    assert step([], noise) == pytest.approx(noise * POLICY.noise_multiplier * POLICY.clip, abs=1e-6)


def test_low_bits_of_the_noise_are_not_in_the_release():
    """The noise is rounded to the grid, as the changes are."""
    noise = np.random.default_rng(2).normal(size=10)
    deviation = POLICY.noise_multiplier * POLICY.clip
    grid = 2.0 ** (np.floor(np.log2(deviation)) - 20) / deviation
    middle = np.rint(noise / grid) * grid
    assert step([], middle + 0.4 * grid).tobytes() == step([], middle - 0.4 * grid).tobytes()


@pytest.mark.parametrize("huge", [1e200, 1e308])
def test_update_whose_norm_overflows_counts_as_nothing_or_its_clip(huge):
    assert np.linalg.norm(step([moved(np.full(10, huge))])) <= POLICY.clip * (1 + 1e-9)


def test_noise_of_another_length_raises_value_error():
    with pytest.raises(ValueError, match="does not fit 10 values"):
        step([], np.zeros(9))
    with pytest.raises(ValueError, match="random bytes do not make"):
        normals(b"", 1)


def test_normals_have_the_moments_and_tails_of_a_standard_normal():
    drawn = normals(np.random.default_rng(7).bytes(random_bytes_for(200_001)), 200_001)
    assert (abs(drawn.mean()) < 0.01, abs(drawn.std() - 1) < 0.01) == (True, True)
    for at in (-2.0, -1.0, 0.0, 1.0, 2.0):
        assert (drawn <= at).mean() == pytest.approx(NormalDist().cdf(at), abs=0.005)
    assert np.corrcoef(drawn[:-1:2], drawn[1::2])[0, 1] == pytest.approx(0, abs=0.01)


def test_normals_of_a_quarter_turn_are_zero_and_the_radius():
    assert normals(bytes(8) + (2**62).to_bytes(8, "little"), 2) == pytest.approx([0.0, math.sqrt(106 * math.log(2))])


@pytest.mark.parametrize("word", [b"\x00", b"\xff"])
def test_normals_of_extreme_bytes_are_finite(word):
    assert np.isfinite(normals(word * 16, 2)).all()


# ---- the audit: 1,000 canaries in one release (Steinke, Nasr and Jagielski 2023), each canary a device with its own axis

CANARIES = 1_000
SIDE = Schema((TensorSpec("w", (CANARIES,), "float64", "weight"),))
ORIGIN = {"w": np.zeros(CANARIES)}
AUDITED = PrivacyPolicy(noise_multiplier=1.0, clip=0.5)


def audited_epsilon(deviation: float, seed: int) -> float:
    """Return a lower bound of the epsilon of a release whose noise is `deviation` times the claimed noise.

    A coin per canary decides whether its update is in the sum; the attacker guesses from the released value on its axis.
    """
    coins = np.random.default_rng(seed)
    present = coins.random(CANARIES) < 0.5
    noise = normals(coins.bytes(random_bytes_for(CANARIES)), CANARIES) * deviation
    updates = ({"w": np.where(np.arange(CANARIES) == one, 3.0, 0.0)} for one in np.flatnonzero(present))
    released = private_mean(updates, noise, schema=SIDE, base=ORIGIN, policy=AUDITED, denominator=CANARIES)["w"]
    return found_epsilon(released * CANARIES > AUDITED.clip / 2, present, AUDITED.delta)


@pytest.mark.parametrize("seed", range(5))
def test_canaries_find_an_epsilon_no_larger_than_claimed_and_not_far_below(seed):
    claimed = AUDITED.epsilon(1)
    assert claimed / 3 < audited_epsilon(1.0, seed) <= claimed


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("deviation", [0.5, 0.0])
def test_canaries_find_noise_that_is_halved_or_left_out(deviation, seed):
    assert audited_epsilon(deviation, seed) > AUDITED.epsilon(1)


# ---- policy


def test_policy_of_dp_off_is_none():
    assert policy_of("off", None, None, 1e-5, None) is None
    assert policy_of("central", 1.6, 1.0, 1e-5, 8.0) == PrivacyPolicy(1.6, 1.0, 1e-5, 8.0)


def test_policy_of_noise_of_the_devices_has_the_grid_of_its_groups():
    policy = policy_of("distributed", 1.7, 1.0, 1e-5, 8.0, 32)
    assert policy == PrivacyPolicy(1.7, 1.0, 1e-5, 8.0, steps=steps_of(1.7, 32))
    terms = policy.terms(100)
    assert (terms.mechanism, terms.steps, terms.denominator) == ("skellam", policy.steps, 100)
    assert (POLICY.terms(7).mechanism, POLICY.terms(7).steps) == ("gaussian", 0)


@pytest.mark.parametrize(("role", "dtype"), [("stats", "float32"), ("buffer", "int64"), ("weight", "int8")])
def test_public_values_that_are_not_trained_floats_are_refused_with_a_remedy(role, dtype):
    schema = Schema((*SCHEMA.specs, TensorSpec("tracked", (1,), dtype, role)))
    with pytest.raises(UsageError, match=r"'tracked' would travel.*--private all"):
        check_public(schema)
    check_public(SCHEMA)


def test_epsilon_of_a_policy_is_that_of_the_accountant():
    assert replace(POLICY, delta=1e-6).epsilon(3) == epsilon_of(mu_of(1.5, 3), 1e-6)


def test_epsilon_of_noise_in_whole_steps_is_greater_than_that_of_gaussian_noise():
    gaussian, coarse, fine = (replace(POLICY, steps=steps).epsilon(3) for steps in (0, 20, 2000))
    assert gaussian < fine < coarse
