"""A whole fleet in one process: the real engine and real jobs, joined by simulated lines, under a virtual clock.

For studies of the round policy: the effect of deadlines, quorum, over-selection and buffered rounds if devices are slow,
decline and drop out. Nothing is trained, unless the terms name a task (simulator.fleet.learning). The broker is assumed to be
always fast enough; packing, saving and averaging take no time.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from fedpatch.coordinator.rounds import run_effects, run_engine, run_events
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.rounds.run_engine import Engine
from fedpatch.coordinator.rounds.termination import Stopped
from fedpatch.shared.wire.chunks import Chunk
from fedpatch.shared.wire.messages import (
    DeviceState,
    Envelope,
    Manifest,
    UpdateReport,
)
from fedpatch.simulator.fleet.links import MESSAGE_BYTES, STAND_IN_BYTES, FakeBlob, FleetWire, tag_of
from fedpatch.simulator.fleet.report import FleetReport, FleetRound
from fedpatch.simulator.fleet.settings import FleetTerms
from fedpatch.simulator.fleet.simulated_device import FleetDevice
from fedpatch.simulator.fleet.virtual_clock import Timer, VirtualClock

if TYPE_CHECKING:
    from fedpatch.simulator.fleet.learning import FleetLearning

OnRound = Callable[[FleetRound], None]

# Owner of the global model's chunks; devices are numbered from 1.
_COORDINATOR = 0
# Report of an untrained update: one example, no user accuracy.
_REPORT = UpdateReport("00" * 32, 1, 1, 0.0, None, None, 0.0, 0.0)


def simulate_fleet(
    terms: FleetTerms,
    on_round: OnRound = lambda _: None,
    *,
    wire: bool = False,
    learning: FleetLearning | None = None,
) -> FleetReport:
    """Play all rounds.

    Args:
        terms: The checked study, as shared.config.load.load returns it.
        on_round: Called with each round when it is over.
        wire: Whether all messages pass the codec.
        learning: The training; None: the training of `terms`, if they name a task.
    """
    began = time.perf_counter()
    if learning is None and terms.train is not None:
        from fedpatch.simulator.fleet.learning import FleetLearning  # imports torch, which takes a second

        learning = FleetLearning(terms)
    fleet = SimulatedFleet(terms, on_round, wire=wire, learning=learning)
    finish = fleet.run()
    if learning is not None:
        learning.close()
    return FleetReport(
        terms=terms,
        rounds=tuple(fleet.rounds),
        stopped_because=finish.reason.value,
        detail=finish.detail,
        virtual_s=fleet.agenda.now,
        real_s=time.perf_counter() - began,
        events=fleet.agenda.done,
    )


class SimulatedFleet:
    """The coordinator with its broker, and all devices. The time per event does not depend on the number of devices.

    Args:
        terms: The study.
        on_round: Called with each round when it is over.
        wire: Whether all messages pass the codec.
        learning: The training; None trains nothing.
        train_s_of: Returns the training time in seconds of a device in a round (both numbered from 1); None: it is drawn.
    """

    def __init__(
        self,
        terms: FleetTerms,
        on_round: OnRound = lambda _: None,
        *,
        wire: bool = False,
        learning: FleetLearning | None = None,
        train_s_of: Callable[[int, int], float] | None = None,
    ) -> None:
        self.train_s_of = train_s_of
        self.agenda = VirtualClock(0.0)
        self.learning = learning
        self.wire = FleetWire(real=wire)
        self.updates = FakeBlob(terms.update_bytes, terms.chunk_bytes)
        self.rounds: list[FleetRound] = []
        self._on_round = on_round
        self._models = FakeBlob(terms.model_bytes, terms.chunk_bytes)
        self._engine = Engine(
            terms.run_spec(chunk_bytes=STAND_IN_BYTES), jitter=random.Random(f"{terms.seed}:coordinator")
        )
        self._alarm = Timer(self.agenda, self._wake)
        self._devices = {
            one.name: one for one in (FleetDevice(number, terms, self) for number in range(1, terms.devices + 1))
        }
        self._manifest: Manifest | None = None
        self._chunks: tuple[Chunk, ...] = ()
        self._subscribers: dict[str, FleetDevice] = {}
        self._trainings = self._bytes_down = self._bytes_up = 0
        self._finish: run_effects.EndRun | None = None
        self._version = 0

    def run(self) -> run_effects.EndRun:
        """Run until the engine ends the run."""
        self._perform(self._engine.handle(run_events.RunStarted(), self.agenda.now))
        for device in self._devices.values():
            device.switch_on()
        while self._finish is None:
            self.agenda.run_next()
        return self._finish

    # ---- the broker, as devices see it

    def on_state(self, device: str, envelope: Envelope) -> None:
        """Handle the presence of a device."""
        assert isinstance(envelope.body, DeviceState)
        self._perform(self._engine.handle(run_events.DevicePresence(device, envelope.body), self.agenda.now))

    def on_message(self, device: str, envelope: Envelope) -> None:
        """Handle a message of a device."""
        self._perform(self._engine.handle(run_events.DeviceMessage(device, envelope), self.agenda.now))

    def on_chunk(self, device: str, chunk: Chunk, size_bytes: int) -> None:
        """Handle a chunk of a device's update, which replaces `size_bytes` bytes."""
        self._bytes_up += size_bytes
        self._perform(self._engine.handle(run_events.ChunkReceived(device, chunk), self.agenda.now))

    def subscribe(self, device: FleetDevice, digest: str) -> None:
        """Subscribe a device to the chunks of a model. They are retained, so they are sent at once."""
        if self._manifest is not None and self._manifest.digest == digest:
            self._subscribers[device.name] = device
            for index in range(len(self._chunks)):
                self._publish(index, device)

    def unsubscribe(self, device: FleetDevice) -> None:
        """Unsubscribe a device: it gets no chunks that are published again."""
        self._subscribers.pop(device.name, None)

    def trains(self, round_number: int) -> None:
        """Count a training that has begun, unless its round is over."""
        self._trainings += round_number == self._engine.last_round and self._engine.open is not None

    def _publish(self, index: int, device: FleetDevice) -> None:
        self._bytes_down += self._models.real_bytes(index)
        chunk = self.wire.chunk(self._chunks[index])
        device.down.send(self._models.line_bytes(index), partial(device.on_model_chunk, chunk))

    # ---- effects of the coordinator

    def _wake(self) -> None:
        self._perform(self._engine.handle(run_events.TimePassed(), self.agenda.now))

    def _perform(self, effects: list[run_effects.Effect]) -> None:
        run_engine.drive_engine(self._engine, effects, self, lambda: self.agenda.now)
        self._alarm.set(self._engine.next_deadline())

    def run_effect(self, effect: run_effects.Effect) -> Iterable[run_events.Event]:
        """Run an effect of the coordinator; effects that the engine waits for complete at once."""
        match effect:
            case run_effects.SendMessage():
                self._send(effect)
            case run_effects.PublishModel():
                manifest = self._publish_model(effect.round)
                return (run_events.ModelPublished(manifest, version=self._version),)
            case run_effects.StoreUpdate():
                report = self._report_of(effect)
                return (run_events.UpdateStored(effect.round, effect.device, effect.manifest.digest, report),)
            case run_effects.AggregateUpdates():
                self._aggregate(effect)
                return (run_events.Aggregated(),)
            case run_effects.ResendChunks():
                for device, index in itertools.product(self._subscribers.values(), effect.indices):
                    self._publish(index, device)
            case run_effects.RetractModel():
                self._manifest, self._chunks = None, ()
                self._subscribers.clear()
            case run_effects.SaveRecord():
                self._save(effect.record)
            case run_effects.EndRun():
                self._finish = effect
        return ()

    def _report_of(self, effect: run_effects.StoreUpdate) -> UpdateReport:
        if self.learning is None:
            return _REPORT
        return self.learning.report(_number(effect.device), effect.base_round)

    def _aggregate(self, effect: run_effects.AggregateUpdates) -> None:
        self._version += 1
        if self.learning is not None:
            carried = {_number(device): work for device, work in effect.carried.items()}
            self.learning.fold(effect.round, [_number(device) for device in effect.devices], carried)

    def _save(self, record: RoundRecord) -> None:
        learned = None
        if self.learning is not None and record.outcome == "aggregated":
            learned = self.learning.measure(self.agenda.now)
        one = replace(FleetRound.of(record, **self._counted()), learned=learned)
        self.rounds.append(one)
        self._on_round(one)
        if self.learning is not None and learned is not None and self.learning.reached(learned):
            self._finish = run_effects.EndRun(Stopped.TARGET_UA, "")

    def _send(self, effect: run_effects.SendMessage) -> None:
        device = self._devices[effect.device]
        if device.online:
            device.down.send(MESSAGE_BYTES, partial(device.on_message, self.wire.message(effect.envelope)))

    def _publish_model(self, round_number: int) -> Manifest:
        if self.learning is not None:
            self.learning.publish(round_number)
        tag = tag_of(_COORDINATOR, round_number)
        manifest = self._models.manifest(tag)
        self._manifest = manifest
        self._chunks = tuple(self._models.chunk(manifest, tag, index) for index in range(manifest.chunk_count))
        return manifest

    def _counted(self) -> dict[str, int]:
        """Return the traffic and the begun trainings since the last call, and count from zero again."""
        counted = {"trainings": self._trainings, "bytes_down": self._bytes_down, "bytes_up": self._bytes_up}
        self._trainings = self._bytes_down = self._bytes_up = 0
        return counted


def _number(device: str) -> int:
    return int(device.rpartition("-")[2])
