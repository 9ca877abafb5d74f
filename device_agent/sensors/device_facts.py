"""Facts about the device: each has a value, its source, and its confidence.

A fact without a source is UNKNOWN. The preferences decide its meaning (device_agent.policy.preference_rules).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Generic, TypeVar, get_type_hints

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


_MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Facts:
    """All that preferences may ask about, at one moment. A FactMetric makes a fact a metric of the agent, too.

    `battery_percent` is that of the battery that feeds this device, UNKNOWN where there is none. `load_per_cpu` is the mean
    number of runnable processes over a minute, divided by the CPUs. `clock_set`: whether the clock was set from outside
    since boot.
    """

    external_power: Annotated[Fact[bool], FactMetric("external_power", "1 on external power")]
    battery_percent: Annotated[Fact[float], FactMetric("battery_ratio", "Charge of its battery", 0.01)]
    under_voltage: Annotated[Fact[bool], FactMetric("under_voltage", "1 while its supply is too weak")]
    throttled: Annotated[Fact[bool], FactMetric("throttled", "1 while its processor is slowed down")]
    temperature_c: Annotated[
        Fact[float], FactMetric("temperature_celsius", "Temperature of the hottest part of the processor")
    ]
    link: Fact[LinkKind]  # a metric with a label
    ssid: Fact[str]
    metered: Annotated[Fact[bool], FactMetric("metered", "1 on a metered connection")]
    load_per_cpu: Annotated[Fact[float], FactMetric("load_per_cpu", "Load of a minute per CPU")]
    free_memory_mib: Annotated[Fact[float], FactMetric("free_memory_bytes", "Available memory", _MIB)]
    free_disk_mib: Annotated[
        Fact[float], FactMetric("free_disk_bytes", "Free space on the disk of its state directory", _MIB)
    ]
    clock_set: Annotated[Fact[bool], FactMetric("clock_set", "1 if the clock was synchronised")]
    paused: Fact[bool]

    def metrics(self) -> Iterator[tuple[FactMetric, float | None]]:
        """Return the facts that are metrics, each with its value; None where it is unknown."""
        for name, metric in _METRICS.items():
            value = getattr(self, name).value
            yield metric, None if value is None else value * metric.factor


_METRICS: Mapping[str, FactMetric] = {
    name: extra
    for name, kind in get_type_hints(Facts, include_extras=True).items()
    for extra in getattr(kind, "__metadata__", ())
}
