"""The records of rounds, runs, devices and updates, and the comparison of a round with learning alone.

Scripts read `to_json`, whose keys stay the same. A number that is not finite becomes null, since JSON has no such number.

The gain of a device is its user accuracy before the round's training minus the user accuracy of the model that it trained alone
(device_agent.training.local_only_training). For a metric with the goal "min" the sign is the opposite, so that a gain above 0
is always good.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from fedpatch.shared.app.formatting import accuracy
from fedpatch.shared.scripting.frames import frame_of
from fedpatch.shared.tasks.gains import gain_figures, gain_of, gain_words
from fedpatch.shared.tasks.metric_spec import ACCURACY, Goal, MetricTerms
from fedpatch.shared.typed_values import learn_types
from fedpatch.shared.wire.field_types import MAX_MEASURE, Count, Measure, Positive
from fedpatch.shared.wire.messages import UpdateReport

if TYPE_CHECKING:
    from pandas import DataFrame

EVALUATION_OUTCOMES = ("evaluated", "evaluation_failed")
"""Outcomes of rounds in which devices only measure."""
_ALWAYS = frozenset({"measured", "user_accuracy", "gaining", "losing", "gain"})


def check_figures(independent: Mapping[str, float]) -> None:
    """Raise ValueError if some of the figures are present and others are missing."""
    missing = _ALWAYS - independent.keys()
    if independent and missing:
        raise ValueError(f"independent lacks {', '.join(sorted(missing))}")


def figures(reports: Iterable[UpdateReport], metric: MetricTerms) -> dict[str, float]:
    """Compare the reports of a round with learning alone.

    Args:
        reports: Reports of committed updates. A report without both user accuracies is left out.
        metric: The metric of the user accuracies.

    Returns:
        `measured`: number of devices; `user_accuracy`: mean of learning alone; the figures of `gain_figures`; `gain_after`:
        mean gain after local training, if that was measured. Empty if no device measured it.
    """
    gains, after, alone = [], [], []
    for report in reports:
        own, before = report.user_accuracy_independent, report.user_accuracy_before
        if own is None or before is None:
            continue
        alone.append(own)
        gains.append(gain_of(before, own, metric))
        if report.user_accuracy_after is not None:
            after.append(gain_of(report.user_accuracy_after, own, metric))
    if not gains:
        return {}
    found = {"measured": len(gains), "user_accuracy": statistics.fmean(alone), **gain_figures(gains)}
    return found | ({"gain_after": statistics.fmean(after)} if after else {})


def fleet_loses(independent: Mapping[str, float]) -> bool:
    """Return whether more devices lose than gain, or the mean gain is below 0."""
    return bool(independent) and (independent["losing"] > independent["gaining"] or independent["gain"] < 0)


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


_GAINS = {
    "gain": "mean",
    "gain_median": "median",
    "gain_p10": "10th percentile",
    "gain_after": "mean after local training",
}


def headline(independent: Mapping[str, float], label: str) -> str:
    """Return how many devices gain from taking part, and by how much, "" for none; `label` names the user accuracies."""
    if not independent:
        return ""
    count = round(independent["measured"])
    gains = [f"{gain_words(independent[key], label)} ({word})" for key, word in _GAINS.items() if key in independent]
    return (
        f"{round(independent['gaining'] * count)} of {count} devices gain ({independent['gaining']:.0%}), "
        f"{round(independent['losing'] * count)} lose, by {', '.join(gains)}; alone {label} "
        f"{accuracy(independent['user_accuracy'])}"
    )


def last_comparison(records: Sequence[RoundRecord]) -> RoundRecord | None:
    """Return the last record with a comparison with learning alone."""
    return next((record for record in reversed(records) if record.independent), None)


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
            used, the number of these releases (`rounds`), the number of all releases in the book (`all_releases`), and the
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
        plain: dict[str, Any] = _finite(asdict(self))
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


def loss_warning(records: Sequence[RoundRecord], private: str) -> str:
    """Return a warning, with a remedy, if the fleet loses by the last comparison with learning alone, else "".

    The figures are not repeated: they are in the text of the round and of the summary (`headline`).

    Args:
        records: Rounds, in order.
        private: The patch policy of the run; its remedy is another policy.
    """
    last = last_comparison(records)
    if last is None or not fleet_loses(last.independent):
        return ""
    remedy = "compare the policies with `fedpatch simulate compare`"
    further = "" if private == "all" else ", and try --private all"
    return f"round {last.round} shows that devices are worse off than learning alone; {remedy}{further}"


def measure_words(records: Sequence[RoundRecord]) -> str:
    """Return the name of `last_user_accuracy`: `user accuracy`, or the name of the task's own metric."""
    return MetricTerms(records[-1].metric if records else ACCURACY).words


@dataclass(frozen=True)
class RunSummary:
    """The result of a run, final or so far.

    Args:
        run: Name of the run.
        stopped_because: "target_ua", "max_rounds", "deadline", "interrupted" or "failed".
        user_accuracy: User accuracy of the last aggregated round (`last_user_accuracy`).
        model: Path or URL of the exported global model; "" if there is none.
        rounds: The records of its rounds.
        private: The patch policy, for `loss_warning`; "" if it is not known.

    Example:
        >>> from fedpatch import RunSummary
        >>> RunSummary("20261124-091500-5f3a2c", "max_rounds", 0.97, "model.npz", rounds=())
        <RunSummary 20261124-091500-5f3a2c: max_rounds after 0 rounds, user accuracy 0.970>
    """

    run: str
    stopped_because: str
    user_accuracy: float | None
    model: str
    rounds: Sequence[RoundRecord]
    private: str = ""

    def __repr__(self) -> str:
        """Return the result in a line: the records of hundreds of rounds would fill a notebook."""
        accuracy = "" if self.user_accuracy is None else f", {measure_words(self.rounds)} {self.user_accuracy:.3f}"
        return f"<RunSummary {self.run}: {self.stopped_because} after {training_rounds(self.rounds)} rounds{accuracy}>"

    @property
    def in_vain(self) -> bool:
        """True if no round succeeded, so that the model is unchanged."""
        return all(record.outcome != "aggregated" for record in self.rounds)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        last = last_comparison(self.rounds)
        return {
            "run": self.run,
            "stopped_because": str(self.stopped_because),
            "user_accuracy": _finite(self.user_accuracy),
            "model": self.model,
            "rounds": [record.to_dict() for record in self.rounds],
            "warnings": [warning] if (warning := loss_warning(self.rounds, self.private)) else [],
            "independent": {"round": last.round, **last.to_dict()["independent"]} if last else {},
        }

    def to_json(self) -> str:
        """Return one JSON object, on one line."""
        return json.dumps(self.to_dict(), allow_nan=False)

    def to_frame(self) -> DataFrame:
        """Return a data frame with a row for each round, indexed by `round`.

        Its columns are the figures of a record, the seconds of each phase (`train_s`, ...) and of the whole round (`seconds`).
        Counts by reason or device are in `rounds`, user accuracies by device in `devices_frame`.

        Raises:
            UsageError: pandas is not installed.
        """
        return frame_of(map(_row, self.rounds), "round")

    def devices_frame(self) -> DataFrame:
        """Return a data frame with the user accuracy of each device in each round: columns `round`, `device`, `user_accuracy`.

        Raises:
            UsageError: pandas is not installed.
        """
        return frame_of(
            {"round": record.round, "device": device, "user_accuracy": value}
            for record in self.rounds
            for device, value in record.user_accuracies.items()
        )


def _row(record: RoundRecord) -> dict[str, Any]:
    """The figures of a record, without counts by name."""
    plain = {key: value for key, value in asdict(record).items() if not isinstance(value, dict | list | tuple)}
    phases = {f"{phase}_s": seconds for phase, seconds in asdict(record.phase_seconds).items()}
    return {**plain, **phases, "seconds": record.seconds}


@dataclass(frozen=True)
class RunInfo:
    """A run in the registry.

    Attributes:
        id: Name of the run.
        created_at: Unix time, in seconds.
        task: Name of the task.
        strategy: Name of the strategy.
        private: The patch policy.
        settings: Public settings by name, without secrets.
        schema: Digest of the whole model's schema.
        epoch: Number of the last process that executed the run.
        status: "running", "finished", "interrupted" or "failed".
        stopped_because: See RunSummary; None in a run that has not ended.
        user_accuracy: See RunSummary.
        model: Path of the exported global model; None if there is none.
    """

    id: str
    created_at: float
    task: str
    strategy: str
    private: str
    settings: Mapping[str, Any]
    schema: str
    epoch: int
    status: str
    stopped_because: str | None
    user_accuracy: float | None
    model: str | None


def end_words(stopped_because: str) -> str:
    """Return the reason for the end of a run in words."""
    words = {"target_ua": "target reached", "max_rounds": "all rounds done", "deadline": "time limit reached"}
    return words.get(stopped_because, stopped_because)


def status_words(info: RunInfo) -> str:
    """Return the status of a run in words."""
    because = info.stopped_because or info.status
    return info.status if because == info.status else f"{info.status} ({end_words(because)})"


def summary_of(info: RunInfo, rounds: Sequence[RoundRecord]) -> RunSummary:
    """Return the summary that the run printed at its end, or the summary so far of a run that has not ended."""
    return RunSummary(
        run=info.id,
        stopped_because=info.stopped_because or info.status,
        user_accuracy=last_user_accuracy(rounds),
        model=info.model or "",
        rounds=rounds,
        private=info.private,
    )


@dataclass(frozen=True)
class Hold:
    """The reason for a hold on a device, and its beginning in Unix seconds."""

    reason: str
    since: float


@dataclass(frozen=True)
class DeviceInfo:
    """A device in the registry. Times are Unix seconds; counters are over all runs.

    Attributes:
        last_reason: Reason of its last decline, failure or refusal.
        offences: Offences since its last release (coordinator.cohort.offences).
        quarantined: The hold if it is in quarantine.
        drained: The hold if the operator has drained it.
        revoked: Whether the CA has revoked it.
        relay: Whether it is the relay of a site.
    """

    id: str
    fleet: str
    first_seen: float
    last_seen: float
    online: bool
    version: str
    tasks: tuple[str, ...]
    invited: int
    accepted: int
    declined: int
    reported: int
    lost: int
    failed: int
    refused: int
    late: int
    ignored: int
    last_reason: str
    offences: int = 0
    quarantined: Hold | None = None
    drained: Hold | None = None
    revoked: bool = False
    relay: bool = False


@dataclass(frozen=True)
class StoredUpdate:
    """An update on disk (coordinator.storage.checkpoint).

    Attributes:
        round: Number of the round.
        device: The device.
        digest: SHA-256 of the packed update.
        raw_bytes: Size of the unpacked update.
        num_examples: Examples that it reports.
        encoding: Its encoding.
    """

    round: int
    device: str
    digest: str
    raw_bytes: int
    num_examples: int
    encoding: str


def _finite(value: Any) -> Any:
    """Return `value` for JSON: Python's numbers for numpy's, None for NaN and infinities, floats within ±MAX_MEASURE."""
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, int):
        return int(value)
    number = float(value)
    return max(-MAX_MEASURE, min(number, MAX_MEASURE)) if math.isfinite(number) else None
