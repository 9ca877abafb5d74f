"""Feeds the metrics from a run, as its observer: cheap for each event, and once a second a look at everything."""

from __future__ import annotations

import math
from pathlib import Path

from fedpatch.coordinator.observability.fleet_metrics import DeviceSeries, FleetMetrics, VitalsMetrics
from fedpatch.coordinator.observability.metric_definitions import Metrics
from fedpatch.coordinator.observability.round_metrics import RoundMetrics
from fedpatch.coordinator.observability.traffic_metrics import TrafficMetrics
from fedpatch.coordinator.rounds.run_effects import Effect, SendMessage
from fedpatch.coordinator.rounds.run_engine import Engine

# A look costs as much as the fleet has devices, and nobody scrapes more often.
LOOK_EVERY_S = 1.0


class RunMetrics:
    """An observer. `directory` is the run's; at most `max_devices` devices have series of their own."""

    def __init__(self, metrics: Metrics, engine: Engine, directory: Path, *, strategy: str, max_devices: int) -> None:
        series = DeviceSeries()
        metrics.registry.register(series)
        self._rounds = RoundMetrics(metrics.rounds, engine, strategy)
        self._vitals = VitalsMetrics(metrics.fleet, metrics.rounds, engine)
        self._fleet = FleetMetrics(metrics, self._vitals, series, engine, max_devices)
        self._traffic = TrafficMetrics(metrics.traffic, directory, engine.spec.encoding)
        # What one of them alone wants to know goes to it at once.
        self.sent, self.received, self.link = self._traffic.sent, self._traffic.received, self._traffic.link
        self.presence, self.vitals = self._fleet.presence, self._vitals.take
        self._looked_at = -math.inf

    def performed(self, effect: Effect, began_at: float, ended_at: float) -> None:
        """An effect was performed."""
        if isinstance(effect, SendMessage):  # most of them are, and only one of the three wants to know
            self._traffic.told(effect)
            return
        self._rounds.performed(effect, began_at, ended_at)
        self._fleet.performed(effect, began_at)
        self._traffic.performed(effect)

    def look(self, now: float, *, waiting: int) -> None:
        """Everything that is counted by looking, once a second."""
        if now < self._looked_at + LOOK_EVERY_S:
            return
        self._looked_at = now
        self._rounds.look(now)
        self._vitals.look(now)
        self._fleet.look(now)
        self._traffic.look(waiting)
