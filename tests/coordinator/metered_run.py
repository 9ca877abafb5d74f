"""A run with its own clock and a meter; the test sends the devices' messages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedpatch.coordinator.observability.metric_definitions import Metrics
from fedpatch.coordinator.observability.run_metrics import RunMetrics
from fedpatch.coordinator.rounds.run_effects import AggregateUpdates, Effect, PublishModel, SaveRecord, StoreUpdate
from fedpatch.coordinator.rounds.run_engine import drive_engine
from fedpatch.coordinator.rounds.run_events import (
    Aggregated,
    ChunkReceived,
    DevicePresence,
    Event,
    ModelPublished,
    TimePassed,
    UpdateStored,
)
from fedpatch.shared.wire.chunks import cut
from fedpatch.shared.wire.messages import Accept, Body, DeviceState, Offer
from fedpatch.shared.wire.vitals import Vitals
from tests.coordinator.engines import BLOB, engine, send
from tests.support.specs import model, report, there, update


class Metered:
    """A run whose devices, or those of them that are `present`, are online at second 0, and whose first round begins with all.

    Publishing the model, aggregating and saving take `busy_s` each. Devices report `accuracies`, and `aggregated` is the result
    of each aggregation.
    """

    def __init__(
        self, directory: Path, devices: str = "ab", *, present: str | None = None, busy_s: float = 0.0, **changes: Any
    ) -> None:
        self.engine = engine(devices=len(devices), **changes)
        self.metrics = Metrics()
        self.meter = RunMetrics(self.metrics, self.engine, directory, strategy="fedavg", max_devices=50)
        self.now = 0.0
        self.accuracies: dict[str, float | None] = {}
        self.aggregated = Aggregated()
        self._busy_s = busy_s
        for device in devices if present is None else present:
            self.state(device, there())

    def value(self, name: str, **labels: str) -> float | None:
        """Return the value of one series; the name is without prefix."""
        return self.metrics.registry.get_sample_value(f"fedpatch_{name}", labels)

    def look(self) -> None:
        """Update the gauges as the service does after an event, 10 s after the last update."""
        self.now += 10.0
        self.meter.look(self.now, waiting=7)

    def state(self, device: str, state: DeviceState) -> None:
        self.perform(self.engine.handle(DevicePresence(device, state), self.now))
        self.meter.presence(device)

    def vitals(self, device: str, vitals: Vitals) -> None:
        self.meter.vitals(device, vitals, self.now)

    def receive(self, device: str, body: Body) -> None:
        self.perform(send(self.engine, device, body, self.now, self.engine.last_round))

    def accept(self, devices: str) -> None:
        for device in devices:
            self.receive(device, Accept(10))

    def upload_all(self, devices: str, accuracy: float | None = 0.5) -> None:
        for device in devices:
            self.upload(device, accuracy)

    def upload(self, device: str, accuracy: float | None = 0.5) -> None:
        """Handle a device's whole round, from its acceptance on."""
        self.accuracies[device] = accuracy
        self.receive(device, Accept(10))
        self.receive(device, Offer(update(BLOB)))
        for index in range(update(BLOB).chunk_count):
            self.perform(self.engine.handle(ChunkReceived(device, cut(BLOB, update(BLOB), index)), self.now))

    def tick(self, later_s: float) -> None:
        self.now += later_s
        self.perform(self.engine.handle(TimePassed(), self.now))

    def perform(self, effects: list[Effect]) -> None:
        drive_engine(self.engine, effects, self, lambda: self.now)

    def run_effect(self, effect: Effect) -> Iterator[Event]:
        """Yield the event for which the engine waits, and report the effect to the meter."""
        began_at = self.now
        self.now += self._busy_s if isinstance(effect, PublishModel | AggregateUpdates | SaveRecord) else 0.0
        match effect:
            case PublishModel():
                version = sum(record.outcome == "aggregated" for record in self.engine.records)
                yield ModelPublished(model(), version=version)
            case StoreUpdate(device=device, manifest=manifest):
                yield UpdateStored(effect.round, device, manifest.digest, report(self.accuracies[device]))
            case AggregateUpdates():
                yield self.aggregated
        self.meter.performed(effect, began_at, self.now)
