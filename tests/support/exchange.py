"""One engine and N jobs, joined by a link that may be bad, under a virtual clock.

The exchange runs the effects of both sides and checks the invariants of each moment: `committed` is sent only for stored
updates, an aggregate has exactly the committed updates, no update counts twice, few devices upload at a time, and no
deadline of a state machine is in the past.
"""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from dataclasses import replace
from functools import partial

from fedpatch.coordinator.rounds import run_effects
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.rounds.run_engine import Engine, drive_engine
from fedpatch.coordinator.rounds.run_events import (
    Aggregated,
    ChunkReceived,
    DeviceMessage,
    DevicePresence,
    Event,
    Interrupted,
    ModelPublished,
    RunStarted,
    TimePassed,
    UpdateRejected,
    UpdateStored,
)
from fedpatch.coordinator.rounds.run_spec import RunSpec
from fedpatch.shared.deadlines import earliest
from fedpatch.shared.wire.chunks import cut, decode_chunk, encode_chunk
from fedpatch.shared.wire.codec import decode, encode
from fedpatch.shared.wire.messages import Committed, DeviceState, Manifest
from fedpatch.shared.wire.reason_codes import RefuseReason
from fedpatch.simulator.fleet.virtual_clock import VirtualClock
from tests.support.exchange_device import Device
from tests.support.specs import model, report
from tests.support.virtual_time import LATENCY_S, Faults, FaultyLink


class Exchange:
    """Build it, `start` it, `run` it; then look at `finish`, `records`, `counts` and the devices."""

    def __init__(self, spec: RunSpec, devices: int, *, seed: int = 0, bad: Faults | None = None) -> None:
        rng = random.Random(seed)
        self.spec = spec
        self.agenda = VirtualClock(1000.1)
        self.link = FaultyLink(self.agenda, rng, bad or Faults())
        self.engine = Engine(spec, jitter=random.Random(rng.random()))
        self.devices = {name: Device(name, self, rng.randrange(2**32)) for name in (f"pi-{i}" for i in range(devices))}
        self.accuracy: dict[int, float] = {}
        self.refuse: dict[str, RefuseReason] = {}
        self.records: list[RoundRecord] = []
        self.counts: Counter[tuple[str, str, str]] = Counter()
        self.finish: run_effects.EndRun | None = None
        self.committed: dict[tuple[int, int], dict[str, str]] = {}
        self.cancelled: Counter[str] = Counter()
        self._rng = rng
        self._up = True
        self._blob = b""
        self._manifest: Manifest | None = None
        self._states: dict[str, bytes] = {}
        self._stored: set[tuple[str, str]] = set()

    @property
    def now(self) -> float:
        return self.agenda.now

    def start(self) -> Exchange:
        self.perform(self.engine.handle(RunStarted(), self.now))
        for device in self.devices.values():
            device.start()
        return self

    def run(self, limit_s: float) -> Exchange:
        """Run until the run has ended or the time is over."""
        end = self.now + limit_s
        while self.finish is None and self._step(end):
            pass
        return self

    def drain(self, limit_s: float = 500.0) -> Exchange:
        """Continue on a good link until all devices are idle or the time is over; the engine still answers."""
        self.link.faults = Faults()
        end = self.now + limit_s
        while any(device.job.key is not None or not device.online for device in self.devices.values()) and self._step(
            end
        ):
            pass
        return self

    def _step(self, end: float) -> bool:
        """Run the next action that is due before `end`; return False if there is none."""
        at = self.agenda.next_at()
        deadlines = [self._engine_deadline(), *(device.next_deadline() for device in self.devices.values())]
        due = earliest(at, *deadlines)
        if due is None or due > end:
            self.agenda.now = end
            return False
        if due == at:
            self.agenda.run_next()
        self.agenda.now = max(self.now, due)
        self._wake()
        return True

    def _engine_deadline(self) -> float | None:
        return self.engine.next_deadline() if self._up else None

    def _wake(self) -> None:
        """Tick all parties with a due deadline; none may be due again at once."""
        deadline = self._engine_deadline()
        if deadline is not None and deadline <= self.now:
            self.perform(self.engine.handle(TimePassed(), self.now))
            after = self.engine.next_deadline()
            assert after is None or after > self.now, "the engine wants to be woken in the past"
        for device in self.devices.values():
            deadline = device.next_deadline()
            if deadline is not None and deadline <= self.now:
                device.tick()
                after = device.next_deadline()
                assert after is None or after > self.now, "a job wants to be woken in the past"

    # ---- the broker

    def publish_state(self, name: str, payload: bytes) -> None:
        self._states[name] = payload
        self.agenda.after(LATENCY_S, partial(self._on_state, name, payload))

    def subscribe(self, device: Device, manifest: Manifest) -> None:
        """A device subscribes to the chunks of a model: retained chunks come at once."""
        if self._manifest == manifest:
            self._publish_chunks(range(manifest.chunk_count), [device])

    def _publish_chunks(self, indices: range | tuple[int, ...], to: list[Device]) -> None:
        assert self._manifest is not None
        for device in to:
            for index in indices:
                self.link.send(partial(device.on_chunk, encode_chunk(cut(self._blob, self._manifest, index))))

    # ---- the coordinator's shell

    def restart_coordinator(self, down_s: float) -> None:
        """Kill the coordinator and start it again: a new epoch, with the records and the broker's retained messages."""
        if self._up and self.finish is None:
            self._up = False
            self.spec = replace(self.spec, epoch=self.spec.epoch + 1)
            self.engine = Engine(self.spec, records=self.records, jitter=random.Random(self._rng.random()))
            self.agenda.after(down_s, self._coordinator_is_back)

    def _coordinator_is_back(self) -> None:
        self._up = True
        self._manifest = None
        self.perform(self.engine.handle(RunStarted(), self.now))
        self.replay_presence()
        for device in self.devices.values():
            device.on_coordinator()

    def replay_presence(self) -> None:
        """Deliver retained presence, as to a coordinator that reconnects; the presence may be older than the jobs."""
        for name, payload in list(self._states.items()):
            self._on_state(name, payload)

    def interrupt(self) -> None:
        self.perform(self.engine.handle(Interrupted(), self.now))

    def _on_state(self, name: str, payload: bytes) -> None:
        body = decode(payload).body
        assert isinstance(body, DeviceState)
        if self._up:
            self.perform(self.engine.handle(DevicePresence(name, body), self.now))

    def on_up(self, name: str, payload: bytes) -> None:
        if self._up:
            self.perform(self.engine.handle(DeviceMessage(name, decode(payload)), self.now))

    def on_chunk(self, name: str, payload: bytes) -> None:
        if self._up:
            self.perform(self.engine.handle(ChunkReceived(name, decode_chunk(payload)), self.now))

    def perform(self, effects: list[run_effects.Effect]) -> None:
        """Run these effects and the effects that follow from them."""
        drive_engine(self.engine, effects, self, lambda: self.now)
        if self.engine.open is not None:
            assert self.engine.open._uploads._taken <= self.spec.upload_slots * self.spec.upload_window

    def run_effect(self, effect: run_effects.Effect) -> list[Event]:
        """Run an effect; events that the engine waits for are returned at once."""
        match effect:
            case run_effects.SendMessage():
                self._send(effect)
            case run_effects.PublishModel():
                self._blob = self._rng.randbytes(self._rng.randint(1, 900))
                self._manifest = model(self._blob)
                return [ModelPublished(self._manifest)]
            case run_effects.ResendChunks():
                self._publish_chunks(effect.indices, list(self.devices.values()))
            case run_effects.RetractModel():
                self._manifest = None
            case run_effects.StoreUpdate():
                return self._store(effect)
            case run_effects.AggregateUpdates():
                assert list(effect.devices) == sorted(self.committed[self.spec.epoch, effect.round])
                return [Aggregated()]
            case run_effects.SaveRecord():
                self.records.append(effect.record)
            case run_effects.CountEvent():
                self.counts[effect.device, effect.what, effect.reason] += 1
            case run_effects.EndRun():
                self.finish = effect
        return []

    def _send(self, effect: run_effects.SendMessage) -> None:
        envelope = effect.envelope
        if isinstance(envelope.body, Committed):
            assert (effect.device, envelope.body.digest) in self._stored, "committed before it was stored"
            counted = self.committed.setdefault((envelope.epoch, envelope.round), {})
            assert counted.setdefault(effect.device, envelope.body.digest) == envelope.body.digest, "counted twice"
        self.cancelled[effect.device] += type(envelope.body).__name__ == "Cancel"
        self.link.send(partial(self.devices[effect.device].on_down, encode(envelope)))

    def _store(self, effect: run_effects.StoreUpdate) -> list[Event]:
        assert hashlib.sha256(effect.blob).hexdigest() == effect.manifest.digest
        digest = effect.manifest.digest
        if effect.device in self.refuse:
            return [UpdateRejected(effect.round, effect.device, digest, self.refuse[effect.device], "as planned")]
        self._stored.add((effect.device, digest))
        return [UpdateStored(effect.round, effect.device, digest, report(self.accuracy.get(effect.round, 0.5)))]
