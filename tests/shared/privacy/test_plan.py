"""The outlook of a run with differential privacy."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.shared.errors import UsageError
from fedpatch.shared.privacy.gaussian import epsilon_of, mu_of
from fedpatch.shared.privacy.plan import MOST_RATIO, Verdict, make_plan

GOOD: dict[str, Any] = {"devices": 1000, "parameters": 1000, "rounds": 7, "epsilon": 8.0}


def test_plan_of_the_2nn_at_ten_devices_learns_nothing():
    plan = make_plan(devices=10, parameters=199_210, rounds=7, epsilon=8.0)
    assert plan.verdict is Verdict.LEARNS_NOTHING
    assert f"it takes {plan.least_devices:,} devices, or at most {plan.most_parameters} public values" in plan.words


def test_plan_of_a_head_of_1000_values_at_1000_devices_learns():
    assert make_plan(**GOOD).verdict is Verdict.LEARNS


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


@pytest.mark.parametrize(
    ("name", "value"), [("devices", 0), ("parameters", 0), ("rounds", 0), ("epsilon", 0.0), ("delta", 1.0)]
)
def test_plan_with_an_argument_out_of_range_names_its_option(name, value):
    with pytest.raises(UsageError, match=f"--{name}: "):
        make_plan(**{**GOOD, name: value})
