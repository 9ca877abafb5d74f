"""The accountant of the Gaussian mechanism, against dp-accounting and against its own laws."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fedpatch.shared.privacy.gaussian import (
    MAX_EPSILON,
    _mills_ratio,
    bisect,
    compose,
    delta_of,
    epsilon_of,
    mu_for,
    mu_of,
    noise_multiplier_for,
    noise_ratio,
)

ORACLE = json.loads(Path(__file__).with_name("gaussian_oracle.json").read_text("utf-8"))
ROWS = [pytest.param(row, id=f"z{row['noise_multiplier']}-k{row['rounds']}") for row in ORACLE["rows"]]

noise_multipliers = st.floats(0.05, 100.0)
rounds_of = st.integers(1, 10_000)
deltas = st.floats(1e-12, 0.5)
epsilons = st.floats(1e-3, 100.0)


@pytest.mark.parametrize("row", ROWS)
def test_epsilon_equals_that_of_composed_loss_distributions_to_1e_6(row):
    mu = mu_of(row["noise_multiplier"], row["rounds"])
    for delta, expected in row["epsilon"].items():
        assert epsilon_of(mu, float(delta)) == pytest.approx(expected, abs=1e-6, rel=1e-6)


@pytest.mark.parametrize("row", ROWS)
def test_delta_equals_the_exact_one_to_1e_6_of_its_value(row):
    mu = mu_of(row["noise_multiplier"], row["rounds"])
    for epsilon, expected in row["delta"].items():
        assert delta_of(mu, float(epsilon)) == pytest.approx(expected, rel=1e-6, abs=1e-300)


@given(st.floats(2.0, 1e6))
@example(35.35)
@example(35.36)
def test_mills_ratio_equals_its_continued_fraction_to_1e_12(x):
    """Abramowitz and Stegun 1964, 26.2.14."""
    fraction = x
    for term in range(200, 0, -1):
        fraction = x + term / fraction
    assert _mills_ratio(x) == pytest.approx(1 / fraction, rel=1e-12, abs=0)


@given(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9), st.floats(0.0, 1.0))
def test_bisect_returns_the_least_number_at_which_the_condition_holds(one, other, share):
    low, high = min(one, other), max(one, other)
    least = min(high, max(math.nextafter(low, math.inf), low + share * (high - low)))
    if low < high:
        assert bisect(lambda value: value >= least, low, high) == least


ROUNDING = 1e-12
"""Relative: epsilon is a root found in float64."""


@given(noise_multipliers, rounds_of, deltas)
def test_epsilon_grows_with_rounds(noise_multiplier, rounds, delta):
    assert epsilon_of(mu_of(noise_multiplier, rounds), delta) <= epsilon_of(mu_of(noise_multiplier, rounds + 1), delta)


@given(noise_multipliers, st.floats(1.0, 10.0), rounds_of, deltas)
def test_epsilon_never_grows_with_noise(noise_multiplier, more, rounds, delta):
    louder = epsilon_of(mu_of(noise_multiplier * more, rounds), delta)
    assert louder <= epsilon_of(mu_of(noise_multiplier, rounds), delta) * (1 + ROUNDING)


@given(noise_multipliers, rounds_of, deltas, st.floats(1.0, 10.0))
def test_epsilon_never_grows_with_delta(noise_multiplier, rounds, delta, more):
    mu = mu_of(noise_multiplier, rounds)
    assert epsilon_of(mu, min(0.9, delta * more)) <= epsilon_of(mu, delta) * (1 + ROUNDING)


@given(noise_multipliers, rounds_of, deltas)
def test_epsilon_is_the_least_that_keeps_delta(noise_multiplier, rounds, delta):
    mu = mu_of(noise_multiplier, rounds)
    epsilon = epsilon_of(mu, delta)
    if math.isfinite(epsilon):
        assert delta_of(mu, epsilon) <= delta
        if epsilon > 0:
            assert delta_of(mu, epsilon * (1 - 1e-6)) >= delta * (1 - 1e-6)


@given(epsilons, deltas, rounds_of)
def test_noise_for_an_epsilon_keeps_it_and_little_less_noise_does_not(epsilon, delta, rounds):
    noise_multiplier = noise_multiplier_for(epsilon, delta, rounds)
    assert epsilon_of(mu_of(noise_multiplier, rounds), delta) <= epsilon * (1 + 1e-9)
    assert epsilon_of(mu_of(noise_multiplier * (1 - 1e-4), rounds), delta) > epsilon


@given(st.lists(st.floats(0.0, 10.0), max_size=8), st.lists(st.floats(0.0, 10.0), max_size=8))
def test_compose_in_parts_equals_compose_at_once(one, other):
    assert compose([compose(one), compose(other)]) == pytest.approx(compose([*one, *other]))


@given(noise_multipliers, rounds_of)
def test_compose_of_equal_rounds_equals_mu_of_all_of_them(noise_multiplier, rounds):
    assert compose([mu_of(noise_multiplier)] * min(rounds, 50)) == pytest.approx(
        mu_of(noise_multiplier, min(rounds, 50))
    )


@given(st.floats(0.0, 1e9), st.floats(0.0, 1e5))
def test_delta_is_a_probability(mu, epsilon):
    assert 0.0 <= delta_of(mu, epsilon) <= 1.0


def test_epsilon_at_the_delta_of_its_limits_is_the_limit():
    assert epsilon_of(1.0, delta_of(1.0, 0.0)) == 0.0
    mu = math.sqrt(2 * MAX_EPSILON)
    assert epsilon_of(mu, delta_of(mu, MAX_EPSILON)) == pytest.approx(MAX_EPSILON, rel=1e-9)


def test_release_without_noise_has_a_delta_of_one():
    assert delta_of(math.inf, 1.0) == 1.0


def test_no_release_costs_nothing():
    assert epsilon_of(compose([]), 1e-5) == 0.0


def test_loss_beyond_every_use_is_infinite():
    assert epsilon_of(mu_of(1e-6), 1e-5) == math.inf
    assert epsilon_of(math.inf, 1e-5) == math.inf


@pytest.mark.parametrize(("devices", "expected"), [(10, 71), (100, 7.1), (1000, 0.71)])
def test_noise_ratio_of_the_2nn_shrinks_with_devices(devices, expected):
    assert noise_ratio(1.588, values=199_210, denominator=devices) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("epsilon", [1e-300, MAX_EPSILON])
def test_mu_at_the_limits_of_epsilon_is_found(epsilon):
    mu = mu_for(epsilon, 1e-5)
    assert delta_of(mu, epsilon) <= 1e-5 < delta_of(mu * (1 + 1e-6), epsilon)


@pytest.mark.parametrize(
    "call",
    [
        lambda: mu_of(0.0),
        lambda: epsilon_of(1.0, 0.0),
        lambda: epsilon_of(1.0, 1.0),
        lambda: mu_for(0.0, 1e-5),
        lambda: noise_multiplier_for(1.0, 1e-5, 0),
        lambda: mu_for(MAX_EPSILON * 1.01, 1e-5),
        lambda: mu_for(-1.0, 1e-5),
        lambda: epsilon_of(1.0, 1.5),
        lambda: mu_for(1.0, 0.0),
        lambda: mu_for(1.0, 1.0),
    ],
)
def test_argument_out_of_range_raises_value_error(call):
    with pytest.raises(ValueError, match="must be"):
        call()
