"""The plan of a run with differential privacy."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.shared.errors import UsageError
from fedpatch.shared.privacy.gaussian import MAX_EPSILON, epsilon_of, mu_of, noise_multiplier_for
from fedpatch.shared.privacy.plan import GOOD_RATIO, MOST_RATIO, Verdict, make_plan, spread_of
from fedpatch.shared.privacy.skellam import Release, epsilon_of_releases, steps_of

GOOD: dict[str, Any] = {"devices": 1000, "parameters": 1000, "rounds": 7, "epsilon": 8.0}
GROUPS = ((32, 17), (10, 6))


def test_plan_of_the_2nn_at_ten_devices_learns_nothing():
    plan = make_plan(devices=10, parameters=199_210, rounds=7, epsilon=8.0)
    assert plan.verdict is Verdict.LEARNS_NOTHING
    assert f"it takes {plan.least_devices:,} devices, or at most {plan.most_parameters} public values" in plan.words


def test_plan_of_a_head_of_1000_values_at_1000_devices_learns():
    assert make_plan(**GOOD).verdict is Verdict.LEARNS


@pytest.mark.parametrize(
    ("ratio", "verdict"),
    [
        (GOOD_RATIO, Verdict.LEARNS),
        (math.nextafter(GOOD_RATIO, 1), Verdict.DOUBTFUL),
        (MOST_RATIO, Verdict.DOUBTFUL),
        (math.nextafter(MOST_RATIO, 1), Verdict.LEARNS_NOTHING),
    ],
)
def test_verdict_changes_above_its_bounds(ratio, verdict):
    assert replace(make_plan(**GOOD), ratio=ratio).verdict is verdict


@pytest.mark.parametrize(
    ("ratio", "groups", "words"),
    [
        (0.1234, (), "^the noise on the mean is 0.12 times the clip: the model will learn"),
        (0.4, (), "0.4 times the clip: the model may learn.*`fedpatch simulate --dp central` first$"),
        (0.4, GROUPS, "`fedpatch simulate --dp distributed` first$"),
        (0.6, (), r"0.6 times the clip: .*or at most 99,\d\d\d public values .*, or fewer rounds$"),
    ],
)
def test_words_have_the_ratio_and_the_remedy_of_the_verdict(ratio, groups, words):
    plan = replace(make_plan(**GOOD, groups=groups), ratio=ratio)
    assert re.search(words, plan.words)


def test_words_name_no_number_of_values_where_none_is_small_enough():
    plan = make_plan(devices=1, parameters=10, rounds=100, epsilon=0.1)
    assert plan.most_parameters == 0
    assert f"it takes {plan.least_devices:,} devices, or fewer rounds" in plan.words


@given(st.integers(1, 10**5), st.integers(1, 10**7), st.integers(1, 500), st.floats(0.1, 50.0))
def test_plan_keeps_its_epsilon_and_its_remedies_suffice(devices, parameters, rounds, epsilon):
    plan = make_plan(devices=devices, parameters=parameters, rounds=rounds, epsilon=epsilon)
    assert epsilon_of(mu_of(plan.noise_multiplier, rounds), plan.delta) <= epsilon * (1 + 1e-9)
    given_devices = make_plan(devices=plan.least_devices, parameters=parameters, rounds=rounds, epsilon=epsilon)
    assert given_devices.ratio <= MOST_RATIO
    if plan.most_parameters:
        fewer = make_plan(devices=devices, parameters=plan.most_parameters, rounds=rounds, epsilon=epsilon)
        assert fewer.ratio <= MOST_RATIO
    assert (plan.verdict is Verdict.LEARNS_NOTHING) == (plan.ratio > MOST_RATIO)


@given(st.integers(1, 500), st.floats(0.01, 1e4))
def test_noise_is_rounded_up_to_five_digits(rounds, epsilon):
    exact = noise_multiplier_for(epsilon, 1e-5, rounds)
    found = make_plan(devices=1, parameters=1, rounds=rounds, epsilon=epsilon).noise_multiplier
    assert found == float(f"{found:.5g}")
    assert exact <= found * (1 + 1e-15) <= exact * (1 + 1.001e-4)


def test_one_device_or_value_fewer_than_the_remedy_is_not_enough():
    plan = make_plan(devices=50, parameters=10_000, rounds=7, epsilon=8.0)
    same: dict[str, Any] = {"rounds": 7, "epsilon": 8.0}
    assert make_plan(devices=plan.least_devices - 1, parameters=10_000, **same).ratio > MOST_RATIO
    assert make_plan(devices=50, parameters=plan.most_parameters + 1, **same).ratio > MOST_RATIO


class TestMaskedGroups:
    """The devices add the noise."""

    def test_spread_is_the_sum_of_sizes_over_thresholds(self):
        assert spread_of(GROUPS) == pytest.approx(32 / 17 + 10 / 6)

    @pytest.mark.parametrize(("epsilon", "group_max"), [(0.5, 0), (8.0, 0), (1000.0, 0), (1000.0, 900)])
    def test_noise_on_the_grid_of_the_largest_group_keeps_epsilon_and_little_less_does_not(self, epsilon, group_max):
        plan = make_plan(devices=42, parameters=100, rounds=7, epsilon=epsilon, groups=GROUPS, group_max=group_max)

        def spent(noise: float) -> float:
            return epsilon_of_releases({Release(noise, steps_of(noise, group_max or 32)): 7}, plan.delta)

        assert spent(plan.noise_multiplier) <= epsilon < spent(plan.noise_multiplier * 0.999)

    def test_ratio_and_remedies_grow_with_the_spread(self):
        central = make_plan(**GOOD)
        plan = make_plan(**GOOD, groups=GROUPS)
        assert plan.spread == spread_of(GROUPS)
        assert plan.ratio == pytest.approx(
            central.ratio * plan.noise_multiplier / central.noise_multiplier * math.sqrt(plan.spread)
        )
        with_fewer = plan.ratio * math.sqrt(plan.most_parameters / plan.parameters)
        assert with_fewer == pytest.approx(MOST_RATIO, rel=1e-3)
        # Ten times the devices form ten times the groups; their spread grows in proportion.
        assert plan.least_devices == pytest.approx(plan.devices * (plan.ratio / MOST_RATIO) ** 2, abs=1)

    def test_noise_of_a_tiny_epsilon_is_planned_on_a_grid_of_one_step(self):
        plan = make_plan(devices=42, parameters=1, rounds=500, epsilon=0.01, groups=GROUPS)
        assert steps_of(plan.noise_multiplier, 32) == 0
        assert epsilon_of_releases({Release(plan.noise_multiplier, 1): 500}, plan.delta) <= 0.01

    def test_epsilon_that_no_noise_keeps_names_its_option(self):
        with pytest.raises(UsageError, match="--epsilon: no noise"):
            make_plan(devices=42, parameters=1, rounds=10**9, epsilon=1e-6, groups=GROUPS)


@pytest.mark.parametrize("groups", [(), GROUPS])
def test_json_of_a_plan_has_its_figures_and_remedies(groups):
    plan = make_plan(**GOOD, groups=groups)
    found = plan.to_dict()
    assert set(found) == {*vars(plan), "dp", "verdict", "least_devices", "most_parameters"} - {"spread"}
    assert found == {name: getattr(plan, name) for name in found}
    assert plan.dp == ("distributed" if groups else "central")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in ("devices", "parameters", "rounds") for value in (0, 10**12 + 1)),
        *(("epsilon", value) for value in (0.0, math.nextafter(MAX_EPSILON, math.inf))),
        *(("delta", value) for value in (0.0, 1.0)),
    ],
)
def test_plan_with_an_argument_out_of_range_names_its_option(name, value):
    with pytest.raises(UsageError, match=f"--{name}: "):
        make_plan(**{**GOOD, name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, value) for name in ("devices", "parameters", "rounds") for value in (1, 10**12)),
        ("epsilon", MAX_EPSILON),
        ("delta", 1e-300),
    ],
)
def test_plan_with_an_argument_at_its_limit_is_made(name, value):
    assert getattr(make_plan(**{**GOOD, name: value}), name) == value
