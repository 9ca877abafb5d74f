"""Records and summary of a run: their JSON, and the gain over training alone."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.coordinator.aggregation.limit_syntax import MAX_NAMED
from fedpatch.coordinator.observability.round_text import round_line, troubles
from fedpatch.coordinator.rounds.far_updates import UNUSUAL_ROUNDS
from fedpatch.coordinator.rounds.learning_alone import comparison, fleet_loses, headline, loss_warning
from fedpatch.coordinator.rounds.round_record import (
    BufferedFigures,
    PhaseSeconds,
    RoundRecord,
    buffered_words,
    last_user_accuracy,
    privacy_words,
    pulled_most,
)
from fedpatch.coordinator.rounds.run_summary import RunInfo, RunSummary, end_words, status_words
from fedpatch.coordinator.rounds.work_requests import measures_independent
from fedpatch.shared.tasks.metric_spec import MetricTerms
from fedpatch.shared.wire.field_types import MAX_MEASURE
from fedpatch.shared.wire.messages import UpdateReport
from tests.coordinator.arbitrary_records import records

COUNTS = st.integers(0, 1000)
REPORTED = st.floats(-MAX_MEASURE, MAX_MEASURE)
SHARES = st.none() | st.floats(0, 1)
WORDS = st.sampled_from(["", "quorum_missed", "pi-1"])
REASONS = st.dictionaries(st.sampled_from(["busy", "deadline", "late"]), st.integers(1, 9))
RECORDS = records(words=WORDS, counts=COUNTS, measures=SHARES, seconds=st.floats(0, 1e6), reasons=REASONS)


@given(RECORDS)
def test_record_json_round_trip(record):
    assert RoundRecord.from_dict(json.loads(json.dumps(record.to_dict()))) == record


def test_record_of_an_earlier_or_later_version_is_read():
    record = RoundRecord(1, "aggregated", 2, 2, 0, 2, 0.5, 0.4)
    plain = record.to_dict()
    plain["phase_seconds"]["coffee"] = 1.0
    del plain["user_accuracy_p10"], plain["user_accuracies"], plain["metric"], plain["metric_goal"]
    assert RoundRecord.from_dict({**plain, "mood": "good"}) == record


def test_summary_json_has_the_promised_keys():
    phases = PhaseSeconds(0.0, 1.0, 2.0, 3.0, 4.0, 5.0)
    good = RoundRecord(1, "aggregated", 10, 9, 1, 8, 0.75, 0.5, 0.9, phases, 100, 50, 800, {"busy": 1}, late=1)
    bad = RoundRecord(2, "failed", 10, 1, 9, 0, failure="too_few_accepted")
    plain = json.loads(RunSummary("r-1", "target_ua", 0.75, "out/model.npz", [good, bad]).to_json())
    assert list(plain) == ["run", "stopped_because", "user_accuracy", "model", "rounds", "warnings", "independent"]
    assert (plain["run"], plain["stopped_because"], plain["user_accuracy"]) == ("r-1", "target_ua", 0.75)
    assert plain["rounds"][0] == {
        "round": 1, "outcome": "aggregated", "cohort": 10, "accepted": 9, "declined": 1, "reported": 8,
        "user_accuracy": 0.75, "user_accuracy_min": 0.5, "user_accuracy_after": 0.9,
        "phase_seconds": {"select": 0, "recruit": 1, "download": 2, "train": 3, "upload": 4, "aggregate": 5},
        "bytes_down": 100, "bytes_up": 50, "num_examples": 800, "metric": "accuracy", "metric_goal": "max",
        "decline_reasons": {"busy": 1}, "failures": {}, "refused": {}, "late": 1, "user_accuracy_p10": None,
        "user_accuracies": {}, "bounded": {}, "downloads": 0, "deadline_s": 0.0, "report_p90_s": None,
        "absent": {}, "needed": 0, "measured": 0, "offenders": {}, "bounded_devices": {}, "independent": {},
        "pulls": {}, "pull_quantiles": {}, "privacy": {}, "train_loss": None, "user_accuracy_histogram": [],
        "far": {},
    }  # fmt: skip
    assert (plain["rounds"][1]["failure"], plain["rounds"][1]["user_accuracy"]) == ("too_few_accepted", None)


def test_summary_json_writes_nan_as_null():
    nan = float("nan")
    record = RoundRecord(1, "aggregated", 1, 1, 0, 1, float(np.float32("nan")), -float("inf"), nan)
    text = RunSummary("r", "failed", nan, "", [record]).to_json()
    plain = json.loads(text, parse_constant=lambda word: f"{word} is not JSON")
    assert plain["user_accuracy"] is None
    assert [plain["rounds"][0][f"user_accuracy{end}"] for end in ("", "_min", "_after")] == [None, None, None]


def test_record_json_takes_numpy_numbers():
    half: Any = np.float32(0.5)
    seven: Any = np.int64(7)
    plain = json.loads(json.dumps(RoundRecord(seven, "aggregated", 1, 1, 0, 1, half).to_dict()))
    assert (plain["round"], plain["user_accuracy"]) == (7, 0.5)


def _pulled(pulls: dict[str, float], *, rounds: int = UNUSUAL_ROUNDS) -> RoundRecord:
    parts = {device: ["exp_avg", "weights"] for device in sorted(pulls)[:MAX_NAMED]}
    quantiles = {"p50": 0.0, "p90": 0.5, "max": max(pulls.values())}
    counts = {"norm": len(pulls), "num_examples": 1}
    terms: dict[str, Any] = {"bounded": counts, "bounded_devices": parts, "pulls": pulls, "pull_quantiles": quantiles}
    terms |= {"far": dict.fromkeys(pulls, rounds)}
    return RoundRecord(1, "aggregated", 50, 50, 0, 50, **terms)


@pytest.mark.parametrize("rounds", [0, 1, UNUSUAL_ROUNDS - 1], ids=["near", "far once", "far for some rounds"])
def test_usual_bounds_of_honest_devices_are_no_trouble_of_a_round(rounds):
    assert troubles(_pulled({"pi-1": 0.9, "pi-2": 0.1}, rounds=rounds)) == []


def test_bounds_without_named_pulls_are_no_trouble_of_a_round():
    assert troubles(RoundRecord(1, "aggregated", 50, 50, 0, 50, bounded={"norm": 3})) == []


@pytest.mark.parametrize(
    ("pulls", "words"),
    [
        ({"pi-3": 0.92}, "pi-3 (92% of its change: exp_avg, weights; 5 rounds in a row)"),
        (
            {"a": 0.8, "b": 0.9, "c": 0.85, "d": 0.8},
            "b (90% of its change: exp_avg, weights; 5 rounds in a row), c (85% of its change: exp_avg, weights; "
            "5 rounds in a row), a (80% of its change: exp_avg, weights; 5 rounds in a row) and 1 more",
        ),
    ],
)
def test_trouble_names_devices_far_from_the_others_the_farthest_first(pulls, words):
    assert troubles(_pulled(pulls)) == [f"pulled far: {words}"]


def test_trouble_of_a_far_device_beyond_the_named_ones_has_no_parts():
    record = replace(_pulled({"pi-3": 0.92}), bounded_devices={})
    assert troubles(record) == ["pulled far: pi-3 (92% of its change; 5 rounds in a row)"]


REPORT = UpdateReport("ab" * 32, 10, 5, 0.1, 0.5, 0.6, 0.0, 0.0)
RECORD = RoundRecord(10, "aggregated", 3, 3, 0, 3, user_accuracy=0.5)


def report(before, alone, after=None):
    """Return a report with these user accuracies."""
    return replace(REPORT, user_accuracy_before=before, user_accuracy_after=after, user_accuracy_independent=alone)


def test_figures_of_reports_count_devices_with_both_measures():
    found = comparison(
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
            "gain_median": 0.0,
            "gain_p10": -0.16,
            "gain_after": 0.2 / 3,
        }
    )


def test_figures_of_an_error_measure_count_lower_as_better():
    found = comparison([report(0.2, 0.5)], MetricTerms("mse", "min"))
    assert found["gaining"] == 1.0
    assert found["gain"] == pytest.approx(0.3)


def test_figures_without_a_measure_are_empty_and_no_loss():
    assert comparison([REPORT], MetricTerms()) == {}
    assert not fleet_loses({})
    assert loss_warning([RECORD], "affine") == ""


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1))
def test_fleet_without_a_losing_device_never_loses(pairs):
    reports = [report(max(pair), min(pair)) for pair in pairs]
    assert not fleet_loses(comparison(reports, MetricTerms()))


@given(st.lists(st.tuples(st.sampled_from([-MAX_MEASURE, 0.0, MAX_MEASURE]), REPORTED), min_size=1, max_size=8))
def test_record_of_any_gains_can_be_read_again(pairs):
    """A difference of two values of a metric without limits can be twice as large as a value of a record."""
    gains = comparison([report(*pair) for pair in pairs], MetricTerms("RMSE", "min"))
    read = RoundRecord.from_dict(json.loads(json.dumps(replace(RECORD, independent=gains).to_dict())))
    assert read.independent.keys() == gains.keys()
    assert all(-MAX_MEASURE <= gain <= MAX_MEASURE for gain in read.independent.values())


def test_loss_warning_follows_the_last_measure_and_names_the_remedy():
    loses = replace(RECORD, independent=comparison([report(0.5, 0.7), report(0.6, 0.9)], MetricTerms()))
    gains = replace(RECORD, round=20, independent=comparison([report(0.9, 0.7)], MetricTerms()))
    warning = loss_warning([RECORD, loses, replace(RECORD, round=11)], "affine")
    assert f"round {loses.round} shows that devices are worse off than learning alone" in warning
    assert "try --private all" in warning
    assert "fedpatch simulate compare" in warning
    assert loss_warning([loses, gains], "affine") == ""
    document = RunSummary("run", "max_rounds", 0.5, "", [RECORD, loses], "affine").to_dict()
    assert document["warnings"] == [warning]
    assert document["independent"] == {"round": loses.round, **loses.independent}
    assert "alone UA 0.8" in round_line(loses, 30)
    assert RoundRecord.from_dict(loses.to_dict()) == loses


def test_record_without_some_of_the_figures_is_refused():
    plain = RECORD.to_dict() | {"independent": {"measured": 1.0, "user_accuracy": 0.5, "losing": 0.0}}
    with pytest.raises(ValueError, match=r"independent lacks gain, gaining$"):
        RoundRecord.from_dict(plain)


def test_record_with_a_value_of_another_type_is_refused_with_the_place_of_the_value():
    with pytest.raises(ValueError, match=r"\$\.reported"):
        RoundRecord.from_dict(RECORD.to_dict() | {"reported": "many"})


def test_record_keeps_lists():
    record = replace(RECORD, bounded_devices={"pi-1": ["weights", "exp_avg"]})
    assert record.to_dict()["bounded_devices"] == {"pi-1": ["weights", "exp_avg"]}


def test_carried_work_in_words_has_each_count_but_zeros_and_the_share_of_the_slowest():
    assert buffered_words(None) == buffered_words(BufferedFigures(staleness={"0": 4})) == ""
    figures = BufferedFigures(5, 4, 3, 2, {"0": 9, "1": 1, "10": 2}, (0.5, 0.25))
    assert buffered_words(figures).split(", ") == [
        "3 of older models (up to 10 versions)",
        *("5 carried", "4 waiting", "3 unused", "2 stale"),
        "25.0% of the weights from the slowest fifth",
    ]


def test_last_user_accuracy_is_that_of_an_aggregated_round_that_has_one():
    accuracies = [("aggregated", 0.4), ("aggregated", 0.5), ("aggregated", None), ("failed", 0.9)]
    rounds = [replace(RECORD, outcome=outcome, user_accuracy=accuracy) for outcome, accuracy in accuracies]
    assert last_user_accuracy(rounds) == 0.5
    assert last_user_accuracy(rounds[2:]) is None


@pytest.mark.parametrize(
    ("because", "words"),
    [
        ("target_ua", "target reached"),
        ("max_rounds", "all rounds done"),
        ("deadline", "time limit reached"),
        ("interrupted", "interrupted"),
    ],
)
def test_end_and_status_of_a_run_in_words(because, words):
    info = RunInfo("r", 0.0, "digits", "fedavg", "affine", {}, "ab" * 32, 1, "finished", because, None, None)
    assert end_words(because) == words
    assert status_words(info) == f"finished ({words})"
    assert status_words(replace(info, status=because)) == because
    assert status_words(replace(info, status="running", stopped_because=None)) == "running"


def test_measure_is_requested_every_n_rounds_but_not_in_the_first():
    assert [n for n in range(1, 31) if measures_independent(10, n)] == [10, 20, 30]
    assert [n for n in range(1, 4) if measures_independent(1, n)] == [2, 3]
    assert not any(measures_independent(0, n) for n in range(1, 31))


def test_loss_warning_of_a_run_with_private_all_does_not_advise_it():
    loses = replace(RECORD, independent=comparison([report(0.5, 0.7)], MetricTerms()))
    assert "--private" not in loss_warning([loses], "all")
    info_free = RunSummary("run", "max_rounds", 0.5, "", [loses], "all").to_dict()
    assert "--private" not in info_free["warnings"][0]


def test_loss_warning_does_not_repeat_the_figures_of_the_headline():
    loses = replace(RECORD, independent=comparison([report(0.5, 0.7)], MetricTerms()))
    assert headline(loses.independent, loses.label) not in loss_warning([loses], "affine")
    assert "devices gain" not in loss_warning([loses], "affine")


def test_headline_has_numbers_of_devices_and_each_gain():
    independent = {"measured": 4.0, "user_accuracy": 0.5, "gaining": 0.25, "losing": 0.5, "gain": -0.1}
    words = headline({**independent, "gain_median": 0.02}, "UA")
    assert "1 of 4 devices gain (25%), 2 lose" in words
    assert "-10 points (mean), +2 points (median); alone UA 0.5" in words


@pytest.mark.parametrize(("epsilon", "bound"), [(1.2345, "epsilon 1.23 "), (None, "epsilon unbounded ")])
@pytest.mark.parametrize(("rounds", "releases"), [(12.0, "releases: 12"), (None, "releases: 0")])
def test_words_of_privacy_have_the_bound_and_the_releases_of_the_most_used_device(epsilon, bound, rounds, releases):
    words = privacy_words({"epsilon": epsilon, "delta": 1e-5, "rounds": rounds})
    assert bound in words and releases in words and "delta 1e-05" in words


def test_privacy_of_a_round_without_it_has_no_words():
    assert privacy_words({}) == ""


def test_devices_are_ordered_by_the_sum_of_their_pulls_then_by_name():
    rounds = [replace(RECORD, pulls=pulls) for pulls in ({"b": 0.5, "c": 0.5, "d": 0.9}, {"a": 0.5, "c": 0.25})]
    assert pulled_most(rounds) == [("d", 0.9, 1), ("c", 0.375, 2), ("a", 0.5, 1), ("b", 0.5, 1)]
