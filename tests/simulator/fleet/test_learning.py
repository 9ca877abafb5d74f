"""Simulated fleets with real training: the model learns in virtual time, and late work counts if it is carried."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from fedpatch.shared.errors import UsageError
from fedpatch.simulator.fleet.learning import FleetLearning
from fedpatch.simulator.fleet.report import FleetReport
from fedpatch.simulator.fleet.settings import FleetTerms
from fedpatch.simulator.fleet.simulation import simulate_fleet

TERMS: dict[str, Any] = {
    "devices": 6,
    "rounds": 4,
    "participation": 1.0,
    "over_select": 1.0,
    "train": "digits",
    "strategy": "fedavg-adam",
    "speed_range": 10.0,
    "train_spread": 1.0,
    "round_spread": 1.0,
    "slow_share": 0.0,
    "unwilling": 0.0,
    "dropout_training": 0.0,
    "dropout_upload": 0.0,
    "grace_s": 0.0,
}


def played(**changes: Any) -> FleetReport:
    terms = FleetTerms(**{**TERMS, **changes})
    assert terms.check() == []
    return simulate_fleet(terms)


@pytest.fixture(scope="module")
def carried() -> FleetReport:
    return played(late="carry", quorum_updates=3, rounds=12, max_staleness=16)


def test_policy_that_federates_nothing_is_refused():
    with pytest.raises(UsageError, match="leaves nothing to federate"):
        FleetLearning(FleetTerms(**{**TERMS, "private": "names:*"}))


def test_control_variates_are_refused():
    [(name, words)] = FleetTerms(**{**TERMS, "strategy": "scaffold"}).check()
    assert name == "strategy"
    assert "scaffold keeps control variates, which `fedpatch simulate` alone computes" in words


def test_models_learn_in_virtual_time(carried):
    learned = [one.learned for one in carried.rounds if one.learned is not None]
    assert learned[-1].user_accuracy > learned[0].user_accuracy
    assert all(before.at_s < after.at_s for before, after in pairwise(learned))


def test_carried_updates_enter_later_models(carried):
    ages = [age for one in carried.rounds if one.learned is not None for age in one.learned.staleness]
    assert set(ages) - {"0"}
    assert any(one.carried for one in carried.rounds)


def test_slowest_fifth_has_weight_where_its_work_is_carried_and_none_where_it_is_refused(carried):
    refused = played(quorum_updates=3)
    shares = [sum(one.learned.weights[-1] for one in report.rounds if one.learned) for report in (carried, refused)]
    assert shares[0] > 0.0
    assert shares[1] == 0.0


def test_same_terms_give_the_same_models():
    one, two = (played(late="carry", quorum_updates=3) for _ in range(2))
    assert [found.learned for found in one.rounds] == [found.learned for found in two.rounds]


def test_memory_of_updates_and_reports_does_not_grow_with_the_rounds():
    terms = FleetTerms(**{**TERMS, "strategy": "fedavg", "rounds": 3})
    learning = FleetLearning(terms)
    for number in (1, 2, 3):
        learning.publish(number)
        for device in range(1, terms.devices + 1):
            learning.train(device, number, 1.0)
            assert learning.report(device, number).train_s == 1.0
        learning.fold(number, range(1, terms.devices + 1), {})
        kept = [value for value in vars(learning).values() if isinstance(value, dict) and (1, number) in value]
        assert kept == []
    learning.close()


def test_target_ends_the_study():
    report = played(target_ua=0.2, rounds=20)
    assert report.stopped_because == "target_ua"
    assert len(report.rounds) < 20


def test_devices_that_are_away_for_a_third_of_the_time_do_not_end_the_study():
    report = played(train=None, devices=20, away_share=0.33, away_s=300.0, rounds=5)
    assert sum(one.outcome == "aggregated" for one in report.rounds) > 0


def test_a_fleet_trains_a_model_with_frozen_values():
    report = played(train="tests.support.frozen_tasks:TASK", rounds=2, strategy="fedavg")
    assert [one.outcome for one in report.rounds] == ["aggregated"] * 2
    assert report.rounds[-1].learned is not None
