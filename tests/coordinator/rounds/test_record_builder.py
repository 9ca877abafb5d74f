"""The record of a round: the worst tenth of its devices, and each device if there are only a few."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fedpatch.coordinator.rounds.round_phases import Round
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.rounds.round_record_builder import MAX_BY_DEVICE, RoundTraffic, build_record
from fedpatch.coordinator.rounds.run_events import Aggregated
from fedpatch.shared.masking.group_sum import SummedReport
from fedpatch.shared.tasks.metric_spec import MetricTerms, metric_terms
from fedpatch.shared.wire.field_types import MAX_COUNT
from tests.coordinator.engines import asking, report_of
from tests.support.specs import report, run_spec


def _record(accuracies: dict[str, float], metric: MetricTerms | None = None) -> RoundRecord:
    reports = {device: report(value) for device, value in accuracies.items()}
    current = Round(1, run_spec().policy, 0.0)
    return build_record(current, "aggregated", reports, RoundTraffic(0, 0), {}, metric=metric or MetricTerms())


def test_p10_is_the_worst_tenth_of_the_devices():
    """With eleven devices p10 is the second lowest accuracy, or the second greatest error."""
    values = {f"pi-{number:02}": number / 10 for number in range(11)}
    assert _record(values).user_accuracy_p10 == 0.1
    assert _record(values, metric_terms("MAE", "min", None)).user_accuracy_p10 == 0.9
    assert _record({}).user_accuracy_p10 is None


def test_few_devices_keep_their_rounded_accuracies_by_name():
    kept = _record({"pi-2": 2 / 3, "pi-1": 0.5}).user_accuracies
    assert list(kept.items()) == [("pi-1", 0.5), ("pi-2", 0.6667)]


def test_more_than_max_by_device_keep_no_accuracies():
    names = [f"pi-{number}" for number in range(MAX_BY_DEVICE + 1)]
    assert len(_record(dict.fromkeys(names[1:], 0.5)).user_accuracies) == MAX_BY_DEVICE
    assert _record(dict.fromkeys(names, 0.5)).user_accuracies == {}


def test_played_round_records_the_accuracy_of_its_devices():
    made = asking("ab")
    for device, accuracy in (("b", 0.75), ("a", 0.25)):
        report_of(made, device, accuracy=accuracy)
    made.handle(Aggregated(), 6.0)
    assert made.records[-1].user_accuracies == {"a": 0.25, "b": 0.75}


def test_user_accuracy_of_a_round_is_the_mean_and_not_the_median():
    """Every device has the same weight (paper, section 4.2)."""
    assert _record({"a": 0.9, "b": 0.8, "c": 0.1}).user_accuracy == pytest.approx(0.6)


def test_record_of_devices_that_claim_the_most_examples_can_be_read_again():
    """A checkpoint whose record cannot be read is a damaged one."""
    reports = {device: replace(report(), num_examples=MAX_COUNT) for device in ("a", "b")}
    current = Round(1, run_spec().policy, 0.0)
    record = build_record(current, "aggregated", reports, RoundTraffic(0, 0), {}, metric=MetricTerms())
    assert RoundRecord.from_dict(record.to_dict()).num_examples == MAX_COUNT


def test_record_has_the_metric_and_the_traffic_of_the_round():
    current, metric = Round(3, run_spec().policy, 0.0), metric_terms("MAE", "min", None)
    record = build_record(current, "failed", {}, RoundTraffic(10, 20, 2), {"late": 1}, metric=metric)
    assert (record.round, record.outcome, record.refused) == (3, "failed", {"late": 1})
    assert (record.metric, record.metric_goal) == ("MAE", "min")
    assert (record.bytes_down, record.bytes_up, record.downloads) == (10, 20, 2)


SUMS = SummedReport(
    devices=8,
    weight=80,
    num_examples=90,
    means={
        "user_accuracy_before": 0.5,
        "user_accuracy_after": 0.75,
        "user_accuracy_independent": 0.25,
        "train_loss": 1.5,
        "gain": 0.125,
        "gain_after": 0.375,
    },
    measured={"user_accuracy_before": 7, "gain": 4},
    gaining=3,
    losing=1,
    histogram=(2, *[0] * 9, 5, *[0] * 5),
    clipped_values=0,
    norm=1.0,
    spreads=(),
)
COMPARISON = {
    "measured": 4,
    "user_accuracy": 0.25,
    "gaining": 0.75,
    "losing": 0.25,
    "gain": 0.125,
    "gain_after": 0.375,
}


def _record_of_sums(figures: SummedReport) -> RoundRecord:
    current = Round(1, run_spec().policy, 0.0)
    reports = dict.fromkeys(f"pi-{number}" for number in range(8))
    return build_record(current, "aggregated", reports, RoundTraffic(0, 0), {}, metric=MetricTerms(), figures=figures)


def test_masked_round_records_the_figures_of_its_sums():
    record = _record_of_sums(SUMS)
    assert (record.reported, record.measured, record.num_examples, record.train_loss) == (8, 7, 90, 1.5)
    assert (record.user_accuracy, record.user_accuracy_after) == (0.5, 0.75)
    assert (record.user_accuracy_p10, record.user_accuracy_histogram) == (1 / 32, SUMS.histogram)
    assert record.independent == COMPARISON


@pytest.mark.parametrize(
    ("missing", "left"),
    [
        ("gain_after", COMPARISON.keys() - {"gain_after"}),
        ("gain", set()),
        ("user_accuracy_independent", set()),
    ],
)
def test_comparison_of_sums_has_only_measured_figures(missing, left):
    record = _record_of_sums(replace(SUMS, means=SUMS.means | {missing: None}))
    assert record.independent.keys() == left
