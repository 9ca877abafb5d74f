"""Metrics of the run and its rounds: phases by the clocks of coordinator and devices, outcomes, user accuracy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

from fedpatch.coordinator.observability.metric_definitions import EVALUATION_STATS, MOMENTS, PULL_STATS, RoundGauges
from fedpatch.coordinator.rounds.auto_deadline import policy_of
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.rounds.run_effects import AggregateUpdates, CountEvent, Effect, SaveJournal, SaveRecord
from fedpatch.coordinator.rounds.run_engine import Engine
from fedpatch.coordinator.rounds.run_summary import RunInfo
from fedpatch.shared import __version__
from fedpatch.shared.tasks.metric_spec import ACCURACY, MetricTerms
from fedpatch.shared.wire.messages import UpdateReport

INDEPENDENT_STATS = frozenset({"user_accuracy", "gain", "gain_median", "gain_p10", "gaining", "losing"})


class RoundMetrics:
    """Updates the metrics of rounds from `engine`, in the coordinator's thread."""

    def __init__(self, metrics: RoundGauges, engine: Engine, strategy: str) -> None:
        self._metrics = metrics
        self._engine = engine
        self._reports: Mapping[str, UpdateReport | None] = {}
        self._began_at = self._aggregated_at = self._ended_at = -math.inf
        self._overlap_s = 0.0
        self._failed = 0
        spec = engine.spec
        metrics.build.labels(__version__).set(1)
        metrics.run.labels(spec.run, spec.task, strategy, spec.metric.name, spec.metric.goal).set(1)
        metrics.planned.set(spec.rounds)

    def performed(self, effect: Effect, began_at: float, ended_at: float) -> None:
        """Handle an effect that concerns rounds."""
        match effect:
            case SaveJournal():
                self._open(began_at)
            case CountEvent(what="reported"):
                self._reported(effect.device)
            case AggregateUpdates():
                self._aggregated_at = ended_at
            case SaveRecord():
                self._record(effect.record, began_at, ended_at)

    def look(self, now: float) -> None:
        """Update the metrics of the run."""
        metrics, engine = self._metrics, self._engine
        current = engine.open.round if engine.open else None
        metrics.number.set(engine.last_round)
        metrics.open.set(current is not None)
        metrics.elapsed.set(current.elapsed_s(now) if current else 0.0)
        metrics.deadline.set(
            current.policy.deadline_s if current else policy_of(engine.spec, engine.records).deadline_s
        )
        metrics.quorum.set(current.needed if current else 0)
        metrics.pause.set(engine.pause_s(now))

    def _open(self, now: float) -> None:
        """Keep the reports of the round: the engine drops them before the record is saved."""
        if self._engine.open is not None:
            self._reports = self._engine.open.reports
            began_at = now - self._engine.open.round.elapsed_s(now)
        else:  # the round ended in the call that opened it
            self._reports, began_at = {}, now
        # The engine opens the next round before the last one is saved: the time until then belongs to the last round.
        self._began_at = max(began_at, self._ended_at)
        self._overlap_s = self._began_at - began_at

    def _reported(self, device: str) -> None:
        if self._engine.open is not None and self._engine.open.evaluates:
            return
        report = self._reports.get(device)
        if report is not None and self._engine.spec.privacy is None:
            self._metrics.phases.labels("download", "device").observe(report.download_s)
            self._metrics.phases.labels("train", "device").observe(report.train_s)

    def _record(self, record: RoundRecord, began_at: float, ended_at: float) -> None:
        metrics, aggregated = self._metrics, record.outcome == "aggregated"
        if record.is_evaluation:
            _set_evaluation(metrics, record)
            return
        _count_outcome(metrics, record)
        metrics.seconds.observe(ended_at - self._began_at)
        self._ended_at = ended_at
        seconds = asdict(record.phase_seconds)
        seconds["select"] -= self._overlap_s
        seconds["checkpoint"] = ended_at - (self._aggregated_at if aggregated else began_at)
        for phase, spent_s in seconds.items():
            metrics.phases.labels(phase, "coordinator").observe(max(0.0, spent_s))
            metrics.last_phases.labels(phase).set(max(0.0, spent_s))
        self._failed = 0 if aggregated else self._failed + 1
        metrics.failed_in_a_row.set(self._failed)
        _set_comparison(metrics, record)
        if (buffered := record.buffered) is not None:
            metrics.buffered.carried.set(buffered.carried)
            metrics.buffered.unused.inc(buffered.unused)
            metrics.buffered.stale.inc(buffered.stale)
            for staleness, count in buffered.staleness.items():
                for _ in range(count):
                    metrics.buffered.staleness.observe(float(staleness))
            for fifth, share in enumerate(buffered.weights, 1):
                metrics.buffered.weights.labels(str(fifth)).set(share)
        if aggregated:
            metrics.aggregated_at.set_to_current_time()
            self._user_accuracy(record)

    def _user_accuracy(self, record: RoundRecord) -> None:
        reports = [report for report in self._reports.values() if report is not None]
        if not reports:
            _set_summed_accuracy(self._metrics, record)
            return
        measured = zip(
            MOMENTS,
            ([one.user_accuracy_before for one in reports], [one.user_accuracy_after for one in reports]),
            strict=True,
        )
        for moment, values in measured:
            for stat, value in spread(values, self._engine.spec.metric).items():
                self._metrics.user_accuracy.labels(stat, moment).set(value)


def set_from_records(metrics: RoundGauges, info: RunInfo, records: Sequence[RoundRecord]) -> None:
    """Set the metrics that follow from the records of a run's rounds, without the reports of its devices.

    Args:
        metrics: New metrics.
        records: Rounds of the run, in order.
    """
    metrics.build.labels(__version__).set(1)
    last = records[-1] if records else None
    terms = (last.metric, last.metric_goal) if last else (ACCURACY, "max")
    metrics.run.labels(info.id, info.task, info.strategy, *terms).set(1)
    for record in records:
        if record.is_evaluation:
            _set_evaluation(metrics, record)
            continue
        _count_outcome(metrics, record)
        _set_comparison(metrics, record)
        metrics.deadline.set(record.deadline_s)
        metrics.seconds.observe(record.seconds)
        for phase, spent_s in asdict(record.phase_seconds).items():
            metrics.phases.labels(phase, "coordinator").observe(spent_s)
            metrics.last_phases.labels(phase).set(spent_s)
        if record.outcome == "aggregated":
            _set_summed_accuracy(metrics, record)
            if record.user_accuracy_min is not None:
                metrics.user_accuracy.labels("min", MOMENTS[0]).set(record.user_accuracy_min)


def _count_outcome(metrics: RoundGauges, record: RoundRecord) -> None:
    metrics.outcomes.labels(record.outcome if record.outcome == "aggregated" else record.failure).inc()


def _set_comparison(metrics: RoundGauges, record: RoundRecord) -> None:
    for stat in INDEPENDENT_STATS & record.independent.keys():
        metrics.independent.labels(stat).set(record.independent[stat])
    for stat in PULL_STATS:
        metrics.pulls.labels(stat).set(record.pull_quantiles.get(stat, 0.0))
    metrics.far_rounds.set(max(record.far.values(), default=0))


def _set_evaluation(metrics: RoundGauges, record: RoundRecord) -> None:
    """Set the figures of an evaluate round; without an answer the earlier figures stay."""
    metrics.outcomes.labels(record.outcome).inc()
    values = (record.user_accuracy, record.user_accuracy_p10, record.user_accuracy_min)
    for stat, value in zip(EVALUATION_STATS, (*values, record.measured), strict=True):
        if record.measured and value is not None:
            metrics.evaluation.labels(stat).set(value)


def _set_summed_accuracy(metrics: RoundGauges, record: RoundRecord) -> None:
    """Set the figures of a round whose devices' reports are not known, such as a masked one."""
    sums = (
        ("mean", MOMENTS[0], record.user_accuracy),
        ("p10", MOMENTS[0], record.user_accuracy_p10),
        ("mean", MOMENTS[1], record.user_accuracy_after),
    )
    for stat, moment, value in sums:
        if value is not None:
            metrics.user_accuracy.labels(stat, moment).set(value)


def spread(values: Iterable[float | None], metric: MetricTerms) -> dict[str, float]:
    """Return mean, worst tenth (MetricTerms.worst_tenth) and worst of the values; empty for no values."""
    known = [value for value in values if value is not None]
    tenth, worst = metric.worst_tenth(known), metric.worst(known)
    return (
        {"mean": sum(known) / len(known), "p10": tenth, "min": worst} if tenth is not None and worst is not None else {}
    )
