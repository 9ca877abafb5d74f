"""Settings of buffered rounds: valid combinations, and the reasons of refused ones."""

from __future__ import annotations

from typing import Any

import pytest

from fedpatch.coordinator.runtime.run_preparation import carry_policy
from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared.config.load import load
from fedpatch.shared.errors import ConfigError
from fedpatch.simulator.fleet.settings import FleetTerms


def loaded(**flags: Any) -> RunSettings:
    return load(RunSettings, file=None, environ={}, flags=flags)


def test_default_refuses_late_work():
    assert loaded().late == "refuse"
    assert carry_policy(loaded()) is None


def test_carry_takes_the_settings_of_fedbuff():
    policy = carry_policy(loaded(late="carry", quorum_updates=10, concurrency=30, max_staleness=16))
    assert policy is not None
    assert (policy.max_staleness, policy.power, policy.concurrency) == (16, 0.5, 30)
    assert policy.factor(0) == 1.0


@pytest.mark.parametrize("settings", [RunSettings, FleetTerms])
def test_grace_that_is_not_set_is_zero_with_carry_only(settings):
    def grace_s(**flags: Any) -> float:
        made: RunSettings | FleetTerms = load(settings, file=None, environ={}, flags=flags)
        return made.grace_s

    assert (grace_s(), grace_s(late="carry"), grace_s(late="carry", grace_s=3.0)) == (10.0, 0.0, 3.0)


@pytest.mark.parametrize("strategy", ["fedavg", "fedadam", "fedavg-adam"])
def test_carry_works_with_each_strategy(strategy):
    assert loaded(late="carry", strategy=strategy).late == "carry"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"secure": "groups"}, "masked group"),
        ({"dp": "central", "noise_multiplier": 1.0, "dp_clip": 1.0, "strategy": "fedavg"}, "account of dp"),
        ({"aggregate": "centred"}, "began with the same model"),
        ({"quorum_updates": 10, "concurrency": 5}, "no round would end"),
        ({"min_cohort": 10, "concurrency": 5}, "less than min_cohort = 10"),
        ({"max_staleness": 17}, "above 16"),
    ],
)
def test_carry_is_refused_with_the_reason(flags, words):
    with pytest.raises(ConfigError, match=words):
        loaded(late="carry", **flags)


@pytest.mark.parametrize("flags", [{"concurrency": 5}, {"max_staleness": 5}, {"staleness_power": 0.0}])
def test_setting_of_buffered_rounds_needs_carry(flags):
    with pytest.raises(ConfigError, match="set late = carry"):
        loaded(**flags)
