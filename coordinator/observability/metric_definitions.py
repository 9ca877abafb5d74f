"""The metrics of a coordinator, named by the conventions of Prometheus; docs/reference/metrics.md is generated from them.

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

FIFTHS = ("1", "2", "3", "4", "5")
STALENESS_BUCKETS = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0)

PHASES = ("select", "recruit", "download", "train", "upload", "aggregate", "checkpoint")
DEVICE_PHASES = ("download", "train", "upload")
PULL_STATS = ("p50", "p90", "max")
ENDS = ("target_ua", "max_rounds", "deadline")
OUTCOMES = ("aggregated", "too_few_accepted", "quorum_missed")
EVALUATION_STATS = ("mean", "p10", "min", "devices")
FLEET_STATES = ("eligible", "unwilling", "barred", "quarantined", "drained", "other_task", "starting", "offline")
SIGNS = ("reporting", "on_battery", "under_voltage", "throttled", "hot")
RESULTS = ("committed", "late", "refused", "damaged")
IGNORED = (
    *("unknown_message", "not_ours", "revoked", "over_limit", "not_granted", "fleet_full", "other_context"),
    "damaged_chunk",
)
WAYS = ("mqtt", "url")
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


class BufferedGauges:
    """Metrics of buffered rounds (late = carry)."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.carried = _gauge(registry, "carried_devices", "Devices whose work the next round may take (late = carry)")
        self.weights = _gauge(
            registry,
            "weight_share",
            "Share of the weights in the last round by fifth of the devices, 1: the fastest (late = carry)",
            "fifth",
        )
        self.unused = _counter(registry, "updates_unused", "Committed updates that no model took, since the run ended")
        self.stale = _counter(registry, "carried_work_stale", "Carried work that was ended at max_staleness")
        self.staleness = Histogram(
            "fedpatch_update_staleness",
            "Versions between the base of an update and the model (late = carry)",
            registry=registry,
            buckets=STALENESS_BUCKETS,
        )
        begin(self.weights, FIFTHS)


class RoundGauges:
    """Metrics of the run and its rounds."""

    def __init__(self, registry: CollectorRegistry) -> None:
        gauge = partial(_gauge, registry)
        self.build = gauge("build_info", "Version of fedpatch", "version")
        self.run = gauge(
            "run_info",
            "Always 1; goal of the metric: max or min",
            "run",
            "task",
            "strategy",
            "metric",
            "goal",
        )
        self.ended = gauge(
            "run_ended", "1 after the end of the run, by reason: target_ua, max_rounds, deadline", "reason"
        )
        self.number = gauge("round_number", "Open round, else the last one; 0: none yet")
        self.planned = gauge("rounds_planned", "Rounds of the run")
        self.open = gauge("round_open", "1 while a round is open")
        self.elapsed = gauge("round_elapsed_seconds", "Time since the open round began, or 0")
        self.deadline = gauge("round_deadline_seconds", "Deadline of the open round, else of the next one")
        self.pause = gauge("pause_seconds", "Time until the next round may begin")
        self.quorum = gauge("quorum_updates", "Updates needed for the quorum of the open round, or 0")
        self.aggregated_at = gauge("last_round_timestamp_seconds", "Unix time of the last aggregation; 0: none yet")
        self.failed_in_a_row = gauge("rounds_failed_in_a_row", "Failed rounds since the last aggregated one")
        self.last_phases = gauge("last_round_phase_seconds", "Coordinator's phases of the last round", "phase")
        self.user_accuracy = gauge(
            "user_accuracy",
            "User accuracy over the devices of the last aggregated round: mean, p10 (nine of ten are at least as "
            "good), min",
            "stat",
            "moment",
        )
        self.independent = gauge(
            "independent",
            "Learning alone: its mean user_accuracy; gain, gain_median and gain_p10 of the fleet over it; shares "
            "of gaining and losing devices",
            "stat",
        )
        self.evaluation = gauge(
            "evaluation",
            "User accuracy in the last evaluate round: mean, p10, min; number of devices",
            "stat",
        )
        self.pulls = gauge(
            "update_pull",
            "Share of an update's change that bounds and rule took away in the last round: p50, p90, max",
            "stat",
        )
        self.far_rounds = gauge(
            "update_far_rounds", "Greatest number of rounds in a row in which a device's update was far from the others"
        )
        self.buffered = BufferedGauges(registry)
        self.outcomes = _counter(
            registry,
            "rounds",
            "Completed rounds: aggregated, too_few_accepted, quorum_missed, evaluated, evaluation_failed",
            "outcome",
        )
        self.seconds = Histogram(
            "fedpatch_round_seconds",
            "Time of a round until it is on disk",
            registry=registry,
            buckets=BUCKETS_S,
        )
        self.phases = Histogram(
            "fedpatch_round_phase_seconds",
            "Time of each phase (see Phases)",
            ("phase", "side"),
            registry=registry,
            buckets=BUCKETS_S,
        )
        begin(self.ended, ENDS)
        begin(self.outcomes, OUTCOMES)
        begin(self.pulls, PULL_STATS)
        for phase in PHASES:
            self.phases.labels(phase, "coordinator")
        for phase in DEVICE_PHASES:
            self.phases.labels(phase, "device")


class FleetGauges:
    """Metrics of the fleet as a whole."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter, gauge = partial(_counter, registry), partial(_gauge, registry)
        self.devices = gauge(
            "devices",
            "Devices: eligible, unwilling, barred (cannot take part), quarantined, drained, other_task, starting, offline",
            "state",
        )
        self.wanted = gauge("devices_wanted", "Eligible devices needed for the next round")
        self.participants = gauge(
            "participants",
            "Participants of the open round: invited, accepted, training, uploading, reported, declined, failed, lost, late",
            "state",
        )
        self.unwilling = gauge(
            "unwilling_devices",
            "Devices that would decline now, by unmet preference; unwilling if none is named",
            "condition",
        )
        self.signs = gauge(
            "devices_showing",
            "Devices by sign in vitals: reporting (any vitals), on_battery, under_voltage, throttled, hot (80 °C or more)",
            "sign",
        )
        self.declines = counter(
            "declines",
            "Declined invitations, by reason or unmet preference",
            "reason",
        )
        self.failures = counter("failures", "Participants that failed after accepting, or stayed away (lost)", "reason")
        self.downloaded = counter(
            "downloaded_bytes",
            "Bytes of models that devices (not relays) report by vitals with an update, by way: mqtt, url",
            "way",
        )
        self.lost = counter("participants_lost", "Disconnections of participants during a round")
        self.disconnects = counter("disconnects", "Disconnections of devices")
        self.ignored = counter(
            "messages_ignored",
            "Ignored messages: unknown_message (newer version), not_ours, revoked, over_limit, not_granted, "
            "fleet_full, other_context, damaged_chunk",
            "reason",
        )
        begin(self.downloaded, WAYS)
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
        self.updates = counter("updates", "Updates: committed, late, damaged, refused", "result")
        self.refusals = counter("refusals", "Rejected updates, with late and damaged ones", "reason")
        self.bounded = counter("updates_bounded", "Updates limited by a bound: norm, num_examples", "bound")
        self.turned_away = counter("messages_turned_away", "Rejected messages of devices in quarantine")
        self.bytes = counter(
            "bytes", "Bytes on the wire and before compression (see Bytes)", "direction", "kind", "form"
        )
        self.repaired = counter("chunks_repaired", "Chunks of the model that were published again")
        self.lacking = gauge("devices_lacking_encoding", "Devices without the run's encoding, asked for another one")
        self.stalls = counter("window_stalls", "Stalled uploads that were granted again")
        self.waiting = gauge("event_queue_depth", "Events in the coordinator's queue")
        self.spool = gauge("update_spool_bytes", "Size of updates on disk that wait for aggregation")
        self.free = gauge("state_free_bytes", "Free space on the disk of the state directory")
        self.size = gauge("state_size_bytes", "Size of the disk of the state directory")
        self.connected = gauge("broker_connected", "1 while the broker is connected")
        self.silent = gauge(
            "store_wait_seconds",
            "Time for which a request to a store has had no answer: registry, blobs; 0: none",
            "store",
        )
        self.leader = leader_gauge(registry)
        self.leader_epoch = gauge(
            "leader_epoch", "Epoch of the leader of a fleet with standbys; 0: no standbys", "fleet"
        )
        self.expiry = gauge(
            "certificate_expiry_timestamp_seconds",
            "Unix time of expiry: ca (first of ca_file), coordinator, broker (in the last handshake), device (earliest of the "
            "newest ones; NaN: no device yet)",
            "certificate",
        )
        self.device_series = gauge("device_series", "Devices with series of their own")
        self.without_series = gauge("devices_without_series", "Known devices without series of their own")
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


def leader_gauge(registry: CollectorRegistry) -> Gauge:
    """Return the gauge that a standby serves too, which has no run yet."""
    return _gauge(registry, "leader", "1 while this coordinator leads the fleet; 0: it waits as a standby", "fleet")


def begin(metric: Counter | Gauge, words: Iterable[str]) -> None:
    """Create the series of these values of the only label, at 0."""
    for word in words:
        metric.labels(str(word))
