"""What the metrics say of how devices are: what each told last, and how many of all show a sign of trouble."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from coordinator.engine import Engine
from coordinator.metrics import SIGNS, FleetMetrics, RoundMetrics
from shared.vitals import Vitals

STALE_S = 1200.0
"""A device tells its vitals every five minutes: those that are older than this say nothing of it any more."""

HOT_C = 80.0
"""A Raspberry Pi slows itself down from here on."""


@dataclass
class _Told:
    vitals: Vitals
    at: float
    signs: tuple[str, ...]
    last_round: int  # the newest whose upload was counted


class VitalsMeter:
    """Used in the coordinator's thread only; `now` is monotonic, in seconds. Holds one message of each known device."""

    def __init__(self, fleet: FleetMetrics, rounds: RoundMetrics, engine: Engine) -> None:
        self._metrics = fleet
        self._uploads = rounds.phases.labels("upload", "device")
        self._engine = engine
        # Rounds of before were counted, or missed, by the process that played them.
        self._since = engine.last_round
        self._told: dict[str, _Told] = {}

    def take(self, device: str, vitals: Vitals, now: float) -> None:
        """A device told of itself; one that has shown no presence is none of the fleet's."""
        if device not in self._engine.fleet.members:
            return
        known = self._told.get(device)
        counted = known.last_round if known else self._since
        last = vitals.last_round
        if last is not None and last.run == self._engine.spec.run and counted < last.round <= self._engine.last_round:
            self._uploads.observe(last.upload_s)
            counted = last.round
        self._told[device] = _Told(vitals, now, tuple(_signs(vitals)), counted)

    def of(self, device: str, now: float) -> Vitals | None:
        """What holds of a device now; None where nothing is known, or it is gone."""
        told = self._told.get(device)
        return told.vitals if told is not None and self._holds(device, told, now) else None

    def _holds(self, device: str, told: _Told, now: float) -> bool:
        member = self._engine.fleet.members.get(device)
        return now <= told.at + STALE_S and member is not None and member.state.online

    def look(self, now: float) -> None:
        """The fleet as it stands; costs as much as the fleet has devices."""
        for device in self._told.keys() - self._engine.fleet.members.keys():
            del self._told[device]  # it had to make way for another
        counts: Counter[str] = Counter()
        for device, told in self._told.items():
            if self._holds(device, told, now):
                counts.update(told.signs)
        for sign in SIGNS:
            self._metrics.signs.labels(sign).set(counts[sign])


def _signs(vitals: Vitals) -> Iterator[str]:
    """Those of SIGNS that a device shows."""
    hot = vitals.temperature_c is not None and vitals.temperature_c >= HOT_C
    shown = (True, vitals.external_power is False, vitals.under_voltage is True, vitals.throttled is True, hot)
    return (sign for sign, holds in zip(SIGNS, shown, strict=True) if holds)


def values_of(vitals: Vitals | None) -> Mapping[str, float | None]:
    """As the series of a device have them (device_series.GAUGES)."""
    told = vitals or Vitals()
    last = told.last_round
    return {
        "temperature_celsius": told.temperature_c,
        "external_power": told.external_power,
        "battery_ratio": told.battery,
        "under_voltage": told.under_voltage,
        "throttled": told.throttled,
        "load_per_cpu": told.load_per_cpu,
        "free_memory_bytes": told.free_memory_bytes,
        "free_disk_bytes": told.free_disk_bytes,
        "upload_seconds": last.upload_s if last else None,
    }
