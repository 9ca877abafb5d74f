"""Devices that send any messages in any order: the coordinator's rounds end, count correctly, stay small, and continue."""

from __future__ import annotations

import hashlib
import random

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fedpatch.coordinator.rounds import run_effects
from fedpatch.coordinator.rounds.held_devices import DRAINED, QUARANTINED
from fedpatch.coordinator.rounds.participant_transitions import Phase
from fedpatch.coordinator.rounds.run_engine import Engine, drive_engine
from fedpatch.coordinator.rounds.run_events import (
    Aggregated,
    ChunkReceived,
    DeviceMessage,
    DevicePresence,
    DevicesRevoked,
    Event,
    HoldsChanged,
    LinkChanged,
    ModelPublished,
    RunStarted,
    TimePassed,
    UpdateRejected,
    UpdateStored,
)
from fedpatch.shared.wire.chunks import cut
from fedpatch.shared.wire.messages import Accept, Committed, Grant, Offer
from fedpatch.shared.wire.reason_codes import RefuseReason
from tests.fuzz.effort import tries
from tests.fuzz.hostile_messages import BLOBS, MODEL, addressed, chunks, presences, up_bodies, weight
from tests.support.specs import envelope_of, gone, model, report, run_spec, sent, there, update

# Some bytes are long on purpose, so their repr is long too.
pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")

FOES = ("a", "b", "c")
LOYAL = "loyal"
ROUNDS = st.integers(0, 6) | st.just(2**53)
STEPS_S = (0.0, 0.5, 1.0, 1.0, 3.0, 3.0, 11.0, 31.0, 301.0, 1e6)
# Largest size of a device's presence (64 tasks with digests, and 64 words) and of its uploads without their buffers.
PER_DEVICE = 64 * (64 + 64 + 8) + 64 * 64 + 4096
PER_SLOT = 10_000 * 2 + 4096
FIXED = 20_000
FLOOD = 30


class HostileDevices(RuleBasedStateMachine):
    """An engine with the actions of its shell, and devices of which only the names are trusted."""

    @initialize(slots=st.integers(1, 3), quorum=st.sampled_from([0.5, 1.0]), grace_s=st.sampled_from([0.0, 20.0]))
    def begin(self, slots: int, quorum: float, grace_s: float) -> None:
        """Start a run without an end, which waits for missing devices without limit."""
        self.spec = run_spec(
            rounds=10**6,
            max_failed_rounds=10**6,
            wait_s=1e9,
            longest_pause_s=4.0,
            upload_slots=slots,
            quorum=quorum,
            grace_s=grace_s,
        )
        self.now = 0.0
        self.begun_at = 0.0
        self.refusing = False
        self.stored: set[tuple[str, str]] = set()
        self.committed: dict[int, dict[str, str]] = {}
        self.aggregated: list[int] = []
        self.engine = Engine(self.spec, jitter=random.Random(1))
        self.perform(self.engine.handle(RunStarted(), 0.0))
        for device in (*FOES, LOYAL):
            self.see(device, there())

    # ---- actions of the devices

    @rule(device=st.sampled_from(FOES), envelope=addressed(up_bodies(), ROUNDS))
    def send(self, device, envelope):
        """Send a message with any body, addressed to any round."""
        self.perform(self.engine.handle(DeviceMessage(device, envelope), self.now))

    @rule(device=st.sampled_from(FOES), body=up_bodies())
    def send_now(self, device, body):
        """Send a message to the open round."""
        self.perform(self.engine.handle(DeviceMessage(device, envelope_of(body, self.engine.last_round)), self.now))

    @rule(device=st.sampled_from(FOES), envelope=addressed(up_bodies(), ROUNDS))
    def flood(self, device, envelope):
        """Send the same message many times: the repetitions use no more memory than the first message."""
        self.send(device, envelope)
        before = weight(self.engine)
        for _ in range(FLOOD):
            self.send(device, envelope)
        assert weight(self.engine) < before + FLOOD

    @rule(device=st.sampled_from(FOES), chunk=chunks())
    def send_chunk(self, device, chunk):
        self.perform(self.engine.handle(ChunkReceived(device, chunk), self.now))

    @rule(device=st.sampled_from(FOES), blob=st.sampled_from(BLOBS), count=st.sampled_from([0, 1, 3, 9, 9]))
    def upload(self, device, blob, count):
        """Send an offer and any number of its chunks, whatever the answer is."""
        self.send_now(device, Offer(update(blob)))
        for index in range(min(count, update(blob).chunk_count)):
            self.send_chunk(device, cut(blob, update(blob), index))

    @rule(device=st.sampled_from((*FOES, LOYAL)))
    def accept(self, device):
        """Let a device accept, so that the round waits for it."""
        self.send_now(device, Accept(10))

    @rule(device=st.sampled_from(FOES), state=presences(ROUNDS))
    def see(self, device, state):
        self.perform(self.engine.handle(DevicePresence(device, state), self.now))

    @rule(device=st.sampled_from(FOES))
    def arrive(self, device):
        self.see(device, there())

    # ---- other events

    @rule(seconds=st.sampled_from(STEPS_S))
    def wait(self, seconds):
        """Time passes, perhaps far beyond the engine's next deadline."""
        self.now += seconds
        self.perform(self.engine.handle(TimePassed(), self.now))

    @rule(connected=st.booleans())
    def link(self, connected):
        self.perform(self.engine.handle(LinkChanged(connected=connected), self.now))

    @rule(devices=st.frozensets(st.sampled_from(FOES)))
    def revoke(self, devices):
        """Set the devices whose certificate is revoked."""
        self.perform(self.engine.handle(DevicesRevoked(devices), self.now))

    @rule(holds=st.dictionaries(st.sampled_from(FOES), st.sampled_from([DRAINED, QUARANTINED])))
    def hold(self, holds):
        self.perform(self.engine.handle(HoldsChanged(holds), self.now))

    @rule(refusing=st.booleans())
    def judge(self, refusing):
        """Set whether later updates are refused."""
        self.refusing = refusing

    # ---- invariants

    @invariant()
    def wakes_in_the_future(self):
        """After a tick the engine's next deadline is in the future, or it has none."""
        deadline = self.engine.next_deadline()
        if deadline is not None and deadline <= self.now:
            self.perform(self.engine.handle(TimePassed(), self.now))
            deadline = self.engine.next_deadline()
        assert deadline is None or deadline > self.now

    @invariant()
    def the_round_ends(self):
        """No round is open beyond its deadline and its grace."""
        current, policy = self.engine.open, self.spec.policy
        assert current is None or self.now < self.begun_at + policy.deadline_s + policy.grace_s

    @invariant()
    def the_open_round_waits_for_devices(self):
        """After each event the engine has taken every step that needs no device: other phases have no deadline."""
        current = self.engine.open
        assert current is None or current.round.phase in (Phase.RECRUITING, Phase.COLLECTING)

    @invariant()
    def few_upload(self):
        """Devices with a buffer share the chunks in flight; a short update needs few of them."""
        if self.engine.open is not None:
            shares = sum(slot.share for slot in self.engine.open._uploads._active.values())
            assert shares <= self.spec.upload_slots * self.spec.upload_window

    @invariant()
    def memory_is_bounded(self):
        """The engine's memory grows with the number of devices, slots and rounds, not with the number of messages."""
        # Records are a run's result; no other data may grow with its length.
        rounds = sum(map(weight, self.engine.records)) + 64 * len(self.engine.records)
        limit = FIXED + PER_DEVICE * (len(FOES) + 1) + PER_SLOT * self.spec.upload_slots + rounds
        assert weight(self.engine) <= limit

    # ---- the shell

    def perform(self, effects: list[run_effects.Effect]) -> None:
        """Run all effects, and those that follow from them."""
        drive_engine(self.engine, effects, self, lambda: self.now)

    def run_effect(self, effect: run_effects.Effect) -> list[Event]:
        """Perform an effect at once, and return the events that the engine waits for."""
        match effect:
            case run_effects.SendMessage(device=device) if isinstance(effect.envelope.body, Committed):
                digest = effect.envelope.body.digest
                assert (device, digest) in self.stored, "committed before it was stored"
                if self._is_answered_again(device, digest, effect.envelope.round):
                    return []
                counted = self.committed.setdefault(effect.envelope.round, {})
                assert counted.setdefault(device, digest) == digest, "counted twice"
            case run_effects.PublishModel():
                self.begun_at = self.now
                return [ModelPublished(model(MODEL))]
            case run_effects.StoreUpdate():
                return [self._store(effect)]
            case run_effects.AggregateUpdates():
                assert list(effect.devices) == sorted(self.committed[effect.round])
                self.aggregated.append(effect.round)
                return [Aggregated()]
            case run_effects.SaveRecord():
                assert effect.record.reported == len(self.committed.get(effect.record.round, {}))
            case run_effects.EndRun():
                raise AssertionError(f"devices ended the run: {effect}")
        return []

    def _is_answered_again(self, device: str, digest: str, number: int) -> bool:
        """Return whether the update counted in an earlier round, and the answer is to an offer in a round without the device.

        Such an answer has the round of the offer, in which the update does not count.
        """
        current = self.engine.open
        in_it = current is not None and current.round.number == number and device in current.reports
        return not in_it and any(
            known.get(device) == digest for earlier, known in self.committed.items() if earlier != number
        )

    def _store(self, effect: run_effects.StoreUpdate) -> Event:
        digest = effect.manifest.digest
        assert hashlib.sha256(effect.blob).hexdigest() == digest
        if self.refusing:
            return UpdateRejected(effect.round, effect.device, digest, RefuseReason.NOT_FINITE, "as planned")
        self.stored.add((effect.device, digest))
        return UpdateStored(effect.round, effect.device, digest, report())

    # ---- afterwards

    def teardown(self) -> None:
        """The foes leave and the operator drains them; the loyal device's round then works as usual."""
        if not hasattr(self, "engine"):
            return
        self.refusing = False
        self.link(connected=True)
        self._outlast()
        for device in FOES:
            self.see(device, gone(self.engine.fleet.boot(device)))
        self.hold(dict.fromkeys(FOES, DRAINED))
        before = len(self.aggregated)
        for _ in range(50):
            current = self.engine.open
            if current is not None and current.round.phase in (Phase.RECRUITING, Phase.COLLECTING):
                self._work_honestly(LOYAL)
            if len(self.aggregated) > before:
                return
            deadline = self.engine.next_deadline()
            self.wait(1.0 if deadline is None else deadline - self.now)
            self.wakes_in_the_future()
            self.the_round_ends()
        raise AssertionError("an honest round no longer works")

    def _outlast(self) -> None:
        """One device accepts and is silent, another reports: even then a round ends in time."""
        self.accept(LOYAL)
        self.upload(FOES[0], BLOBS[0], len(BLOBS[0]))
        self.wait(self.spec.policy.deadline_s + self.spec.policy.grace_s)
        self.the_round_ends()

    def _work_honestly(self, device: str) -> None:
        number = self.engine.last_round
        self.perform(self.engine.handle(DeviceMessage(device, envelope_of(Accept(10), number)), self.now))
        answer = self.engine.handle(DeviceMessage(device, envelope_of(Offer(update()), number)), self.now)
        self.perform(answer)
        if any(isinstance(body, Grant) for to, body in sent(answer) if to == device):
            for index in range(update().chunk_count):
                self.perform(self.engine.handle(ChunkReceived(device, cut(b"u" * 350, update(), index)), self.now))


TestHostileDevices = HostileDevices.TestCase
TestHostileDevices.settings = tries(40, stateful_step_count=50)


def test_offer_of_a_counted_update_in_a_round_without_its_device_counts_nothing_there():
    machine = HostileDevices()
    machine.begin(slots=1, quorum=0.5, grace_s=0.0)
    machine.upload(device="a", blob=b"w", count=9)
    machine.see("a", gone(machine.engine.fleet.boot("a")))
    machine.wait(1000.0)
    machine.send_now("a", Offer(update(b"w")))
    assert {number: sorted(known) for number, known in machine.committed.items()} == {1: ["a"]}
