"""What is remembered: of a round, of a whole run, of a device, of an update.

`to_json` is what scripts read; its keys are a promise. A number that is not finite becomes null, since JSON has none.

Whether the devices of a round are better off than learning alone would have made them, in figures and in words.

The gain of a device is its user accuracy before the round's training less that of the model that it trained alone
(device_agent.training.local_only_training); where the metric's goal is "min", the other way round. So a gain above 0 is always
good.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field
from typing import Any

import msgspec

from fedpatch.shared.app.formatting import accuracy
from fedpatch.shared.tasks.metric_spec import ACCURACY, Goal, MetricTerms
from fedpatch.shared.wire.field_types import Count, Measure, Positive
from fedpatch.shared.wire.messages import UpdateReport

_ALWAYS = frozenset({"measured", "user_accuracy", "gaining", "losing", "gain"})


def check_figures(independent: Mapping[str, float]) -> None:
    """Raise ValueError where some of the figures are there and others are missing."""
    missing = _ALWAYS - independent.keys()
    if independent and missing:
        raise ValueError(f"independent lacks {', '.join(sorted(missing))}")


def figures(reports: Iterable[UpdateReport], metric: MetricTerms) -> dict[str, float]:
    """Compare the reports of a round with learning alone.

    Args:
        reports: Those that count. A report without both user accuracies is left out.
        metric: That of their user accuracies.

    Returns:
        `measured` devices, the mean `user_accuracy` of learning alone, the shares `gaining` and `losing` (of equals
        neither), the mean `gain`, and `gain_after`, the same after local training where that was measured. Empty where
        no device measured it.
    """
    sign = -1.0 if metric.goal == "min" else 1.0
    gains, after, alone = [], [], []
    for report in reports:
        own, before = report.user_accuracy_independent, report.user_accuracy_before
        if own is None or before is None:
            continue
        alone.append(own)
        gains.append(sign * (before - own))
        if report.user_accuracy_after is not None:
            after.append(sign * (report.user_accuracy_after - own))
    if not gains:
        return {}
    found = {
        "measured": len(gains),
        "user_accuracy": statistics.fmean(alone),
        "gaining": sum(gain > 0 for gain in gains) / len(gains),
        "losing": sum(gain < 0 for gain in gains) / len(gains),
        "gain": statistics.fmean(gains),
    }
    return found | ({"gain_after": statistics.fmean(after)} if after else {})


def fleet_loses(independent: Mapping[str, float]) -> bool:
    """Whether more devices lose than gain, or all lose in the mean."""
    return bool(independent) and (independent["losing"] > independent["gaining"] or independent["gain"] < 0)


def gain_words(independent: Mapping[str, float], label: str) -> str:
    """The figures in one line, "" for none; `label` is what the user accuracies are called."""
    if not independent:
        return ""
    count = round(independent["measured"])
    after = f", {independent['gain_after']:+.3g} after local training" if "gain_after" in independent else ""
    return (
        f"alone {label} {accuracy(independent['user_accuracy'])}, {round(independent['gaining'] * count)} of {count} devices "
        f"gain, {round(independent['losing'] * count)} lose, by {independent['gain']:+.3g} in the mean{after}"
    )


@dataclass(frozen=True)
class PhaseSeconds:
    """Seconds a round spent in each phase, as the coordinator's clock saw it."""

    select: Measure = 0.0
    recruit: Measure = 0.0
    download: Measure = 0.0
    train: Measure = 0.0
    upload: Measure = 0.0
    aggregate: Measure = 0.0


@dataclass(frozen=True)
class RoundRecord:
    """The books on one round.

    `outcome` is aggregated or failed; only a failed round has a `failure`: too_few_accepted or quorum_missed.
    User accuracies are the mean and the worst over the devices that reported, of the global model with each device's
    patch, before LocalUpdate, and the mean after it; None where no device measured one. They are values of `metric`, the
    worst is the least, or the greatest where the `metric_goal` is "min"; `user_accuracy_p10` is what the worst tenth of them
    is no better than (MetricTerms.worst_tenth). `user_accuracies` has them by device, in rounds with few
    (coordinator.rounds.round_record_builder). `bytes_down` and `bytes_up` are bytes as they travelled
    (coordinator.rounds.round_record_builder), `downloads` the devices that came to the round's model. The maps count devices by
    reason; `late` counts devices that the round left behind. `bounded` counts updates that are in the aggregate, but not as
    they came: those that were pulled back to the bound of the `norm`, and those that weigh less than the `num_examples` they
    report (coordinator.aggregation.norm_clipping). `deadline_s` is the time that the round had from its invitation,
    `report_p90_s` the time by which 90 % of its updates were in; `absent` has the devices that are asked and do not report,
    with how many rounds in a row (coordinator.rounds.missed_rounds). `needed` updates would have made the quorum, `measured`
    devices reported a user accuracy. `offenders` are devices with the offence for which they are not asked again in the run
    (coordinator.cohort.quorum). `bounded_devices` names the first devices whose updates were bounded, and what of their
    updates it was (coordinator.aggregation.aggregate). `independent` compares with learning alone; it is empty in rounds
    that did not measure it.
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

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; `failure` only where there is one."""
        plain: dict[str, Any] = _finite(asdict(self))
        if not self.failure:
            del plain["failure"]
        return plain

    @property
    def label(self) -> str:
        """What its user accuracies are called in a heading or a line."""
        return MetricTerms(self.metric).label

    @property
    def seconds(self) -> float:
        """How long the round took; its phases add up to that."""
        return float(sum(astuple(self.phase_seconds)))

    @property
    def outcome_words(self) -> str:
        """What came of the round, with the reason where it failed."""
        return f"failed ({self.failure})" if self.failure else self.outcome

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> RoundRecord:
        """Undo `to_dict`; keys that this version does not know are left out.

        Raises ValueError where one is missing, or has a value that is not of its field's type.
        """
        try:
            record = msgspec.convert(plain, cls)
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from error
        check_figures(record.independent)
        return record


def last_user_accuracy(records: Sequence[RoundRecord]) -> float | None:
    """That of the last aggregated round that has one: a round that failed was measured on a part of its devices only."""
    measured = [record.user_accuracy for record in records if record.outcome == "aggregated"]
    return next((ua for ua in reversed(measured) if ua is not None), None)


def loss_warning(records: Sequence[RoundRecord]) -> str:
    """What to warn of where the fleet loses by the last measure of learning alone, and what to do; "" where it does not."""
    measured = [record for record in records if record.independent]
    if not measured or not fleet_loses(measured[-1].independent):
        return ""
    last = measured[-1]
    return (
        f"by round {last.round} devices are worse off than learning alone: {gain_words(last.independent, last.label)}; try "
        "--private all, and compare the policies with `fedpatch simulate compare`"
    )


def measure_words(records: Sequence[RoundRecord]) -> str:
    """What `last_user_accuracy` is of: `user accuracy`, or the name of the task's own metric."""
    return MetricTerms(records[-1].metric if records else ACCURACY).words


@dataclass(frozen=True)
class RunSummary:
    """What a run came to. `stopped_because` is target_ua, max_rounds, deadline, interrupted or failed.

    `user_accuracy` is that of `last_user_accuracy`; `model` is the path of the exported global model, empty
    where there is none.
    """

    run: str
    stopped_because: str
    user_accuracy: float | None
    model: str
    rounds: Sequence[RoundRecord]

    @property
    def in_vain(self) -> bool:
        """Whether no round succeeded: the model is as it was at the beginning."""
        return all(record.outcome != "aggregated" for record in self.rounds)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "run": self.run,
            "stopped_because": str(self.stopped_because),
            "user_accuracy": _finite(self.user_accuracy),
            "model": self.model,
            "rounds": [record.to_dict() for record in self.rounds],
            "warnings": [warning] if (warning := loss_warning(self.rounds)) else [],
        }

    def to_json(self) -> str:
        """One JSON object, on one line."""
        return json.dumps(self.to_dict(), allow_nan=False)


@dataclass(frozen=True)
class RunInfo:
    """A run as the registry keeps it. `status` is running, finished, interrupted or failed; times are unix seconds.

    `settings` are the public ones (no secrets), by name; `schema` is the digest of the whole model's schema.
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
    """Why a run ended, for people: `stopped_because` itself is a word for programs."""
    words = {"target_ua": "target reached", "max_rounds": "all rounds done", "deadline": "time limit reached"}
    return words.get(stopped_because, stopped_because)


def status_words(info: RunInfo) -> str:
    """Whether a run goes on, or how it ended, for people."""
    because = info.stopped_because or info.status
    return info.status if because == info.status else f"{info.status} ({end_words(because)})"


def summary_of(info: RunInfo, rounds: Sequence[RoundRecord]) -> RunSummary:
    """What the run printed at its end; for one that has not ended, what it came to so far."""
    return RunSummary(
        run=info.id,
        stopped_because=info.stopped_because or info.status,
        user_accuracy=last_user_accuracy(rounds),
        model=info.model or "",
        rounds=rounds,
    )


@dataclass(frozen=True)
class Hold:
    """Why a device is not asked, and since when, in unix seconds."""

    reason: str
    since: float


@dataclass(frozen=True)
class DeviceInfo:
    """A device as the registry keeps it: when it was seen (unix seconds), what it can train, what came of asking it.

    The numbers are over all runs; `last_reason` is why it last declined, failed or was refused. `offences` are those since it
    was last released (coordinator.cohort.offences).
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


@dataclass(frozen=True)
class StoredUpdate:
    """An update on disk (coordinator.storage.checkpoint): SHA-256 of its blob, size when decompressed, encoding."""

    round: int
    device: str
    digest: str
    raw_bytes: int
    num_examples: int
    encoding: str


def _finite(value: Any) -> Any:
    """`value` with floats that JSON cannot hold as None, and number types of numpy as Python's."""
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if isinstance(value, int):
        return int(value)
    number = float(value)
    return number if math.isfinite(number) else None
