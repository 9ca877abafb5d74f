"""Settings of a run that are terms of its plan: they reach the plan, and invalid values are refused with a remedy."""

from __future__ import annotations

from typing import Any

import pytest

from fedpatch.coordinator.runtime.run_preparation import prepare
from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared.config.load import load
from fedpatch.shared.errors import ConfigError, UsageError
from fedpatch.shared.wire.plan_terms import make_terms


def loaded(**flags: Any) -> RunSettings:
    return load(RunSettings, file=None, environ={}, flags=flags)


@pytest.mark.parametrize(
    "terms", [{}, {"prox": 0.1}, {"phases": "private:5,public:20s"}, {"personal": "ditto:0.1"}, {"finish": "private:5"}]
)
def test_terms_of_the_settings_are_those_of_the_plan(terms):
    plan = prepare(loaded(private="names:fc3.*", **terms)).plan
    assert plan.terms == make_terms(**{"prox": 0.0, **terms})


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"prox": -1.0}, "prox"),
        ({"phases": "head"}, "such as private:5,public:1"),
        ({"phases": "private:1,public:1", "private": "none"}, "set private to head"),
        ({"phases": "private:1"}, "add public or all"),
        ({"phases": "public:1", "steps": 5}, "leave epochs and steps out"),
        ({"phases": "public:1", "personal": "ditto:1"}, "leave phases or personal out"),
        ({"personal": "ditto"}, r"such as ditto:0\.1"),
    ],
)
def test_terms_that_do_not_fit_are_refused(flags, words):
    with pytest.raises(ConfigError, match=words):
        loaded(**flags)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"norm_bound": "clip:2"}, "clip:2 does not fit, since the control variates of scaffold must be the mean"),
        ({"max_num_examples": "auto:10"}, "does not fit, since the control variates"),
        ({"late": "carry"}, "carry does not fit, since the control variates"),
        ({"aggregate": "centred"}, "centred would part c of scaffold from the mean"),
        (
            {"secure": "groups"},
            "scaffold shares second moments or control variates, which masked sums are too coarse for",
        ),
        ({"dp": "central", "noise_multiplier": 1.0, "dp_clip": 1.0}, "moments or control variates"),
    ],
)
def test_settings_that_would_part_the_control_variates_are_refused(flags, words):
    with pytest.raises(ConfigError, match=words):
        loaded(strategy="scaffold", **flags)


def test_wider_norm_bound_and_no_cap_are_the_defaults_where_devices_keep_control_variates():
    settings = loaded(strategy="scaffold")
    assert (settings.norm_bound, settings.max_num_examples) == ("auto:3", "off")
    assert prepare(settings).plan.moments == ("control",)
    with pytest.raises(UsageError, match="prox: control variates correct steps of plain SGD; leave prox out"):
        prepare(loaded(strategy="scaffold", prox=0.1))


def test_phase_without_trained_values_is_refused():
    with pytest.raises(UsageError, match="phase private has nothing to train"):
        prepare(loaded(private="stats", phases="private:1,public:1"))
