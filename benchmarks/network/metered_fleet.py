"""The simulated fleet, with the coordinator's metrics updated as in a real run, and the coordinator's own time measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from fedpatch.coordinator.observability.event_observer import NullObserver, Observer
from fedpatch.coordinator.observability.metric_definitions import Metrics
from fedpatch.coordinator.observability.run_metrics import LOOK_EVERY_S, RunMetrics
from fedpatch.coordinator.rounds import run_effects
from fedpatch.coordinator.rounds.run_events import Event
from fedpatch.shared.wire.chunks import Chunk
from fedpatch.shared.wire.messages import Envelope
from fedpatch.shared.wire.reason_codes import LinkKind
from fedpatch.shared.wire.vitals import LastRound, Vitals
from fedpatch.simulator.fleet.settings import FleetTerms
from fedpatch.simulator.fleet.simulation import SimulatedFleet

# Size of a travelling message. Any value will do: only the cost of counting is measured.
_MESSAGE_BYTES = 100
VITALS = Vitals(True, 0.8, False, False, 61.5, LinkKind.WIFI, 0.4, 512 * 2**20, 9000 * 2**20)


class MeteredFleet(SimulatedFleet):
    """A fleet whose devices send their vitals whenever they connect, and after each of their rounds.

    `coordinator_s` is the processor time of engine and observer alone: no codec, no network, no disk, no devices.

    Up to `max_devices` devices have series of their own; without `metrics` nothing is counted. `look` runs once a second of
    real time, as in a run, although the fleet's clock is faster.
    """

    def __init__(self, terms: FleetTerms, metrics: Metrics | None, directory: Path, *, max_devices: int = 50) -> None:
        super().__init__(terms)
        self.coordinator_s = 0.0
        self.events = 0
        self.observer: Observer = NullObserver()
        self._look_at = 0.0
        if metrics is not None:
            self.observer = RunMetrics(metrics, self._engine, directory, strategy="fedavg", max_devices=max_devices)

    def look(self) -> None:
        """Call the observer as the service does after every event."""
        self.observer.look(self.agenda.now, waiting=0)

    def on_state(self, device: str, envelope: Envelope) -> None:
        """Handle the presence of a device."""
        with self._event():
            self.observer.received("device_state", _MESSAGE_BYTES)
            super().on_state(device, envelope)
            self.observer.presence(device)
            self.observer.vitals(device, VITALS, self.agenda.now)

    def on_message(self, device: str, envelope: Envelope) -> None:
        """Handle a message of a device."""
        with self._event():
            self.observer.received("up", _MESSAGE_BYTES)
            super().on_message(device, envelope)

    def on_chunk(self, device: str, chunk: Chunk, size_bytes: int) -> None:
        """Handle a chunk of a device's update."""
        with self._event():
            self.observer.received("update_chunk", size_bytes)
            super().on_chunk(device, chunk, size_bytes)

    def _wake(self) -> None:
        with self._event():
            super()._wake()

    def _tell_vitals(self, device: str) -> None:
        """Report vitals as a device does after its round."""
        engine = self._engine
        last = LastRound(engine.spec.run, engine.last_round, train_s=20.0, upload_s=2.0)
        self.observer.vitals(device, replace(VITALS, last_round=last), self.agenda.now)

    @contextmanager
    def _event(self) -> Iterator[None]:
        began_at = time.process_time()
        yield
        if (now := time.monotonic()) >= self._look_at:
            self._look_at = now + LOOK_EVERY_S
            self.look()
        self.events += 1
        self.coordinator_s += time.process_time() - began_at

    def run_effect(self, effect: run_effects.Effect) -> Iterator[Event]:
        """Run an effect as the simulated fleet does, and show it to the observer."""
        now = self.agenda.now
        yield from super().run_effect(effect)
        if isinstance(effect, run_effects.SendMessage):
            self.observer.sent(_MESSAGE_BYTES)
        self.observer.performed(effect, now, now)
        if isinstance(effect, run_effects.CountEvent) and effect.what == "reported":
            self._tell_vitals(effect.device)


def seconds_of(work: Callable[[], object], times: int = 20) -> float:
    """Return the processor time of one call, as a mean over `times` calls."""
    began_at = time.process_time()
    for _ in range(times):
        work()
    return (time.process_time() - began_at) / times
