"""The accountant of Skellam noise, against dp-accounting and against its own laws."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.shared.privacy.gaussian import epsilon_of, mu_of
from fedpatch.shared.privacy.skellam import (
    Release,
    SkellamNoise,
    epsilon_of_releases,
    skellam_noise_for,
    steps_of,
)

ORACLE = json.loads(Path(__file__).with_name("skellam_oracle.json").read_text("utf-8"))
ROWS = [pytest.param(row, id=f"z{row['noise_multiplier']}-s{row['steps']}-k{row['rounds']}") for row in ORACLE["rows"]]

noise_multipliers = st.floats(0.3, 50.0)
steps_of_clip = st.integers(1, 2_000)
deltas = st.floats(1e-9, 0.1)


@pytest.mark.parametrize("row", ROWS)
def test_epsilon_equals_that_of_dp_accounting_on_the_bound_to_1e_6(row):
    releases = {Release(row["noise_multiplier"], row["steps"]): row["rounds"]}
    for delta, expected in row["bound"].items():
        assert epsilon_of_releases(releases, float(delta)) == pytest.approx(expected, abs=1e-6, rel=1e-6)


@pytest.mark.parametrize("row", [row for row in ROWS if row.values[0]["exact"]])  # type: ignore[index]
def test_epsilon_is_at_least_that_of_the_true_distribution_of_one_value(row):
    releases = {Release(row["noise_multiplier"], row["steps"]): row["rounds"]}
    for delta, exact in row["exact"].items():
        assert epsilon_of_releases(releases, float(delta)) >= exact


@given(noise_multipliers, steps_of_clip, st.integers(1, 200), deltas)
def test_epsilon_grows_with_rounds_and_shrinks_with_noise_and_finer_steps(noise_multiplier, steps, rounds, delta):
    found = epsilon_of_releases({Release(noise_multiplier, steps): rounds}, delta)
    assert found <= epsilon_of_releases({Release(noise_multiplier, steps): rounds + 1}, delta)
    assert found >= epsilon_of_releases({Release(noise_multiplier * 1.1, steps): rounds}, delta)
    assert found >= epsilon_of_releases({Release(noise_multiplier, steps + 1): rounds}, delta)


@given(noise_multipliers, steps_of_clip, st.integers(1, 50), deltas)
def test_epsilon_is_above_the_exact_one_of_gaussian_noise(noise_multiplier, steps, rounds, delta):
    exact = epsilon_of(mu_of(noise_multiplier, rounds), delta)
    assert epsilon_of_releases({Release(noise_multiplier, steps): rounds}, delta) >= exact * (1 - 1e-9)


@given(noise_multipliers, st.integers(0, 50), deltas)
def test_gaussian_releases_alone_have_the_exact_epsilon(noise_multiplier, rounds, delta):
    found = epsilon_of_releases({Release(noise_multiplier): rounds, Release(2.0, 100): 0}, delta)
    assert found == epsilon_of(mu_of(noise_multiplier, rounds) if rounds else 0.0, delta)


def test_gaussian_round_beside_skellam_rounds_adds_to_epsilon():
    skellam = {Release(1.7, 500): 3}
    both = epsilon_of_releases({**skellam, Release(1.7): 1}, 1e-5)
    assert epsilon_of_releases(skellam, 1e-5) < both <= epsilon_of_releases({Release(1.7, 500): 4}, 1e-5)


@pytest.mark.medium
@given(st.floats(0.1, 30.0), deltas, st.integers(1, 100), st.integers(16, 2_000))
def test_noise_for_an_epsilon_keeps_it_and_little_less_noise_does_not(epsilon, delta, rounds, steps):
    noise_multiplier = skellam_noise_for(epsilon, delta, rounds, steps)
    assert epsilon_of_releases({Release(noise_multiplier, steps): rounds}, delta) <= epsilon
    assert epsilon_of_releases({Release(noise_multiplier * (1 - 1e-6), steps): rounds}, delta) > epsilon


def test_noise_beyond_every_use_raises_value_error():
    with pytest.raises(ValueError, match="no noise multiplier below"):
        skellam_noise_for(1e-9, 1e-9, 1, 16)


@pytest.mark.parametrize("noise_multiplier", [1e-6, 1e-80, 1e-100, 1e-200, 5e-324])
def test_loss_beyond_every_use_is_infinite(noise_multiplier):
    """Also where the square or the fourth power of the noise is 0 in float64."""
    assert epsilon_of_releases({Release(noise_multiplier, 16): 1}, 1e-5) == math.inf


@given(st.floats(0.001, 1_000.0), st.integers(8, 64))
def test_clip_of_all_members_and_six_deviations_of_noise_fit_sixteen_bits(noise_multiplier, group_max):
    steps = steps_of(noise_multiplier, group_max)
    threshold = group_max // 2 + 1
    deviation = noise_multiplier * steps * math.sqrt(group_max / threshold)
    assert group_max * steps + 6 * deviation < 2**15


def test_text_of_noise_does_not_show_its_seed():
    assert repr(SkellamNoise(b"secret" * 5, 4.0)) == "SkellamNoise(variance=4.0)"
