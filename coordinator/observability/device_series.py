"""Series of single devices: bounded in number, whatever the size of the fleet.

The coordinator's thread hands over rows that never change again; the endpoint's threads draw the series from the newest ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

_Family = TypeVar("_Family", GaugeMetricFamily, CounterMetricFamily)


@dataclass(frozen=True)
class DeviceRow:
    """One device now. The values by metric, without their prefix; one that is None has no series, nor has an empty `link`."""

    device: str
    state: str
    reason: str
    link: str
    values: Mapping[str, float | None]


GAUGES = {
    "online": "1 while its presence says that it is online",
    "progress_ratio": "Done part of its training in the open round",
    "round_seconds": "From invitation to committed update, in the last round to which it contributed",
    "download_seconds": "Download of the model in that round, by its own clock",
    "train_seconds": "Training in that round, by its own clock",
    "upload_seconds": "Upload in the last round that it told of, by its own clock",
    "temperature_celsius": "Of the hottest part of its processor",
    "external_power": "1 while it is on external power",
    "battery_ratio": "Charge of the battery that feeds it",
    "under_voltage": "1 while its supply is too weak",
    "throttled": "1 while its processor is slowed down",
    "load_per_cpu": "Its load of a minute, by CPU",
    "free_memory_bytes": "Memory that its programs could take",
    "free_disk_bytes": "Free on the disk of its state",
}
COUNTERS = {
    "declines": "Invitations that it declined",
    "failures": "Times it failed, was refused, or stayed away",
    "disconnects": "Times it went offline",
}
ACCURACIES = {"before": "user_accuracy_before", "after": "user_accuracy_after"}


class DeviceSeries(Collector):
    """Draws `rows`, which are replaced as a whole."""

    def __init__(self) -> None:
        self.rows: tuple[DeviceRow, ...] = ()

    def collect(self) -> Iterable[Metric]:
        """One family after the other, each with all devices that have a value."""
        rows = self.rows
        state = GaugeMetricFamily(
            "fedpatch_device_state", "The present state, always 1", labels=("device", "state", "reason")
        )
        for row in rows:
            state.add_metric((row.device, row.state, row.reason), 1)
        yield state
        link = GaugeMetricFamily(
            "fedpatch_device_link", "What leads to the broker, always 1", labels=("device", "kind")
        )
        for row in rows:
            if row.link:
                link.add_metric((row.device, row.link), 1)
        yield link
        for name, text in GAUGES.items():
            yield _fill(GaugeMetricFamily(f"fedpatch_device_{name}", text, labels=("device",)), name, rows)
        for name, text in COUNTERS.items():
            yield _fill(CounterMetricFamily(f"fedpatch_device_{name}", text, labels=("device",)), name, rows)
        accuracy = GaugeMetricFamily(
            "fedpatch_device_user_accuracy",
            "On test data, before and after its training in that round",
            labels=("device", "moment"),
        )
        for moment, name in ACCURACIES.items():
            _fill(accuracy, name, rows, moment)
        yield accuracy


def _fill(family: _Family, name: str, rows: Iterable[DeviceRow], *more: str) -> _Family:
    for row in rows:
        value = row.values[name]
        if value is not None:
            family.add_metric((row.device, *more), value)
    return family
