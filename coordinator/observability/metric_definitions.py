"""The metrics of a coordinator, named by the conventions of Prometheus; docs/reference/metrics.md lists them.

Where the values of all labels are known, each series exists from the start, so that the first increase of a counter is visible.
Each run has a registry of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)

from fedpatch.coordinator.rounds.participant_transitions import State
from fedpatch.shared.wire.reason_codes import Condition, DeclineReason, FailReason, RefuseReason

# From the round of a demo to that of the slowest fleet.
BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)

PHASES = ("select", "recruit", "download", "train", "upload", "aggregate", "checkpoint")
DEVICE_PHASES = ("download", "train", "upload")
OUTCOMES = ("aggregated", "too_few_accepted", "quorum_missed")
FLEET_STATES = ("eligible", "unwilling", "barred", "quarantined", "drained", "other_task", "starting", "offline")
SIGNS = ("told", "on_battery", "under_voltage", "throttled", "hot")
RESULTS = ("committed", "late", "refused", "damaged")
IGNORED = ("unknown_message", "not_ours", "revoked", "over_limit", "not_granted", "fleet_full")
BOUNDS = ("norm", "num_examples")
MOMENTS = ("before", "after")
CONDITIONS = (*Condition, DeclineReason.UNWILLING)
# Uncompressed kinds have no raw size.
BYTES = (
    ("down", "model", "wire"),
    ("down", "model", "raw"),
    ("up", "update", "wire"),
    ("up", "update", "raw"),
    ("down", "message", "wire"),
    ("up", "message", "wire"),
)


class RoundGauges:
    """Metrics of the run and its rounds."""

    def __init__(self, registry: CollectorRegistry) -> None:
        gauge = partial(_gauge, registry)
        self.build = gauge("build_info", "Version of fedpatch", "version")
        self.run = gauge(
            "run_info", "The run, and what its user accuracies are of", "run", "task", "strategy", "metric", "goal"
        )
        self.number = gauge("round_number", "Number of the round that is open, or of the last one")
        self.planned = gauge("rounds_planned", "Rounds after which the run ends")
        self.open = gauge("round_open", "1 while a round is open")
        self.elapsed = gauge("round_elapsed_seconds", "Since the open round began")
        self.deadline = gauge("round_deadline_seconds", "Time after which a round ends with what it has")
        self.pause = gauge("pause_seconds", "Until the next round may begin")
        self.quorum = gauge("quorum_updates", "Updates that make the quorum of the open round")
        self.aggregated_at = gauge("last_round_timestamp_seconds", "Unix time at which a round was last aggregated")
        self.failed_in_a_row = gauge("rounds_failed_in_a_row", "Failed rounds since the last aggregated one")
        self.last_phases = gauge(
            "last_round_phase_seconds", "Phases of the last round, by the coordinator's clock", "phase"
        )
        self.user_accuracy = gauge(
            "user_accuracy",
            "On test data, over the devices of the last aggregated round, before and after its training",
            "stat",
            "moment",
        )
        self.independent = gauge(
            "independent",
            "Learning alone, as last measured: mean user accuracy, mean gain over it, share of devices that gain and lose",
            "stat",
        )
        self.outcomes = _counter(registry, "rounds", "Rounds that are over", "outcome")
        self.seconds = Histogram(
            "fedpatch_round_seconds", "A round, until it is on the disk", registry=registry, buckets=BUCKETS_S
        )
        self.phases = Histogram(
            "fedpatch_round_phase_seconds",
            "Phases of rounds, by the clock of one side",
            ("phase", "side"),
            registry=registry,
            buckets=BUCKETS_S,
        )
        begin(self.outcomes, OUTCOMES)
        for phase in PHASES:
            self.phases.labels(phase, "coordinator")
        for phase in DEVICE_PHASES:
            self.phases.labels(phase, "device")


class FleetGauges:
    """Metrics of the fleet as a whole."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter, gauge = partial(_counter, registry), partial(_gauge, registry)
        self.devices = gauge("devices", "Known devices; the states exclude each other", "state")
        self.wanted = gauge("devices_wanted", "Devices that must be eligible for the next round")
        self.participants = gauge("participants", "Participants of the open round", "state")
        self.unwilling = gauge("unwilling_devices", "Devices that would decline now", "condition")
        self.signs = gauge("devices_showing", "Devices whose vitals show a sign of trouble", "sign")
        self.declines = counter("declines", "Invitations that were declined", "reason")
        self.failures = counter("failures", "Participants that gave up after they accepted, or stayed away", "reason")
        self.lost = counter("participants_lost", "Times a participant vanished during a round")
        self.disconnects = counter("disconnects", "Times a device went offline")
        self.ignored = counter("messages_ignored", "Messages that could not be used", "reason")
        begin(self.devices, FLEET_STATES)
        begin(self.participants, State)
        begin(self.unwilling, CONDITIONS)
        begin(self.signs, SIGNS)
        begin(self.declines, (*DeclineReason, *Condition))
        begin(self.failures, (*FailReason, *Condition, "lost", "revoked"))
        begin(self.ignored, IGNORED)


class TrafficGauges:
    """Metrics of bytes, queues and the disk."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter, gauge = partial(_counter, registry), partial(_gauge, registry)
        self.updates = counter("updates", "Updates by what became of them", "result")
        self.refusals = counter("refusals", "Updates that were not taken", "reason")
        self.bounded = counter("updates_bounded", "Updates that count for less than they came with", "bound")
        self.turned_away = counter("messages_turned_away", "Messages of devices in quarantine")
        self.bytes = counter(
            "bytes", "Bytes as they travelled, and of the tensors in them", "direction", "kind", "form"
        )
        self.repaired = counter("chunks_repaired", "Chunks of the model that were published once more")
        self.lacking = gauge(
            "devices_lacking_encoding", "Devices that were last asked for another encoding than the run's"
        )
        self.stalls = counter("window_stalls", "Uploads that went quiet and were granted again")
        self.waiting = gauge("event_queue_depth", "Events that wait for the coordinator")
        self.spool = gauge("update_spool_bytes", "Updates on the disk that wait for aggregation")
        self.free = gauge("state_free_bytes", "Free space on the disk of the state directory")
        self.size = gauge("state_size_bytes", "Size of the disk of the state directory")
        self.connected = gauge("broker_connected", "1 while the broker is connected")
        self.expiry = gauge(
            "certificate_expiry_timestamp_seconds", "Unix time at which a certificate expires", "certificate"
        )
        self.device_series = gauge("device_series", "Devices that have series of their own")
        self.without_series = gauge("devices_without_series", "Known devices that have no series of their own")
        begin(self.updates, RESULTS)
        begin(self.refusals, RefuseReason)
        begin(self.bounded, BOUNDS)
        for labels in BYTES:
            self.bytes.labels(*labels)


class Metrics:
    """All metrics and those of the process; the endpoint serves `registry`."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # creation times would double the number of series
        self.registry = CollectorRegistry()
        self.rounds = RoundGauges(self.registry)
        self.fleet = FleetGauges(self.registry)
        self.traffic = TrafficGauges(self.registry)
        ProcessCollector(registry=self.registry)


def _counter(registry: CollectorRegistry, name: str, text: str, *labels: str) -> Counter:
    return Counter(f"fedpatch_{name}", text, labels, registry=registry)


def _gauge(registry: CollectorRegistry, name: str, text: str, *labels: str) -> Gauge:
    return Gauge(f"fedpatch_{name}", text, labels, registry=registry)


def begin(metric: Counter | Gauge, words: Iterable[str]) -> None:
    """Create the series of these values of the only label, at 0."""
    for word in words:
        metric.labels(str(word))
