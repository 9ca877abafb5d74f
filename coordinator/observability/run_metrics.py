"""Feeds the metrics of a run: counts each event cheaply, and updates the gauges once a second."""

from __future__ import annotations

import math
from pathlib import Path

from fedpatch.coordinator.observability.device_vitals import VitalsMetrics
from fedpatch.coordinator.observability.fleet_metrics import DeviceSeries, FleetMetrics
from fedpatch.coordinator.observability.metric_definitions import Metrics
from fedpatch.coordinator.observability.round_metrics import RoundMetrics
from fedpatch.coordinator.observability.traffic_metrics import TrafficMetrics
from fedpatch.coordinator.rounds.run_effects import Effect, SendMessage
from fedpatch.coordinator.rounds.run_engine import Engine

# The cost of an update is linear in the size of the fleet, and no scraper reads more often.
LOOK_EVERY_S = 1.0


class RunMetrics:
    """The observer that updates the metrics.

    Args:
        metrics: The metrics to update.
        engine: The run.
        directory: Directory of the run's files.
        strategy: Name of the federated algorithm, a label.
        max_devices: Largest number of devices with own series.
    """

    def __init__(self, metrics: Metrics, engine: Engine, directory: Path, *, strategy: str, max_devices: int) -> None:
        series = DeviceSeries()
        metrics.registry.register(series)
        self._rounds = RoundMetrics(metrics.rounds, engine, strategy)
        self._vitals = VitalsMetrics(metrics.fleet, metrics.rounds, engine)
        self._fleet = FleetMetrics(metrics, self._vitals, series, engine, max_devices)
        self._traffic = TrafficMetrics(metrics.traffic, directory, engine.spec.encoding)
        # Events with a single receiver are passed to it directly.
        self.sent, self.received, self.link = self._traffic.sent, self._traffic.received, self._traffic.link
        self.presence, self.vitals = self._fleet.presence, self._vitals.take
        self._looked_at = -math.inf

    def performed(self, effect: Effect, began_at: float, ended_at: float) -> None:
        """Handle an effect that was performed."""
        if isinstance(effect, SendMessage):  # the most frequent effect, used by the traffic metrics alone
            self._traffic.on_sent(effect)
            return
        self._rounds.performed(effect, began_at, ended_at)
        self._fleet.performed(effect, began_at)
        self._traffic.performed(effect)

    def look(self, now: float, *, waiting: int) -> None:
        """Update the gauges, at most once a second."""
        if now < self._looked_at + LOOK_EVERY_S:
            return
        self._looked_at = now
        self._rounds.look(now)
        self._vitals.look(now)
        self._fleet.look(now)
        self._traffic.look(waiting)
