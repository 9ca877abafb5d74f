"""The vitals that a device sends and when; they include the times of its last round.

Vitals are sent seldom, unless a value changes that matters to the operator.
"""

from __future__ import annotations

import math

from fedpatch.device_agent.job.job_effects import JobKey
from fedpatch.device_agent.sensors.device_facts import Fact, Facts
from fedpatch.shared.wire.messages import UpdateReport
from fedpatch.shared.wire.vitals import LastRound, Vitals

LEAST_S = 60.0
"""Least time between two messages; only the second may follow the first at once, for example after the first round."""
REPEAT_S = 300.0
"""Time after which vitals are sent again, even unchanged."""

CHANGE_C = 5.0
CHANGE_BATTERY = 0.05

PLAIN = ("external_power", "under_voltage", "throttled", "link", "last_round")
"""Fields whose every change is published."""

_MIB = 2**20
_MOST_MIB = 2**53 // _MIB
_COLDEST_C, _HOTTEST_C = -273.0, 1000.0


def vitals_of(facts: Facts, last_round: LastRound | None = None) -> Vitals:
    """Return the vitals among the facts: neither the network's name or cost nor any reason."""
    battery, celsius = _finite(facts.battery_percent), _finite(facts.temperature_c)
    load = _finite(facts.load_per_cpu)
    return Vitals(
        external_power=facts.external_power.value,
        battery=None if battery is None else round(min(max(battery / 100.0, 0.0), 1.0), 2),
        under_voltage=facts.under_voltage.value,
        throttled=facts.throttled.value,
        temperature_c=round(celsius, 1) if celsius is not None and _COLDEST_C <= celsius <= _HOTTEST_C else None,
        link=facts.link.value,
        load_per_cpu=None if load is None else round(min(max(load, 0.0), 1e6), 2),
        free_memory_bytes=_bytes(facts.free_memory_mib),
        free_disk_bytes=_bytes(facts.free_disk_mib),
        last_round=last_round,
    )


class RoundTimes:
    """Notes the phases of a round by this device's own clock; `now` is monotonic seconds.

    `last` is the last round whose update was committed, None before the first of this process. `report` is that of the last
    training, with any outcome of its update. `downloaded` are the bytes of models that arrived in this process, by way.
    """

    def __init__(self) -> None:
        self.last: LastRound | None = None
        self.report: UpdateReport | None = None
        self.downloaded = {"mqtt": 0, "url": 0}
        self._trained: JobKey | None = None
        self._sends_since: float | None = None

    def trained(self, key: JobKey, report: UpdateReport) -> None:
        """Note the end of a training."""
        self._trained, self.report, self._sends_since = key, report, None

    def sends(self, now: float) -> None:
        """Note that a chunk of the update is sent."""
        if self._sends_since is None:
            self._sends_since = now

    def committed(self, key: JobKey, now: float) -> None:
        """Note the commit of the update, which may be in a newer epoch than its training."""
        trained, report = self._trained, self.report
        if trained is None or report is None or (trained.run, trained.round) != (key.run, key.round):
            return  # trained before this process began
        upload_s = 0.0 if self._sends_since is None else now - self._sends_since
        downloaded = {f"{way}_bytes": size_bytes for way, size_bytes in self.downloaded.items()}
        self.last = LastRound(key.run, key.round, report.train_s, upload_s, **downloaded)


class VitalsPace:
    """The times at which vitals are sent; `now` is monotonic seconds."""

    def __init__(self) -> None:
        self._sent: Vitals | None = None
        self._sent_at = -math.inf
        self._paid_until = -math.inf

    def forget(self) -> None:
        """Start again for a new receiver."""
        self._sent, self._paid_until = None, -math.inf

    def next(self, facts: Facts | None, last_round: LastRound | None, now: float) -> Vitals | None:
        """Return the vitals to send now, or None.

        Args:
            last_round: The last round, None before the first.
            now: Monotonic seconds.
        """
        if facts is None:
            return None
        if self._sent is None:
            return self._tell(vitals_of(facts, last_round), now)
        if now < self._paid_until - LEAST_S:
            return None
        vitals = vitals_of(facts, last_round)
        due = now >= self._sent_at + REPEAT_S or matters(self._sent, vitals)
        return self._tell(vitals, now) if due else None

    def _tell(self, vitals: Vitals, now: float) -> Vitals:
        self._sent, self._sent_at = vitals, now
        self._paid_until = max(self._paid_until, now) + LEAST_S
        return vitals


def matters(before: Vitals, after: Vitals) -> bool:
    """Return whether a change is important enough to send at once."""
    return (
        any(getattr(before, name) != getattr(after, name) for name in PLAIN)
        or _moved(before.temperature_c, after.temperature_c, CHANGE_C)
        or _moved(before.battery, after.battery, CHANGE_BATTERY)
    )


def _moved(before: float | None, after: float | None, by: float) -> bool:
    if before is None or after is None:
        return before is not after
    return abs(after - before) >= by


def _finite(fact: Fact[float]) -> float | None:
    return fact.value if fact.value is not None and math.isfinite(fact.value) else None


def _bytes(fact: Fact[float]) -> int | None:
    """Return whole MiB, since smaller changes never stop."""
    mib = _finite(fact)
    return None if mib is None else int(min(max(0.0, mib), _MOST_MIB)) * _MIB
