"""The record of a round.

Scripts read `to_json`, whose keys stay the same. A number that is not finite becomes null, since JSON has no such number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from typing import Any

import msgspec

from fedpatch.coordinator.rounds.learning_alone import check_figures
from fedpatch.shared.tasks.metric_spec import ACCURACY, Goal, MetricTerms
from fedpatch.shared.typed_values import learn_types
from fedpatch.shared.wire.field_types import MAX_MEASURE, Count, Measure, Positive

EVALUATION_OUTCOMES = ("evaluated", "evaluation_failed")
"""Outcomes of rounds in which devices only measure."""


def privacy_words(privacy: Mapping[str, float | None]) -> str:
    """Return the account of differential privacy in words, "" for none."""
    if not privacy:
        return ""
    epsilon, count = privacy["epsilon"], round(privacy["rounds"] or 0)
    bound = "unbounded" if epsilon is None else f"{epsilon:.3g}"
    return f"epsilon {bound} at delta {privacy['delta']:g} for the most used device (releases: {count})"


def buffered_words(buffered: BufferedFigures | None) -> str:
    """Return the figures of carried work in words, "" for none."""
    if buffered is None:
        return ""
    aged = sum(count for age, count in buffered.staleness.items() if age != "0")
    words = [f"{aged} of older models (up to {max(map(int, buffered.staleness))} versions)"] if aged else []
    named = (("carried", buffered.carried), ("waiting", buffered.waiting), ("unused", buffered.unused))
    words += [f"{count} {word}" for word, count in (*named, ("stale", buffered.stale)) if count]
    if buffered.weights:
        words.append(f"{buffered.weights[-1]:.1%} of the weights from the slowest fifth")
    return ", ".join(words)


@dataclass(frozen=True)
class PhaseSeconds:
    """Seconds that a round spent in each phase, by the coordinator's clock."""

    select: Measure = 0.0
    recruit: Measure = 0.0
    download: Measure = 0.0
    train: Measure = 0.0
    upload: Measure = 0.0
    aggregate: Measure = 0.0


@dataclass(frozen=True)
class BufferedFigures:
    """Figures of a round with buffered work (coordinator.buffered).

    Attributes:
        carried: Devices whose work the next round may take.
        waiting: Committed updates of a failed round, which count in a later version.
        unused: Committed updates that no version took, since the run ended.
        stale: Devices whose work was ended, since its base became too old.
        staleness: Number of aggregated updates by staleness, the versions that the model had advanced since their base.
        weights: Share of the weights by fifth of the devices, the fastest fifth first; empty for fewer than five devices.
    """

    carried: Count = 0
    waiting: Count = 0
    unused: Count = 0
    stale: Count = 0
    staleness: Mapping[str, Count] = field(default_factory=dict)
    weights: tuple[Measure, ...] = ()


@dataclass(frozen=True)
class RoundRecord:
    """The record of one round.

    User accuracies are values of `metric`, of the global model with each device's patch. They are None if no device measured
    one.

    Attributes:
        round: Number of the round.
        outcome: "aggregated" or "failed"; of an evaluate round "evaluated" or "evaluation_failed".
        cohort: Number of invited devices.
        accepted: Number of devices that accepted.
        declined: Number of devices that declined.
        reported: Number of committed updates, or of devices that answered an evaluate round.
        user_accuracy: Mean over the devices that reported, before LocalUpdate; an evaluate round has no LocalUpdate.
        user_accuracy_min: The worst of them: the least, or the greatest if `metric_goal` is "min".
        user_accuracy_after: Mean after LocalUpdate.
        phase_seconds: Seconds by phase.
        bytes_down: Bytes that devices downloaded (coordinator.rounds.round_record_builder).
        bytes_up: Bytes of received chunks.
        num_examples: Examples of all committed updates.
        decline_reasons: Number of declines by reason.
        failures: Number of failed devices by reason.
        refused: Number of refused updates by reason.
        late: Number of devices that were still working at the end.
        failure: "too_few_accepted", "quorum_missed" or "groups_lost" in a failed round, else "".
        metric: Name of the metric.
        metric_goal: "max" or "min".
        user_accuracy_p10: The bound of the worst tenth (MetricTerms.worst_tenth).
        user_accuracies: User accuracy by device, in rounds with few devices.
        bounded: Number of aggregated updates by the bound that changed them: "norm" for clipped updates, "num_examples" for
            updates with a capped weight (coordinator.aggregation.example_weights).
        downloads: Number of devices that downloaded the model.
        deadline_s: Seconds from the invitation to the deadline.
        report_p90_s: Seconds after which 90 % of the updates had arrived.
        absent: Missed rounds in a row by absent device (coordinator.rounds.missed_rounds).
        needed: Updates that make the quorum.
        measured: Number of devices that reported a user accuracy.
        offenders: Devices that the run does not invite again, each with its offence.
        bounded_devices: The bounds that changed a device's update, of the first devices (coordinator.aggregation.aggregate).
        pulls: The share of a device's change that bounds and rule took away, of the devices that were pulled farthest.
        pull_quantiles: `p50`, `p90` and `max` of that share over all aggregated updates.
        far: Rounds in a row in which the update of a device was far from the others (coordinator.rounds.far_updates).
        independent: The comparison with learning alone (`figures`); empty if it was not measured.
        privacy: With differential privacy: `epsilon` (None: unbounded) and `delta` of the device that most releases of the run
            used, the number of these releases (`rounds`), the number of all releases in the account (`all_releases`), and the
            `noise_multiplier`. Empty without differential privacy, and in a failed round, which releases nothing.
        train_loss: Mean training loss of the devices that reported.
        user_accuracy_histogram: In a masked round, which has no figures of single devices: the number of devices in each of 16
            equal bins over the range of the metric. Empty for a metric without limits, and in other rounds.
        buffered: Figures of carried work; None, and left out of JSON, in a run that refuses late updates.
    """

    round: Positive
    outcome: str
    cohort: Count
    accepted: Count
    declined: Count
    reported: Count
    user_accuracy: Measure | None = None
    user_accuracy_min: Measure | None = None
    user_accuracy_after: Measure | None = None
    phase_seconds: PhaseSeconds = PhaseSeconds()
    bytes_down: Count = 0
    bytes_up: Count = 0
    num_examples: Count = 0
    decline_reasons: Mapping[str, Count] = field(default_factory=dict)
    failures: Mapping[str, Count] = field(default_factory=dict)
    refused: Mapping[str, Count] = field(default_factory=dict)
    late: Count = 0
    failure: str = ""
    metric: str = ACCURACY
    metric_goal: Goal = "max"
    user_accuracy_p10: Measure | None = None
    user_accuracies: Mapping[str, Measure | None] = field(default_factory=dict)
    bounded: Mapping[str, Count] = field(default_factory=dict)
    downloads: Count = 0
    deadline_s: Measure = 0.0
    report_p90_s: Measure | None = None
    absent: Mapping[str, Count] = field(default_factory=dict)
    needed: Count = 0
    measured: Count = 0
    offenders: Mapping[str, str] = field(default_factory=dict)
    bounded_devices: Mapping[str, Sequence[str]] = field(default_factory=dict)
    independent: Mapping[str, Measure] = field(default_factory=dict)
    pulls: Mapping[str, Measure] = field(default_factory=dict)
    pull_quantiles: Mapping[str, Measure] = field(default_factory=dict)
    privacy: Mapping[str, Measure | None] = field(default_factory=dict)
    train_loss: Measure | None = None
    user_accuracy_histogram: tuple[Count, ...] = ()
    buffered: BufferedFigures | None = None
    far: Mapping[str, Count] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON; the key `failure` is left out of a round that did not fail."""
        plain: dict[str, Any] = finite(asdict(self))
        if not self.failure:
            del plain["failure"]
        if self.buffered is None:
            del plain["buffered"]
        return plain

    @property
    def label(self) -> str:
        """The name of its user accuracies, for headings."""
        return MetricTerms(self.metric).label

    @property
    def is_evaluation(self) -> bool:
        """True if devices only measured."""
        return self.outcome in EVALUATION_OUTCOMES

    @property
    def succeeded(self) -> bool:
        """True if the round was aggregated or evaluated."""
        return self.outcome in ("aggregated", "evaluated")

    @property
    def seconds(self) -> float:
        """The seconds of the round, the sum of its phases."""
        return float(sum(astuple(self.phase_seconds)))

    @property
    def outcome_words(self) -> str:
        """The outcome, with the reason of a failure."""
        what = "evaluation failed" if self.is_evaluation else "failed"
        return f"{what} ({self.failure})" if self.failure else self.outcome

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> RoundRecord:
        """Return the record that `to_dict` made plain; unknown keys are left out.

        Raises:
            ValueError: A key is missing, or its value has another type than its field.
        """
        try:
            record = msgspec.convert(plain, cls)
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from error
        check_figures(record.independent)
        return record


learn_types(RoundRecord)


def training_rounds(records: Sequence[RoundRecord]) -> int:
    """Return the number of rounds that trained or should have trained, that is all but evaluate rounds."""
    return sum(not record.is_evaluation for record in records)


def aggregated_rounds(records: Iterable[RoundRecord]) -> int:
    """Return the number of aggregated rounds, which checkpoints count: failed and evaluate rounds have numbers only."""
    return sum(record.outcome == "aggregated" for record in records)


def last_user_accuracy(records: Sequence[RoundRecord]) -> float | None:
    """Return the user accuracy of the last aggregated round that has one; a failed round measured only some devices."""
    measured = [record.user_accuracy for record in records if record.outcome == "aggregated"]
    return next((ua for ua in reversed(measured) if ua is not None), None)


def pulled_most(records: Iterable[RoundRecord]) -> list[tuple[str, float, int]]:
    """List the devices whose updates were pulled, by their sum over the rounds, the greatest first.

    Returns:
        Device, mean share of its change that was taken away, and number of rounds whose records name it.
    """
    pulls: dict[str, list[float]] = {}
    for record in records:
        for device, pull in record.pulls.items():
            pulls.setdefault(device, []).append(pull)
    ordered = sorted(pulls, key=lambda device: (-math.fsum(pulls[device]), device))
    return [(device, math.fsum(pulls[device]) / len(pulls[device]), len(pulls[device])) for device in ordered]


def finite(value: Any) -> Any:
    """Return `value` for JSON: Python's numbers for numpy's, None for NaN and infinities, floats within ±MAX_MEASURE."""
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, int):
        return int(value)
    number = float(value)
    return max(-MAX_MEASURE, min(number, MAX_MEASURE)) if math.isfinite(number) else None
