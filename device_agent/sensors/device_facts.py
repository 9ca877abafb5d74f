"""Facts about the device: each has a value, its source, and its confidence.

A fact without a source is UNKNOWN. The preferences decide its meaning (device_agent.policy.preference_rules).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from fedpatch.shared.wire.reason_codes import LinkKind

T = TypeVar("T")


class Confidence(StrEnum):
    """Confidence of a fact: measured, usual (no source differs), or unknown."""

    MEASURED = "measured"
    ASSUMED = "assumed"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Fact(Generic[T]):
    """`source` names the file, service or program, or the reason why there is none; `value` is None where unknown."""

    value: T | None
    source: str
    confidence: Confidence = Confidence.MEASURED

    @classmethod
    def unknown(cls, why: str) -> Fact[T]:
        """A fact without a value."""
        return cls(None, why, Confidence.UNKNOWN)

    @classmethod
    def assumed(cls, value: T, why: str) -> Fact[T]:
        """A usual value, where no source has another."""
        return cls(value, why, Confidence.ASSUMED)

    @property
    def known(self) -> bool:
        """True if there is a value."""
        return self.value is not None


@dataclass(frozen=True)
class FactMetric:
    """A fact as a metric of the agent.

    Attributes:
        name: Name without the prefix `fedpatch_agent_`.
        about: Meaning, for Prometheus and the documentation.
        factor: The metric's unit in units of the fact.
    """

    name: str
    about: str
    factor: float = 1.0


@dataclass(frozen=True)
class FactRecord:
    """The record of a fact, beside its field of Facts.

    Attributes:
        label: Name in the documentation.
        sources: Sources in their order, as the documentation words them.
        metric: The fact as a metric; None for a fact that is no number.
    """

    label: str
    sources: str
    metric: FactMetric | None = None


_MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Facts:
    """All that preferences may ask about, at one moment; FACTS has the record of each.

    `battery_percent` is that of the battery that feeds this device, UNKNOWN where there is none. `load_per_cpu` is the mean
    number of runnable processes over a minute, divided by the CPUs. `clock_set`: whether the clock was set from outside
    since boot.
    """

    external_power: Fact[bool]
    battery_percent: Fact[float]
    under_voltage: Fact[bool]
    throttled: Fact[bool]
    temperature_c: Fact[float]
    link: Fact[LinkKind]
    ssid: Fact[str]
    metered: Fact[bool]
    load_per_cpu: Fact[float]
    free_memory_mib: Fact[float]
    free_disk_mib: Fact[float]
    clock_set: Fact[bool]
    paused: Fact[bool]

    def metrics(self) -> Iterator[tuple[FactMetric, float | None]]:
        """Return the facts that are metrics, each with its value; None where it is unknown."""
        for name, record in FACTS.items():
            value = getattr(self, name).value
            if record.metric is not None:
                yield record.metric, None if value is None else value * record.metric.factor


FACTS: Mapping[str, FactRecord] = {
    "external_power": FactRecord(
        "external power",
        "the [UPS](#a-ups) of the settings alone; `/sys/class/power_supply`; `systemd-ac-power`",
        FactMetric("external_power", "1 on external power"),
    ),
    "battery_percent": FactRecord(
        "battery, %",
        "the UPS; `/sys/class/power_supply`, several batteries by energy",
        FactMetric("battery_ratio", "Charge of its battery", 0.01),
    ),
    "under_voltage": FactRecord(
        "under-voltage",
        "hwmon `rpi_volt`; the firmware's `get_throttled` (bit 0), by file or `vcgencmd`",
        FactMetric("under_voltage", "1 while its supply is too weak"),
    ),
    "throttled": FactRecord(
        "throttled",
        "the firmware's `get_throttled` (bits 2 and 3)",
        FactMetric("throttled", "1 while its processor is slowed down"),
    ),
    "temperature_c": FactRecord(
        "temperature, °C",
        "hottest thermal zone or sensor of the processor; `vcgencmd measure_temp`",
        FactMetric("temperature_celsius", "Temperature of the hottest part of the processor"),
    ),
    # The kind of link is the label of a metric.
    "link": FactRecord("link", "interface of the route to the broker, its kind in `/sys/class/net`"),
    "ssid": FactRecord("SSID", "NetworkManager; the wireless driver; `iw`"),
    "metered": FactRecord(
        "metered", "NetworkManager; kind of link", FactMetric("metered", "1 on a metered connection")
    ),
    "load_per_cpu": FactRecord(
        "load per CPU",
        "`/proc/loadavg`, mean of a minute",
        FactMetric("load_per_cpu", "Load of a minute per CPU"),
    ),
    "free_memory_mib": FactRecord(
        "free memory, MiB",
        "`/proc/meminfo`: `MemAvailable`",
        FactMetric("free_memory_bytes", "Available memory", _MIB),
    ),
    "free_disk_mib": FactRecord(
        "free disk, MiB",
        "the file system of the state directory",
        FactMetric("free_disk_bytes", "Free space on the disk of its state directory", _MIB),
    ),
    "clock_set": FactRecord(
        "clock set",
        "systemd-timesyncd's mark in `/run`; adjtimex; `chronyc tracking`; a battery-backed clock (assumed)",
        FactMetric("clock_set", "1 if the clock was synchronised"),
    ),
    "paused": FactRecord("paused", "the pause file"),
}
