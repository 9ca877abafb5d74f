"""Feeds the metrics from a run, as its observer: cheap for each event, and once a second a look at everything."""

from __future__ import annotations

import math
from pathlib import Path

from coordinator.device_series import DeviceSeries
from coordinator.effects import Effect, Send
from coordinator.engine import Engine
from coordinator.fleet_meter import FleetMeter
from coordinator.metrics import Metrics
from coordinator.round_meter import RoundMeter
from coordinator.traffic_meter import TrafficMeter
from coordinator.vitals_meter import VitalsMeter

# A look costs as much as the fleet has devices, and nobody scrapes more often.
LOOK_EVERY_S = 1.0


class Meter:
    """An observer. `directory` is the run's; at most `max_devices` devices have series of their own."""

    def __init__(self, metrics: Metrics, engine: Engine, directory: Path, *, strategy: str, max_devices: int) -> None:
        series = DeviceSeries()
        metrics.registry.register(series)
        self._rounds = RoundMeter(metrics.rounds, engine, strategy)
        self._vitals = VitalsMeter(metrics.fleet, metrics.rounds, engine)
        self._fleet = FleetMeter(metrics, self._vitals, series, engine, max_devices)
        self._traffic = TrafficMeter(metrics.traffic, directory, engine.spec.encoding)
        # What one of them alone wants to know goes to it at once.
        self.sent, self.received, self.link = self._traffic.sent, self._traffic.received, self._traffic.link
        self.presence, self.vitals = self._fleet.presence, self._vitals.take
        self._looked_at = -math.inf

    def performed(self, effect: Effect, began_at: float, ended_at: float) -> None:
        """An effect was performed."""
        if isinstance(effect, Send):  # most of them are, and only one of the three wants to know
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
