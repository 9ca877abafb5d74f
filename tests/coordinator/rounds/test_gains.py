"""Who gains over learning alone, and when a run warns."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.coordinator.observability.round_text import round_line
from fedpatch.coordinator.rounds.invitations import measures_independent
from fedpatch.coordinator.rounds.run_records import RoundRecord, RunSummary, figures, fleet_loses, loss_warning
from fedpatch.shared.tasks.metric_spec import MetricTerms
from fedpatch.shared.wire.messages import UpdateReport

REPORT = UpdateReport("ab" * 32, 10, 5, 0.1, 0.5, 0.6, 0.0, 0.0)
RECORD = RoundRecord(10, "aggregated", 3, 3, 0, 3, user_accuracy=0.5)


def report(before, alone, after=None):
    """A report with these user accuracies."""
    return replace(REPORT, user_accuracy_before=before, user_accuracy_after=after, user_accuracy_independent=alone)


def test_figures_of_reports_count_devices_with_both_measures():
    found = figures(
        [report(0.5, 0.7, 0.8), report(0.9, 0.8, 0.9), report(0.5, 0.5, 0.5), report(None, 0.5), report(0.5, None)],
        MetricTerms(),
    )
    assert found == pytest.approx(
        {
            "measured": 3,
            "user_accuracy": 2 / 3,
            "gaining": 1 / 3,
            "losing": 1 / 3,
            "gain": -0.1 / 3,
            "gain_after": 0.2 / 3,
        }
    )


def test_figures_of_an_error_measure_count_lower_as_better():
    found = figures([report(0.2, 0.5)], MetricTerms("mse", "min"))
    assert found["gaining"] == 1.0
    assert found["gain"] == pytest.approx(0.3)


def test_figures_without_a_measure_are_empty_and_no_loss():
    assert figures([REPORT], MetricTerms()) == {}
    assert not fleet_loses({})
    assert loss_warning([RECORD]) == ""


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1))
def test_fleet_without_a_losing_device_never_loses(pairs):
    reports = [report(max(pair), min(pair)) for pair in pairs]
    assert not fleet_loses(figures(reports, MetricTerms()))


def test_the_warning_follows_the_last_measure_and_names_the_remedy():
    loses = replace(RECORD, independent=figures([report(0.5, 0.7), report(0.6, 0.9)], MetricTerms()))
    gains = replace(RECORD, round=20, independent=figures([report(0.9, 0.7)], MetricTerms()))
    warning = loss_warning([RECORD, loses, replace(RECORD, round=11)])
    assert "0 of 2 devices gain" in warning
    assert "--private all" in warning
    assert "fedpatch simulate compare" in warning
    assert loss_warning([loses, gains]) == ""
    assert RunSummary("run", "max_rounds", 0.5, "", [loses]).to_dict()["warnings"] == [warning]
    assert "alone UA 0.8" in round_line(loses, 30)
    assert RoundRecord.from_dict(loses.to_dict()) == loses


def test_measure_is_requested_every_n_rounds_but_not_in_the_first():
    assert [n for n in range(1, 31) if measures_independent(10, n)] == [10, 20, 30]
    assert [n for n in range(1, 4) if measures_independent(1, n)] == [2, 3]
    assert not any(measures_independent(0, n) for n in range(1, 31))
