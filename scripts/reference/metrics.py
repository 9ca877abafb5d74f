"""The page metrics.md: all Prometheus metrics of a coordinator and of an agent, from their definitions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any

from prometheus_client.core import Metric
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.parser import text_string_to_metric_families

from fedpatch.coordinator.observability.fleet_metrics import ACCURACIES, COUNTERS, GAUGES, DeviceRow, DeviceSeries
from fedpatch.coordinator.observability.metric_definitions import Metrics
from fedpatch.coordinator.settings import RunSettings
from fedpatch.device_agent.job.job_effects import JobState
from fedpatch.device_agent.policy.settings import PreferenceSettings
from fedpatch.device_agent.sensors.device_facts import Fact, Facts
from fedpatch.device_agent.telemetry.gauges import Gauges
from fedpatch.shared.wire.messages import UpdateReport
from fedpatch.shared.wire.vitals import LastRound
from scripts.reference.markdown import render

_DEFAULTS = RunSettings()


def page() -> str:
    """Return the page."""
    coordinator = [*_defined(Metrics()), *_collected(_device_families())]
    process = (_name(one) for one in Metrics().registry.collect() if one.name.startswith("process_"))
    return render(
        "metrics.md",
        coordinator="\n".join(coordinator),
        process=", ".join(f"`{name}`" for name in process),
        agent=_of_agent({family.name: family.documentation for family in _device_families()}),
        address=str(_DEFAULTS.metrics),
        max_devices=str(_DEFAULTS.metrics_max_devices),
    )


def _defined(metrics: Metrics) -> Iterator[str]:
    """Describe the metrics with labels of known names."""
    for group in (metrics.rounds, metrics.fleet, metrics.traffic):
        yield from _of_group(group)


def _of_group(group: object) -> Iterator[str]:
    for metric in vars(group).values():
        if isinstance(metric, MetricWrapperBase):
            (family,) = metric.describe()
            yield _described(family, metric._labelnames)
        else:
            yield from _of_group(metric)


def _collected(families: Iterable[Metric]) -> Iterator[str]:
    """Describe families that have at least one sample each."""
    for family in families:
        yield _described(family, family.samples[0].labels)


def _of_agent(of_devices: Mapping[str, str]) -> str:
    """Describe the metrics of an agent; metrics that the coordinator has with the same text are only named."""
    alike: list[str] = []
    others: list[str] = []
    for family in text_string_to_metric_families(_agent().text()):
        same = of_devices.get(family.name.replace("_agent_", "_device_")) == family.documentation
        labels = family.samples[0].labels
        (alike if same else others).append(_labelled(family, labels) if same else _described(family, labels))
    return "\n".join([f"As the series of single devices above: {', '.join(alike)}.", "", *others])


def _described(family: Metric, labels: Collection[str]) -> str:
    """Return a list item with name, labels and meaning. Counters end in `_total`; histograms are marked; others are gauges."""
    histogram = " (histogram)" if family.type == "histogram" else ""
    return f"- {_labelled(family, labels)}{histogram}: {family.documentation}"


def _labelled(family: Metric, labels: Collection[str]) -> str:
    braced = f"{{{','.join(labels)}}}" if labels else ""
    return f"`{_name(family)}{braced}`"


def _name(family: Metric) -> str:
    return family.name + "_total" * (family.type == "counter")


def _device_families() -> Iterable[Metric]:
    """Return the families of single devices, with one device that has all values."""
    series = DeviceSeries()
    values = dict.fromkeys((*GAUGES, *COUNTERS, *ACCURACIES.values()), 1.0)
    series.rows = (DeviceRow("pi", "training", "", "wifi", values),)
    return series.collect()


def _agent() -> Gauges:
    """Return the gauges of an agent, with all values."""
    known: dict[str, Any] = {one.name: Fact(1, "") for one in fields(Facts)}
    allowance = PreferenceSettings(max_rounds_per_day=1, max_mib_per_day=1, max_minutes_per_day=1)
    return Gauges(
        info=tuple((name, "") for name in ("version", "device", "fleet", "task")),
        state=JobState.IDLE,
        paused=False,
        round=0,
        connected=True,
        willing=True,
        facts=Facts(**known),
        allowance=allowance,
        last_round=LastRound("run", 1, 1.0, 1.0),
        last_round_at=1.0,
        report=UpdateReport("00" * 32, 1, 1, 0.0, 0.5, 0.5, 1.0, 1.0),
        model=(0.5, 1.0),
        expiry=(("ca", 1.0),),
        downloaded=(("mqtt", 0), ("url", 0)),
    )
