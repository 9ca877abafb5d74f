"""The vector and the noise of a device in a masked round with differential privacy, and an audit of the sum of a group."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.shared.masking.masked_blob import MaskedUpdate, add_masks, mask_blob, read_masked_blob, write_masked_blob
from fedpatch.shared.masking.private_vector import PrivateLayout, make_private_vector, signed_sum, step_of_sum
from fedpatch.shared.masking.skellam_noise import skellam_values
from fedpatch.shared.masking.unmasking import Mask
from fedpatch.shared.privacy.skellam import Release, SkellamNoise, epsilon_of_releases
from fedpatch.shared.tensors.arrays import Array, Schema, TensorSpec
from tests.support.canaries import found_epsilon

SCHEMA = Schema((TensorSpec("a", (2, 3), "float32", "weight"), TensorSpec("b", (4,), "float32", "affine")))
LAYOUT = PrivateLayout(SCHEMA, clip=0.5, steps=300)


def parts(flat: Array) -> dict[str, Array]:
    """Ten values as the tensors of SCHEMA."""
    return {"a": flat[:6].reshape(2, 3), "b": flat[6:]}


ways = st.lists(st.floats(-1e6, 1e6), min_size=10, max_size=10).map(np.array)


class TestVector:
    @given(ways, st.integers(1, 4_000), st.floats(1e-6, 1e6), st.integers(0, 9))
    def test_norm_is_at_most_the_clip_in_steps(self, way, steps, clip, seed):
        codes = signed_sum(make_private_vector(PrivateLayout(SCHEMA, clip, steps), parts(way), seed))
        assert int(np.dot(codes, codes)) <= steps**2

    @given(st.integers(1, 60), st.integers(0, 9))
    def test_norm_is_at_most_the_clip_where_rounding_alone_would_exceed_it(self, steps, seed):
        wide = Schema((TensorSpec("w", (5_000,), "float32", "weight"),))
        step = {"w": np.random.default_rng(seed).normal(size=5_000)}
        codes = signed_sum(make_private_vector(PrivateLayout(wide, 1.0, steps), step, seed))
        assert int(np.dot(codes, codes)) <= steps**2

    def test_rounding_is_right_on_average(self):
        way = np.linspace(-0.1, 0.1, 10)
        drawn = [signed_sum(make_private_vector(LAYOUT, parts(way), seed)) for seed in range(2_000)]
        assert np.mean(drawn, axis=0) * LAYOUT.unit == pytest.approx(way, abs=5e-5)

    @pytest.mark.parametrize("value", [math.inf, math.nan, 1e308])
    def test_step_that_is_not_finite_counts_as_none(self, value):
        assert not make_private_vector(LAYOUT, parts(np.full(10, value)), 0).any()

    def test_sum_of_vectors_is_the_sum_of_clipped_steps_over_the_denominator(self):
        one, other = np.full(10, 0.01), np.full(10, 7.0)
        total = signed_sum(make_private_vector(LAYOUT, parts(one), 1)) + signed_sum(
            make_private_vector(LAYOUT, parts(other), 2)
        )
        step = step_of_sum(LAYOUT, total, denominator=4)
        wanted = (one + other * (LAYOUT.clip / np.linalg.norm(other))) / 4
        assert np.concatenate([step["a"].reshape(-1), step["b"]]) == pytest.approx(wanted, abs=LAYOUT.unit)


class TestNoise:
    @pytest.mark.parametrize("variance", [1e-6, 0.3, 4.0, 1e3, 4e5])
    def test_moments_are_those_of_a_difference_of_poisson_numbers(self, variance):
        drawn = skellam_values(SkellamNoise(b"m" * 32, variance), 200_000).astype(float)
        error = math.sqrt((3 + 1 / variance) / len(drawn))
        assert drawn.mean() == pytest.approx(0, abs=6 * math.sqrt(variance / len(drawn)) + 1e-4)
        assert drawn.var() == pytest.approx(variance, rel=6 * error + 1e-3, abs=1e-4)
        if variance >= 0.3:
            assert np.mean(drawn**4) / drawn.var() ** 2 == pytest.approx(3 + 1 / variance, rel=0.05)

    @pytest.mark.parametrize("variance", [0.5, 20.0])
    def test_frequencies_are_those_of_numpy_s_poisson_numbers(self, variance):
        rng, count = np.random.default_rng(3), 200_000
        drawn = skellam_values(SkellamNoise(b"f" * 32, variance), count)
        other = rng.poisson(variance / 2, count) - rng.poisson(variance / 2, count)
        for value in range(-4, 5):
            assert (drawn == value).mean() == pytest.approx((other == value).mean(), abs=0.006)

    @given(st.binary(min_size=32, max_size=32), st.floats(1e-9, 1e7), st.integers(0, 50))
    def test_same_seed_gives_the_same_noise_within_fourteen_deviations(self, seed, variance, size):
        noise = SkellamNoise(seed, variance)
        values = skellam_values(noise, size)
        assert values.tobytes() == skellam_values(noise, size).tobytes()
        assert np.abs(values).max(initial=0) <= 14 * math.sqrt(variance) + 41

    def test_masked_blob_is_vector_plus_noise_plus_masks(self):
        elements = make_private_vector(LAYOUT, parts(np.full(10, 0.02)), 5)
        blob = write_masked_blob(MaskedUpdate(bytes(32), "ab" * 32, elements))
        noise, masks = SkellamNoise(b"n" * 32, 50.0), [Mask(b"k" * 32, 1)]
        update = read_masked_blob(mask_blob(blob, b"c" * 32, masks, 16, noise), LAYOUT)
        opened = add_masks(update.elements, [Mask(b"k" * 32, -1)])
        assert (signed_sum(opened) - signed_sum(elements)).tolist() == skellam_values(noise, 10).tolist()


# ---- the audit: a canary on each value of the sum of one group, as in tests/coordinator/aggregation/test_private_mean.py

CANARIES, DELTA = 1_000, 1e-5
AUDITED = Release(noise_multiplier=1.0, steps=100)
THRESHOLD = 9
SIDE = PrivateLayout(Schema((TensorSpec("w", (CANARIES,), "float32", "weight"),)), clip=0.5, steps=AUDITED.steps)


def audited_epsilon(share: float, seed: int) -> float:
    """Return a lower bound of epsilon of a group's sum, if the devices add `share` of the required standard deviation."""
    present = np.random.default_rng(seed).random(CANARIES) < 0.5
    total = np.zeros(CANARIES, np.int64)
    for one in np.flatnonzero(present):
        step = {"w": np.where(np.arange(CANARIES) == one, 3.0, 0.0)}
        total += signed_sum(make_private_vector(SIDE, step, seed))
    variance = (share * AUDITED.noise_multiplier * AUDITED.steps) ** 2 / THRESHOLD
    seeds = np.random.default_rng([seed, CANARIES])
    for _ in range(THRESHOLD if share else 0):
        total += skellam_values(SkellamNoise(seeds.bytes(32), variance), CANARIES)
    return found_epsilon(total > AUDITED.steps / 2, present, DELTA)


@pytest.mark.parametrize("seed", range(3))
def test_canaries_find_an_epsilon_no_larger_than_claimed_in_the_least_group(seed):
    claimed = epsilon_of_releases({AUDITED: 1}, DELTA)
    assert claimed / 3 < audited_epsilon(1.0, seed) <= claimed


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("share", [0.5, 0.0])
def test_canaries_find_devices_that_halve_or_leave_out_their_noise(share, seed):
    assert audited_epsilon(share, seed) > epsilon_of_releases({AUDITED: 1}, DELTA)
