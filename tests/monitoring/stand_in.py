"""A stand-in for a coordinator with five devices: it serves the same metrics, which change at each scrape.

Every event occurs. A panel without data therefore uses a metric that no coordinator has.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, Self, TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from fedpatch.coordinator.observability.metrics_endpoint import waiting_as_standby
from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared.wire.reason_codes import Condition, DeclineReason, FailReason, RefuseReason
from tests.support.brokers import HOST

DEVICES = ("ann", "bob", "cat", "dan", "eve")
PHASES = ("select", "recruit", "download", "train", "upload", "aggregate", "checkpoint")
PARTICIPANT_STATES = (
    "invited",
    "accepted",
    "training",
    "uploading",
    "reported",
    "declined",
    "failed",
    "lost",
    "late",
)
DEVICE_STATES = ("eligible", "unwilling", "barred", "quarantined", "drained", "other_task", "starting", "offline")
_GIB = 2**30

F = TypeVar("F", GaugeMetricFamily, CounterMetricFamily)

_PLAIN_GAUGES = {
    "round_open": 1,
    "carried_devices": 2,
    "round_elapsed_seconds": 3,
    "round_deadline_seconds": 600,
    "rounds_planned": 100,
    "pause_seconds": 0,
    "quorum_updates": 4,
    "rounds_failed_in_a_row": 1,
    "devices_wanted": 5,
    "event_queue_depth": 2,
    "update_spool_bytes": 70_000,
    "state_free_bytes": 5 * _GIB,
    "state_size_bytes": 20 * _GIB,
    "broker_connected": 1,
    "device_series": len(DEVICES),
    "devices_without_series": 0,
}
# name -> (label, its values); counters without a label are below
_COUNTERS: dict[str, tuple[str, Iterable[str]]] = {
    "rounds": ("outcome", ("aggregated", "too_few_accepted", "quorum_missed")),
    "declines": ("reason", [*DeclineReason, *Condition]),
    "failures": ("reason", [*FailReason, *Condition, "lost"]),
    "updates": ("result", ("committed", "late", "refused", "damaged")),
    "refusals": ("reason", list(RefuseReason)),
    "messages_ignored": ("reason", ("unknown_message", "not_ours")),
    "downloaded_bytes": ("way", ("mqtt", "url")),
    "device_declines": ("device", DEVICES),
    "device_failures": ("device", DEVICES),
    "device_disconnects": ("device", DEVICES),
}
_PLAIN_COUNTERS = (
    "participants_lost", "disconnects", "chunks_repaired", "window_stalls", "carried_work_stale", "updates_unused"
)  # fmt: skip


class _Fleet(Collector):
    """All metrics of the `step`-th scrape."""

    def __init__(self) -> None:
        self._step = 0

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics; each scrape shows one more round than the last one."""
        self._step += 1
        for family in (self._run, self._gauges, self._counters, self._bytes, self._histograms, self._devices):
            for metric in family():
                metric.name = f"fedpatch_{metric.name}"
                metric.samples = [sample._replace(name=f"fedpatch_{sample.name}") for sample in metric.samples]
                yield metric

    def _run(self) -> Iterator[Metric]:
        yield _gauge("update_pull", ("stat",), [(("p50",), 0.1), (("max",), 0.3)])
        yield _gauge("update_far_rounds", (), [((), 1)])
        yield _gauge("build_info", ("version",), [(("1.2.3",), 1)])
        labels = ("run", "task", "strategy", "metric", "goal")
        yield _gauge("run_info", labels, [(("r1", "digits", "fedavg-adam", "accuracy", "max"), 1)])
        yield _gauge("certificate_expiry_timestamp_seconds", ("certificate",), [(("ca",), time.time() + 1e7)])
        yield _gauge("run_ended", ("reason",), [(("target_ua",), 0), (("max_rounds",), 0)])
        yield _gauge("round_number", (), [((), self._step)])
        yield _gauge("last_round_timestamp_seconds", (), [((), time.time())])

    def _gauges(self) -> Iterator[Metric]:
        for name, value in _PLAIN_GAUGES.items():
            yield _gauge(name, (), [((), value)])
        for name, value in (("leader", 1), ("leader_epoch", 3)):
            yield _gauge(name, ("fleet",), [(("demo",), value)])
        yield _gauge("last_round_phase_seconds", ("phase",), [((phase,), 1.5) for phase in PHASES])
        yield _gauge("devices", ("state",), [((state,), 1) for state in DEVICE_STATES])
        yield _gauge("participants", ("state",), [((state,), 1) for state in PARTICIPANT_STATES])
        yield _gauge("unwilling_devices", ("condition",), [((str(one),), 1) for one in Condition])
        signs = ("reporting", "on_battery", "under_voltage", "throttled", "hot")
        yield _gauge("devices_showing", ("sign",), [((sign,), 1) for sign in signs])
        accuracies = [((s, m), 0.9) for s in ("mean", "p10", "min") for m in ("before", "after")]
        yield _gauge("user_accuracy", ("stat", "moment"), accuracies)
        evaluation = [(("mean",), 0.9), (("p10",), 0.8), (("min",), 0.7), (("devices",), len(DEVICES))]
        yield _gauge("evaluation", ("stat",), evaluation)
        gains = ("user_accuracy", "gain", "gain_median", "gain_p10", "gaining", "losing")
        yield _gauge("independent", ("stat",), [((stat,), 0.1) for stat in gains])

    def _counters(self) -> Iterator[Metric]:
        for name, (label, values) in _COUNTERS.items():
            yield _counter(name, (label,), [((str(value),), self._step) for value in values])
        for name in _PLAIN_COUNTERS:
            yield _counter(name, (), [((), self._step)])

    def _bytes(self) -> Iterator[Metric]:
        ways = [("down", "model", form) for form in ("wire", "raw")] + [("up", "update", f) for f in ("wire", "raw")]
        ways += [("down", "message", "wire"), ("up", "message", "wire")]
        yield _counter("bytes", ("direction", "kind", "form"), [(way, 1000 * self._step) for way in ways])

    def _histograms(self) -> Iterator[Metric]:
        whole = HistogramMetricFamily("round_seconds", "A round.")
        whole.add_metric([], *self._observations(10.0))
        yield whole
        ages = HistogramMetricFamily("update_staleness", "Of an update.")
        ages.add_metric([], *self._observations(1.0))
        yield ages
        yield _gauge("weight_share", ("fifth",), [((str(fifth),), 0.2) for fifth in range(1, 6)])
        parts = HistogramMetricFamily("round_phase_seconds", "A phase.", labels=("phase", "side"))
        for phase in PHASES:
            parts.add_metric((phase, "coordinator"), *self._observations(1.5))
        for phase in ("download", "train"):
            parts.add_metric((phase, "device"), *self._observations(1.2))
        yield parts

    def _observations(self, seconds: float) -> tuple[list[tuple[str, float]], float]:
        """Return buckets and sum of a phase that took this many seconds in each step."""
        bounds = (1.0, 5.0, 30.0)
        buckets = [(str(bound), float(self._step if seconds <= bound else 0)) for bound in bounds]
        return [*buckets, ("+Inf", float(self._step))], seconds * self._step

    def _devices(self) -> Iterator[Metric]:
        states = [*PARTICIPANT_STATES, *DEVICE_STATES]
        now = [(name, states[(self._step + place) % len(states)]) for place, name in enumerate(DEVICES)]
        # Each state has a reason, since Prometheus has no empty labels.
        yield _gauge("device_state", ("device", "state", "reason"), [((*one, "paused"), 1) for one in now])
        for name in ("online", "progress_ratio", "round_seconds", "download_seconds", "train_seconds"):
            values = [((device,), (place + 1) / 5) for place, device in enumerate(DEVICES)]
            yield _gauge(f"device_{name}", ("device",), values)
        more = (
            "upload_seconds",
            "temperature_celsius",
            "external_power",
            "battery_ratio",
            "under_voltage",
            "throttled",
        )
        for name in (*more, "site_devices", "load_per_cpu", "free_memory_bytes", "free_disk_bytes"):
            yield _gauge(f"device_{name}", ("device",), [((device,), 1) for device in DEVICES])
        yield _gauge("device_link", ("device", "kind"), [((device, "wifi"), 1) for device in DEVICES])
        both = [((device, moment), 0.8) for device in DEVICES for moment in ("before", "after")]
        yield _gauge("device_user_accuracy", ("device", "moment"), both)


@contextmanager
def standby(fleet: str) -> Iterator[str]:
    """Serve the metric of a real standby of a fleet; yield its address."""
    lines: list[str] = []
    view: Any = SimpleNamespace(say=lines.append)
    with waiting_as_standby(RunSettings(metrics=f"{HOST}:0", fleet=fleet), view):
        yield lines[0].removeprefix("metrics: http://").removesuffix("/metrics")


class StandIn:
    """Serves the metrics on a port of its own, known as `address`."""

    def __enter__(self) -> Self:
        registry = CollectorRegistry()
        registry.register(_Fleet())
        ProcessCollector(registry=registry)
        self._server, self._thread = _serve(registry)
        self.address = f"{HOST}:{self._server.server_port}"
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _serve(registry: CollectorRegistry):
    server, thread = start_http_server(0, HOST, registry)
    assert isinstance(thread, threading.Thread)
    return server, thread


def metric_names() -> set[str]:
    """Return the names of all served metrics, as in PromQL."""
    return {sample.name for metric in _Fleet().collect() for sample in metric.samples}


def _gauge(name: str, labels: Sequence[str], values: Iterable[tuple[Iterable[str], float]]) -> Metric:
    return _family(GaugeMetricFamily(name, name, labels=labels), values)


def _counter(name: str, labels: Sequence[str], values: Iterable[tuple[Iterable[str], float]]) -> Metric:
    return _family(CounterMetricFamily(name, name, labels=labels), values)


def _family(family: F, values: Iterable[tuple[Iterable[str], float]]) -> F:
    for labels, value in values:
        family.add_metric(list(labels), value)
    return family
