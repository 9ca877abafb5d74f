"""Settings of evaluate rounds, and their figures in text, for trackers and in JSON."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedpatch.coordinator.observability.round_text import evaluation_words, round_line
from fedpatch.coordinator.observability.round_tracking import tracked_round
from fedpatch.coordinator.rounds.auto_deadline import auto_deadline_s, policy_of
from fedpatch.coordinator.rounds.round_record import RoundRecord, last_user_accuracy
from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared.config.load import load
from fedpatch.shared.errors import ConfigError
from tests.support.specs import run_spec

TRAINED = RoundRecord(1, "aggregated", 4, 4, 0, 4, user_accuracy=0.5, report_p90_s=100.0)
EVALUATED = RoundRecord(
    2, "evaluated", 9, 9, 0, 9, 0.75, 0.25, user_accuracy_p10=0.5, measured=8, report_p90_s=1.0, metric="accuracy"
)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"secure": "groups"}, "which secure = groups is to hide in sums"),
        (
            {"dp": "central", "noise_multiplier": 1.0, "dp_clip": 1.0, "strategy": "fedavg"},
            "differential privacy does not cover",
        ),
        ({"late": "carry"}, "would end work that devices carry"),
    ],
)
def test_evaluate_rounds_are_refused_where_they_reveal_a_device_or_end_its_work(given, why):
    terms = {"broker": "mqtt://localhost", "task": "digits", "devices": 9, **given}
    load(RunSettings, file=None, environ={}, flags=terms)
    with pytest.raises(ConfigError, match=why):
        load(RunSettings, file=None, environ={}, flags={**terms, "evaluate_every": 5})


def test_figures_of_an_evaluate_round_are_named_and_change_none_of_the_training():
    assert evaluation_words(EVALUATED) == "UA 0.750 mean, 0.500 10th percentile, 0.250 min, of 8 devices"
    assert evaluation_words(TRAINED) == ""
    assert round_line(EVALUATED, 12).startswith("round 2/12 evaluated: 9/9 reported")
    assert last_user_accuracy([TRAINED, EVALUATED]) == 0.5
    spec = replace(run_spec(), auto_deadline=True)
    expected = auto_deadline_s([TRAINED], spec.policy.recruit_deadline_s)
    assert policy_of(spec, [TRAINED, EVALUATED]).deadline_s == expected
    assert tracked_round(EVALUATED).figures["evaluation/user_accuracy"] == 0.75
    assert "user_accuracy" not in tracked_round(EVALUATED).figures


def test_record_of_an_evaluate_round_is_read_back():
    assert RoundRecord.from_dict(EVALUATED.to_dict()) == EVALUATED
