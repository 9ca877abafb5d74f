"""The vitals of devices: for how long they count, and which of them are signs of trouble."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from msgspec import UNSET

from fedpatch.coordinator.observability.metric_definitions import SIGNS, WAYS, FleetGauges, RoundGauges
from fedpatch.coordinator.rounds.run_engine import Engine
from fedpatch.shared.wire.vitals import Vitals

STALE_S = 1200.0
"""A device sends its vitals every five minutes; vitals older than this are not shown."""
HOT_C = 80.0
"""Temperature from which a Raspberry Pi slows itself down."""
_TROUBLE = {"under_voltage", "throttled", "hot"}


@dataclass
class _SeenVitals:
    vitals: Vitals
    at: float
    signs: tuple[str, ...]
    last_round: int  # the newest round whose upload time was observed


class VitalsMetrics:
    """Keeps the last vitals of each known device, and counts the devices that show a sign of trouble.

    Used in the coordinator's thread only; `now` is monotonic time in seconds.
    """

    def __init__(self, fleet: FleetGauges, rounds: RoundGauges, engine: Engine) -> None:
        self._metrics = fleet
        self._uploads = rounds.phases.labels("upload", "device")
        self._engine = engine
        # Earlier rounds were counted by the process that ran them.
        self._since = engine.last_round
        self._seen: dict[str, _SeenVitals] = {}

    def take(self, device: str, vitals: Vitals, now: float) -> None:
        """Take the vitals of a device; a device that has shown no presence is ignored."""
        if device not in self._engine.fleet.members:
            return
        known = self._seen.get(device)
        counted = known.last_round if known else self._since
        last = vitals.last_round
        if last is not None and last.run == self._engine.spec.run and counted < last.round <= self._engine.last_round:
            self._uploads.observe(last.upload_s)
            counted = last.round
        if known is not None:  # an earlier coordinator counted the bytes before the first vitals
            for way, size_bytes in _downloaded(vitals).items():
                more = size_bytes - _downloaded(known.vitals)[way]
                # After a restart the agent counts from 0.
                self._metrics.downloaded.labels(way).inc(more if more >= 0 else size_bytes)
        self._seen[device] = _SeenVitals(vitals, now, tuple(_signs(vitals)), counted)

    def of(self, device: str, now: float) -> Vitals | None:
        """Return the valid vitals of a device; None where they are missing or stale, or the device is offline."""
        seen = self._seen.get(device)
        return seen.vitals if seen is not None and self._holds(device, seen, now) else None

    def in_trouble(self, device: str) -> bool:
        """Return whether the last vitals of a device have a sign of trouble that its owner can end."""
        seen = self._seen.get(device)
        return seen is not None and bool(_TROUBLE & set(seen.signs))

    def _holds(self, device: str, seen: _SeenVitals, now: float) -> bool:
        member = self._engine.fleet.members.get(device)
        return now <= seen.at + STALE_S and member is not None and member.state.online

    def look(self, now: float) -> None:
        """Update the metrics; the cost is linear in the size of the fleet."""
        for device in self._seen.keys() - self._engine.fleet.members.keys():
            del self._seen[device]  # evicted from the fleet
        counts: Counter[str] = Counter()
        for device, seen in self._seen.items():
            if self._holds(device, seen, now):
                counts.update(seen.signs)
        for sign in SIGNS:
            self._metrics.signs.labels(sign).set(counts[sign])


def _downloaded(vitals: Vitals) -> Mapping[str, int]:
    """Bytes of models by way since the start of a device's agent."""
    sizes = {way: getattr(vitals.last_round, f"{way}_bytes", UNSET) for way in WAYS}
    return {way: size_bytes or 0 for way, size_bytes in sizes.items()}


def _signs(vitals: Vitals) -> Iterator[str]:
    """The signs of trouble (SIGNS) in a device's vitals."""
    hot = vitals.temperature_c is not None and vitals.temperature_c >= HOT_C
    shown = (True, vitals.external_power is False, vitals.under_voltage is True, vitals.throttled is True, hot)
    return (sign for sign, holds in zip(SIGNS, shown, strict=True) if holds)


def values_of(vitals: Vitals | None) -> Mapping[str, float | None]:
    """Convert vitals to values of GAUGES."""
    seen = vitals or Vitals()
    last = seen.last_round
    return {
        "temperature_celsius": seen.temperature_c,
        "external_power": seen.external_power,
        "battery_ratio": seen.battery,
        "under_voltage": seen.under_voltage,
        "throttled": seen.throttled,
        "load_per_cpu": seen.load_per_cpu,
        "free_memory_bytes": seen.free_memory_bytes,
        "free_disk_bytes": seen.free_disk_bytes,
        "upload_seconds": last.upload_s if last else None,
    }
