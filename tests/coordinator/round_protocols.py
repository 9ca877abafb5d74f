"""An open round for tests: its events, and the effects that follow."""

from __future__ import annotations

import random
from typing import Any

from fedpatch.coordinator.rounds.active_round import ActiveRound
from fedpatch.coordinator.rounds.envelopes import EnvelopeFactory
from fedpatch.coordinator.rounds.known_devices import Fleet
from fedpatch.coordinator.rounds.participant_transitions import State
from fedpatch.coordinator.rounds.round_journal import RoundJournal, RoundStart
from fedpatch.coordinator.rounds.run_effects import Effect
from fedpatch.coordinator.rounds.run_events import ModelPublished
from fedpatch.shared.wire.chunks import cut
from fedpatch.shared.wire.messages import Accept, Body, Decline, DeviceState, Failed, Grant, Offer
from fedpatch.shared.wire.reason_codes import DeclineReason, FailReason
from tests.support.specs import TASK, model, report, run_spec, sent, there, update

BLOB = b"u" * 350


class Bench:
    """A round whose devices a, b, ... were all invited at second 0."""

    def __init__(self, devices: str = "ab", target: int = 0, limit_s: float | None = None, **changes: Any) -> None:
        spec = run_spec(**changes)
        self.fleet = Fleet(TASK, encoding=spec.encoding)
        for device in devices:
            self.fleet.update(device, there())
        self.post = EnvelopeFactory(spec)
        opening = RoundStart(RoundJournal(1, target or len(devices), tuple(devices), base=""))
        self.open = ActiveRound(spec, opening, self.fleet, self.post, random.Random(1), limit_s, 0.0)
        self.begun = self.open.begin(ModelPublished(model()), 0.0)

    def receive(self, device: str, *bodies: Body, now: float = 1.0) -> list[Effect]:
        return [effect for body in bodies for effect in self.open.on_message(device, body, now)]

    def see(self, device: str, state: DeviceState, now: float = 1.0) -> list[Effect]:
        """Handle a presence after the fleet has recorded it, as the engine does."""
        known = self.fleet.boot(device)
        self.fleet.update(device, state)
        return self.open.on_presence(device, known, state, now)

    def lose(self, device: str, end: str) -> None:
        """Make a device leave the round: "late", "failed" or "declined"."""
        if end == "late":
            self.open.tick(10.0)
        else:
            self.receive(device, Failed(FailReason.TRAINING) if end == "failed" else Decline(DeclineReason.UNWILLING))

    def state(self, device: str) -> State:
        return self.open.round.participants[device].state

    def accept_all(self, now: float = 1.0) -> Bench:
        for device in self.open.round.participants:
            self.receive(device, Accept(10), now=now)
        return self

    def chunks(self, device: str, blob: bytes = BLOB, now: float = 2.0) -> list[Effect]:
        manifest = update(blob)
        parts = [cut(blob, manifest, index) for index in range(manifest.chunk_count)]
        return [effect for part in parts for effect in self.open.on_chunk(device, part, now)]

    def report(self, device: str, accuracy: float | None = 0.5, now: float = 3.0, blob: bytes = BLOB) -> list[Effect]:
        """Let a device upload an update, which is then stored."""
        self.upload(device, blob)
        return self.open.stored(device, update(blob).digest, report(accuracy), now)

    def upload(self, device: str, blob: bytes = BLOB) -> list[Effect]:
        """Let a device offer an update, which is granted, and send its chunks."""
        assert isinstance(sent(self.receive(device, Offer(update(blob))))[0][1], Grant)
        return self.chunks(device, blob)
