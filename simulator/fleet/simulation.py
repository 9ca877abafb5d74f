"""A whole fleet in one process: the real engine, the real jobs, lines between them, and a clock that runs ahead.

For studies of the round policy: what deadlines, quorum and over-selection come to with devices that are slow, decline and
drop out. Nothing is trained. The broker is taken to be as fast as it has to be; packing, saving and averaging take no time.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from coordinator import effects as do
from coordinator.engine import Engine
from shared.messages import DeviceState, Envelope, Manifest, UpdateReport
from shared.transfer import Chunk
from simulator.agenda import Agenda, Alarm
from simulator.fleet_device import FleetDevice
from simulator.fleet_link import MESSAGE_BYTES, STAND_IN_BYTES, StandIn, Wire, tag_of
from simulator.fleet_report import FleetReport, FleetRound
from simulator.fleet_terms import FleetTerms

OnRound = Callable[[FleetRound], None]

# Owner of the global model's chunks; devices are numbered from 1.
_COORDINATOR = 0
# Of an update that nobody trained: from one example, without a user accuracy.
_REPORT = UpdateReport("00" * 32, 1, 1, 0.0, None, None, 0.0, 0.0)


def simulate_fleet(terms: FleetTerms, on_round: OnRound = lambda _: None, *, wire: bool = False) -> FleetReport:
    """Plays all rounds; `on_round` gets each as soon as it is over. `wire` sends all messages through the codec.

    `terms` must have passed their check, as those of shared.config.load have.
    """
    began = time.perf_counter()
    fleet = SimulatedFleet(terms, on_round, wire=wire)
    finish = fleet.run()
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
    """The coordinator with its broker, and all devices. Every event costs the same, whatever their number."""

    def __init__(self, terms: FleetTerms, on_round: OnRound = lambda _: None, *, wire: bool = False) -> None:
        self.agenda = Agenda(0.0)
        self.wire = Wire(real=wire)
        self.updates = StandIn(terms.update_bytes, terms.chunk_bytes)
        self.rounds: list[FleetRound] = []
        self._on_round = on_round
        self._models = StandIn(terms.model_bytes, terms.chunk_bytes)
        self._engine = Engine(
            terms.run_spec(chunk_bytes=STAND_IN_BYTES), jitter=random.Random(f"{terms.seed}:coordinator")
        )
        self._alarm = Alarm(self.agenda, self._wake)
        self._devices = {
            one.name: one for one in (FleetDevice(number, terms, self) for number in range(1, terms.devices + 1))
        }
        self._manifest: Manifest | None = None
        self._chunks: tuple[Chunk, ...] = ()
        self._subscribers: dict[str, FleetDevice] = {}
        self._trainings = self._bytes_down = self._bytes_up = 0
        self._finish: do.Finish | None = None

    def run(self) -> do.Finish:
        """Until the engine has played its rounds, or has given up."""
        self._perform(self._engine.start(self.agenda.now))
        for device in self._devices.values():
            device.start()
        while self._finish is None:
            self.agenda.run_next()
        return self._finish

    # ---- the broker, as devices see it

    def on_state(self, device: str, envelope: Envelope) -> None:
        """A device's presence."""
        assert isinstance(envelope.body, DeviceState)
        self._perform(self._engine.on_state(device, envelope.body, self.agenda.now))

    def on_message(self, device: str, envelope: Envelope) -> None:
        """What a device says."""
        self._perform(self._engine.on_message(device, envelope, self.agenda.now))

    def on_chunk(self, device: str, chunk: Chunk, size_bytes: int) -> None:
        """A chunk of its update, which stands for so many bytes."""
        self._bytes_up += size_bytes
        self._perform(self._engine.on_chunk(device, chunk, self.agenda.now))

    def subscribe(self, device: FleetDevice, digest: str) -> None:
        """The chunks of a model are retained: they come at once."""
        if self._manifest is not None and self._manifest.digest == digest:
            self._subscribers[device.name] = device
            for index in range(len(self._chunks)):
                self._publish(index, device)

    def unsubscribe(self, device: FleetDevice) -> None:
        """Chunks that are published again are not for this device."""
        self._subscribers.pop(device.name, None)

    def trains(self, round_number: int) -> None:
        """A training has begun; one of a round that is over wastes nothing of this one."""
        self._trainings += round_number == self._engine.last_round and self._engine.open is not None

    def _publish(self, index: int, device: FleetDevice) -> None:
        self._bytes_down += self._models.real_bytes(index)
        chunk = self.wire.chunk(self._chunks[index])
        device.down.send(self._models.line_bytes(index), partial(device.on_model_chunk, chunk))

    # ---- the coordinator's shell

    def _wake(self) -> None:
        self._perform(self._engine.tick(self.agenda.now))

    def _perform(self, effects: list[do.Effect]) -> None:
        queue = deque(effects)
        while queue:
            queue.extend(self._do(queue.popleft()))
        self._alarm.set(self._engine.next_deadline())

    def _do(self, effect: do.Effect) -> list[do.Effect]:
        """What the engine waits for is done at once."""
        now = self.agenda.now
        match effect:
            case do.Send():
                self._send(effect)
            case do.PublishModel():
                return self._engine.model_published(self._publish_model(effect.round), now)
            case do.Store():
                return self._engine.stored(effect.device, effect.manifest.digest, _REPORT, now)
            case do.Aggregate():
                return self._engine.aggregated(now)
            case do.Republish():
                for device, index in itertools.product(self._subscribers.values(), effect.indices):
                    self._publish(index, device)
            case do.RetractModel():
                self._manifest, self._chunks = None, ()
                self._subscribers.clear()
            case do.Record():
                self.rounds.append(FleetRound.of(effect.record, **self._counted()))
                self._on_round(self.rounds[-1])
            case do.Finish():
                self._finish = effect
        return []

    def _send(self, effect: do.Send) -> None:
        device = self._devices[effect.device]
        if device.online:
            device.down.send(MESSAGE_BYTES, partial(device.on_message, self.wire.message(effect.envelope)))

    def _publish_model(self, round_number: int) -> Manifest:
        tag = tag_of(_COORDINATOR, round_number)
        manifest = self._models.manifest(tag)
        self._manifest = manifest
        self._chunks = tuple(self._models.chunk(manifest, tag, index) for index in range(manifest.chunk_count))
        return manifest

    def _counted(self) -> dict[str, int]:
        """What travelled and began since the last round, counted from zero again."""
        counted = {"trainings": self._trainings, "bytes_down": self._bytes_down, "bytes_up": self._bytes_up}
        self._trainings = self._bytes_down = self._bytes_up = 0
        return counted
