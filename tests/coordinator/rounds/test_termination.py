"""The termination criteria: each alone ends a run, and the earlier of two gives the reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.rounds.run_spec import RunSpec
from fedpatch.coordinator.rounds.termination import RunProgress, Stopped, stop_reason
from tests.support.specs import run_spec

GOOD = RoundRecord(1, "aggregated", 2, 2, 0, 2, user_accuracy=0.95, measured=2, needed=2)
GOES_ON = RunProgress((GOOD,), 1, False, False, False, False, 0)
SPEC = run_spec(rounds=3, target_ua=0.99, max_failed_rounds=2)
CRITERIA: list[tuple[dict[str, Any], dict[str, Any], Stopped]] = [
    ({"evaluates_only": True}, {"evaluated": True}, Stopped.MAX_ROUNDS),
    ({"target_ua": 0.9}, {}, Stopped.TARGET_UA),
    ({}, {"trained": 3}, Stopped.MAX_ROUNDS),
    ({}, {"out_of_time": True}, Stopped.DEADLINE),
    ({}, {"stop_requested": True}, Stopped.INTERRUPTED),
    ({}, {"failures": 2}, Stopped.FAILED),
]


def reason(spec: RunSpec, **progress: Any) -> Stopped | None:
    return stop_reason(spec, replace(GOES_ON, **progress))


def test_run_without_a_met_criterion_goes_on():
    assert reason(SPEC) is None


@pytest.mark.parametrize(("terms", "progress", "stopped"), CRITERIA)
def test_one_met_criterion_ends_the_run_with_its_reason(terms, progress, stopped):
    assert reason(replace(SPEC, **terms), **progress) is stopped


@pytest.mark.parametrize("first", range(len(CRITERIA)))
@pytest.mark.parametrize("second", range(len(CRITERIA)))
def test_of_two_met_criteria_the_earlier_one_gives_the_reason(first, second):
    (terms, progress, _), (more_terms, more_progress, _) = CRITERIA[first], CRITERIA[second]
    found = reason(replace(SPEC, **(more_terms | terms)), **(more_progress | progress))
    assert found is CRITERIA[min(first, second)][2]


@pytest.mark.parametrize(
    "changes", [{"outcome": "failed"}, {"user_accuracy": None}, {"measured": 1}, {"user_accuracy": 0.89}]
)
def test_round_that_failed_or_measured_too_little_does_not_reach_the_target(changes):
    assert reason(replace(SPEC, target_ua=0.9), records=(replace(GOOD, **changes),)) is None


def test_target_of_the_last_training_round_waits_for_the_evaluate_round_that_is_due():
    assert reason(replace(SPEC, target_ua=0.9), evaluates_next=True) is None
    evaluated = replace(GOOD, round=2, outcome="evaluated", user_accuracy=0.1)
    assert reason(replace(SPEC, target_ua=0.9), records=(GOOD, evaluated)) is Stopped.TARGET_UA
