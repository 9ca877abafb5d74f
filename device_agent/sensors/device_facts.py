"""Facts about the device: each has a value, its source, and its confidence.

A fact without a source is UNKNOWN. The preferences decide its meaning (device_agent.policy.preference_rules).
"""

from __future__ import annotations

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


@dataclass(frozen=True, kw_only=True)
class Facts:
    """All that preferences may ask about, at one moment.

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
