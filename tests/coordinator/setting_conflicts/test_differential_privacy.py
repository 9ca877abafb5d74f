"""Settings that do not fit differential privacy, with the remedy."""

from __future__ import annotations

from typing import Any

import pytest

from fedpatch.coordinator.aggregation.privacy_policy import delta_problem
from fedpatch.coordinator.setting_conflicts.differential_privacy import NoiseSettings, privacy_problems

GOOD: dict[str, Any] = {
    "dp": "central",
    "noise_multiplier": 1.6,
    "dp_clip": 1.0,
    "delta": 1e-5,
    "max_epsilon": 8.0,
    "rounds": 7,
    "devices": 100,
    "target_ua": None,
    "moments": (),
}
OFF = {**GOOD, "dp": "off", "noise_multiplier": None, "dp_clip": None, "max_epsilon": None}


MASKED = {**GOOD, "dp": "distributed", "noise_multiplier": 1.7, "masked": True, "largest_group": 32}


@pytest.mark.parametrize("settings", [GOOD, OFF, {**GOOD, "max_epsilon": None}, MASKED])
def test_settings_that_fit_together_have_no_problem(settings):
    assert privacy_problems(NoiseSettings(**settings)) == []


@pytest.mark.parametrize(
    ("change", "name", "other"),
    [
        ({"noise_multiplier": None}, "noise_multiplier", "dp"),
        ({"dp_clip": None}, "dp_clip", "dp"),
        ({"target_ua": 0.9}, "target_ua", "dp"),
        ({"moments": ("exp_avg",)}, "strategy", "dp"),
        ({"aggregate": "trimmed:0.2"}, "aggregate", "dp"),
        ({"delta": 0.01}, "delta", "devices"),
        ({"rounds": 8}, "max_epsilon", "noise_multiplier"),
        ({"dp": "off", "max_epsilon": None, "dp_clip": None}, "noise_multiplier", "dp"),
        ({"dp": "off", "noise_multiplier": None, "dp_clip": None}, "max_epsilon", "dp"),
        ({"dp": "distributed"}, "dp", "secure"),
        ({"dp": "distributed", "masked": True, "largest_group": 32, "rounds": 8}, "max_epsilon", "noise_multiplier"),
        (
            {"dp": "distributed", "masked": True, "largest_group": 32, "noise_multiplier": 300.0},
            "noise_multiplier",
            "dp",
        ),
    ],
)
def test_settings_that_make_no_sense_together_are_refused_by_their_names(change, name, other):
    assert [(one, *others) for one, _, *others in privacy_problems(NoiseSettings(**{**GOOD, **change}))] == [
        (name, other)
    ]


def test_refusal_of_too_many_rounds_has_the_command_that_computes_their_noise():
    [(_, text, _)] = privacy_problems(NoiseSettings(**{**GOOD, "rounds": 8}))
    assert "fedpatch privacy plan --dp central --epsilon 8 --delta 1e-05 --rounds 8`" in text


@pytest.mark.parametrize("devices", [30, 100, 7000])
def test_delta_that_a_refusal_proposes_is_small_enough(devices):
    proposed = float(delta_problem(1 / devices, devices).rpartition(" ")[2])
    assert 0 < proposed < 1 / devices
    assert delta_problem(proposed, devices) == ""
