"""Builds the record of a round that is over from its participants and reports."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from fedpatch.coordinator.rounds.learning_alone import comparison
from fedpatch.coordinator.rounds.participant_transitions import State
from fedpatch.coordinator.rounds.round_phases import CARRIED, Round
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.shared.masking.group_sum import SummedReport
from fedpatch.shared.tasks.metric_spec import MetricTerms
from fedpatch.shared.wire.field_types import MAX_COUNT
from fedpatch.shared.wire.messages import UpdateReport

MAX_BY_DEVICE = 32
"""Greatest number of reports for which the record has the user accuracy of each device, at 20 bytes a device."""
_DIGITS = 4


@dataclass(frozen=True)
class RoundTraffic:
    """The bytes of a round.

    Attributes:
        down: Bytes that the devices downloaded: the deltas from the version that a device held, or the whole model.
        up: Bytes of all chunks received.
        downloads: Devices that downloaded the model.
    """

    down: int
    up: int
    downloads: int = 0


def without_figures(report: UpdateReport | None) -> UpdateReport | None:
    """Return a report without figures that depend on the device's data, for differential privacy; it counts as one example."""
    if report is None:
        return None
    return replace(
        report,
        num_examples=1,
        steps=0,
        train_loss=0.0,
        user_accuracy_before=None,
        user_accuracy_after=None,
        user_accuracy_independent=None,
        download_s=0.0,
        train_s=0.0,
    )


def mean_accuracy(values: Iterable[tuple[float | None, int]]) -> float | None:
    """Return the mean over devices of the values that are not None (paper, section 4.2); None without any.

    Args:
        values: The value of each report, with the number of devices whose mean it is.

    Example:
        >>> mean_accuracy([(0.5, 1), (0.9, 3), (None, 1)])
        0.8
    """
    known = [(value, members) for value, members in values if value is not None]
    if not known:
        return None
    least, most = min(known)[0], max(known)[0]
    # Rounding must not leave the range of the metric: a hub refuses a value beyond it.
    return min(max(statistics.fmean(*zip(*known, strict=True)), least), most)


def build_record(
    current: Round,
    outcome: str,
    reports: Mapping[str, UpdateReport | None],
    traffic: RoundTraffic,
    refused: Mapping[str, int],
    *,
    metric: MetricTerms,
    figures: SummedReport | None = None,
) -> RoundRecord:
    """Build the record of a round.

    Args:
        current: The round, which is over.
        outcome: Its outcome (RoundRecord).
        reports: The reports of committed updates by device; None for masked ones.
        refused: Number of refused updates by reason.
        figures: The figures that the sums of a masked round give, in place of the reports.
    """
    known = {device: report for device, report in reports.items() if report is not None}
    record = _without_figures(current, outcome, len(reports), traffic, refused, metric)
    return _with_sums(record, figures, metric) if figures is not None else _with_reports(record, known, metric)


def _with_reports(record: RoundRecord, reports: Mapping[str, UpdateReport], metric: MetricTerms) -> RoundRecord:
    members = {device: report.members for device, report in reports.items()}
    measured = {device: report.user_accuracy_before for device, report in reports.items()}
    before = {device: value for device, value in measured.items() if value is not None}
    # A relay reports the mean of its devices: the worst device is not known.
    single = all(members[device] == 1 for device in before)
    return replace(
        record,
        user_accuracy=mean_accuracy((value, members[device]) for device, value in before.items()),
        user_accuracy_min=metric.worst(before.values()) if single else None,
        user_accuracy_p10=metric.worst_tenth(before.values()) if single else None,
        user_accuracies=_by_device(before),
        user_accuracy_after=mean_accuracy((one.user_accuracy_after, one.members) for one in reports.values()),
        num_examples=min(sum(report.num_examples for report in reports.values()), MAX_COUNT),
        measured=sum(members[device] for device in before),
        train_loss=mean_accuracy((report.train_loss, report.members) for report in reports.values()),
        independent=comparison((reports[device] for device in sorted(reports)), metric),
    )


def _with_sums(record: RoundRecord, figures: SummedReport, metric: MetricTerms) -> RoundRecord:
    """Add the figures that the sums give. No device has its own figures, so the worst device is not known."""
    means = figures.means
    return replace(
        record,
        user_accuracy=means["user_accuracy_before"],
        user_accuracy_after=means["user_accuracy_after"],
        user_accuracy_p10=figures.worst_tenth(metric),
        num_examples=min(figures.num_examples, MAX_COUNT),
        measured=figures.measured["user_accuracy_before"],
        train_loss=means["train_loss"],
        user_accuracy_histogram=figures.histogram if any(figures.histogram) else (),
        independent=_comparison_of(figures),
    )


def _comparison_of(figures: SummedReport) -> dict[str, float]:
    """Return the comparison with learning alone (coordinator.rounds.learning_alone.figures) from the sums."""
    count, alone, gain = figures.measured["gain"], figures.means["user_accuracy_independent"], figures.means["gain"]
    if not count or alone is None or gain is None:
        return {}
    found = {
        "measured": count,
        "user_accuracy": alone,
        "gaining": figures.gaining / count,
        "losing": figures.losing / count,
        "gain": gain,
    }
    after = figures.means["gain_after"]
    return found if after is None else found | {"gain_after": after}


def _without_figures(
    current: Round,
    outcome: str,
    reported: int,
    traffic: RoundTraffic,
    refused: Mapping[str, int],
    metric: MetricTerms,
) -> RoundRecord:
    return RoundRecord(
        round=current.number,
        outcome=outcome,
        failure=current.failure,
        cohort=len(current.participants),
        accepted=len(current.accepted()),
        declined=len(current.devices(State.DECLINED)),
        reported=reported,
        phase_seconds=current.phase_seconds(),
        bytes_down=traffic.down,
        bytes_up=traffic.up,
        downloads=traffic.downloads,
        decline_reasons=current.reasons(State.DECLINED),
        failures=current.reasons(State.FAILED),
        refused=dict(refused),
        late=sum(count for reason, count in current.reasons(State.LATE).items() if reason != CARRIED),
        metric=metric.name,
        metric_goal=metric.goal,
        deadline_s=current.policy.deadline_s,
        report_p90_s=_p90(current.report_seconds()),
        needed=current.needed,
    )


def _p90(times: Sequence[float]) -> float | None:
    """Return the 90th percentile of the sorted `times` (nearest rank)."""
    return times[math.ceil(0.9 * len(times)) - 1] if times else None


def _by_device(before: Mapping[str, float]) -> dict[str, float]:
    """Return the user accuracies rounded, in the order of device names; none in a round with many reports."""
    if len(before) > MAX_BY_DEVICE:
        return {}
    return {device: float(f"{before[device]:.{_DIGITS}g}") for device in sorted(before)}
