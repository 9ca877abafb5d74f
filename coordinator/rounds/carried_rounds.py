"""Carried work between the rounds of a run: the messages about it, the updates that wait for a version, and stale work.

A run without buffered rounds (coordinator.buffered) has no carried work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from fedpatch.coordinator.aggregation.example_weights import example_weights
from fedpatch.coordinator.buffered.carried_work import CarriedDevices, CarriedWork
from fedpatch.coordinator.buffered.speed_classes import SpeedClasses
from fedpatch.coordinator.rounds.active_round import ActiveRound
from fedpatch.coordinator.rounds.envelopes import EnvelopeFactory
from fedpatch.coordinator.rounds.known_devices import Fleet
from fedpatch.coordinator.rounds.outdated_messages import KEEP_S, OutdatedMessages
from fedpatch.coordinator.rounds.participant_transitions import ParticipantEvent
from fedpatch.coordinator.rounds.round_journal import CommittedUpdate, RoundStart
from fedpatch.coordinator.rounds.round_record import BufferedFigures, RoundRecord
from fedpatch.coordinator.rounds.run_effects import Effect
from fedpatch.coordinator.rounds.run_spec import RunSpec
from fedpatch.coordinator.rounds.upload_scheduler import UploadScheduler
from fedpatch.shared.wire.messages import (
    Accept,
    Body,
    Cancel,
    Decline,
    DeviceState,
    Envelope,
    Failed,
    Need,
    Offer,
    Progress,
    RetryAfter,
)
from fedpatch.shared.wire.reason_codes import RefuseReason

BETWEEN_ROUNDS_S = 1.0
"""The shortest pause before a device repeats an offer of carried work that arrived between two rounds."""


class CarriedRounds:
    """Hands work from one round to the next.

    Args:
        spec: The terms of the run.
        fleet: The known devices.
        envelopes: Makes the envelopes.
        outdated: Answers an offer of work that a newer request has superseded.
        uploads: The upload slots, which outlast a round.
        works: Work for rounds that are over, by device.
        waiting: Committed updates of a failed round that wait for the next version, by device.

    Attributes:
        devices: The devices with work that have not offered their updates.
        waiting: Committed updates that wait for the next version, by device.
        speeds: The training times of the devices.
    """

    def __init__(
        self,
        spec: RunSpec,
        fleet: Fleet,
        envelopes: EnvelopeFactory,
        outdated: OutdatedMessages,
        uploads: UploadScheduler,
        works: Mapping[str, CarriedWork] | None = None,
        waiting: Mapping[str, CommittedUpdate] | None = None,
    ) -> None:
        self.devices = CarriedDevices(works)
        self.waiting: dict[str, CommittedUpdate] = dict(waiting or {})
        self.speeds = SpeedClasses()
        self._spec = spec
        self._fleet = fleet
        self._envelopes = envelopes
        self._outdated = outdated
        self._uploads = uploads
        # The number of works that were too old for the model of the open round.
        self._expired = 0

    @property
    def works(self) -> dict[str, CarriedWork]:
        """The work of devices that have not offered their updates, by device."""
        return self.devices.works

    @property
    def all_works(self) -> dict[str, CarriedWork]:
        """The unfinished work, and the work of committed updates that wait, by device."""
        waiting = {device: update.work for device, update in self.waiting.items() if update.work is not None}
        return self.works | waiting

    @property
    def engaged(self) -> set[str]:
        """The devices that no round invites: they do carried work, or their update waits."""
        at_work = {device for device, work in self.works.items() if work.busy or self._uploads.holds(device)}
        return at_work | self.waiting.keys()

    @property
    def at_work(self) -> int:
        """The number of connected devices that do carried work, without absent ones: nothing waits for these."""
        absent = self._fleet.count.absent
        return sum(self._fleet.is_online(device) for device in self.devices.busy.difference(absent))

    def drop(self, device: str) -> None:
        """Forget the work of a device: no later round takes it."""
        self._uploads.release(device)
        self.devices.drop(device)

    def work_of(self, device: str, envelope: Envelope, current: ActiveRound | None) -> CarriedWork | None:
        """Return the carried work that a message is about; None if it is about none.

        Args:
            device: The sender.
            current: The open round.
        """
        if self._spec.carry is None or envelope.run != self._spec.run:
            return None
        admitted = current.works.get(device) if current is not None else None
        if admitted is not None:
            return admitted if admitted.round == envelope.round else None
        return self.devices.of(device, envelope.round)

    def on_message(
        self,
        device: str,
        work: CarriedWork,
        envelope: Envelope,
        current: ActiveRound | None,
        now: float,
        next_round_s: float,
    ) -> list[Effect]:
        """Handle a message about carried work, whose device answers in the epoch and the round of its request.

        Args:
            device: The sender.
            work: Its work (`work_of`).
            current: The open round.
            now: The time, in seconds.
            next_round_s: Seconds until the next round is due.
        """
        if current is not None and device in current.works:
            return current.on_message(device, envelope.body, now)
        body = envelope.body
        work = replace(work, epoch=envelope.epoch, busy=True)
        match body:
            case Offer():
                return self._on_offer(device, work, envelope, body, current, now, next_round_s)
            case Need() if current is not None and current.publishes(body.digest):
                # Chunks on their way still arrive. Only missing chunks of deltas are published again, not of an older model.
                return current.resend(body, now)
            case Need():
                self._take(device, current, now)
                return [self._envelopes.answer_carried(device, work, Cancel("stale"))]
            case Failed() | Decline():
                self._take(device, current, now)
            case Accept() | Progress():
                self.devices.note(device, busy=True, epoch=envelope.epoch)
                self.expect(current, now)
        return []

    def _on_offer(
        self,
        device: str,
        work: CarriedWork,
        envelope: Envelope,
        offer: Offer,
        current: ActiveRound | None,
        now: float,
        next_round_s: float,
    ) -> list[Effect]:
        if current is not None and current.takes(device):
            self.devices.take(device)
            current.admit(device, work, now)
            self.expect(current, now)
            return current.on_message(device, offer, now)
        if current is not None and device in current.round.participants:
            reason = self._outdated.known_reason(device, RefuseReason.SUPERSEDED)
            return self._outdated.answer(device, envelope, reason)
        # Between two rounds: the next one takes the update.
        pause_s = min(KEEP_S, max(BETWEEN_ROUNDS_S, next_round_s))
        answer: Body = RetryAfter(offer.manifest.digest, pause_s)
        return [self._envelopes.answer_carried(device, work, answer)]

    def _take(self, device: str, current: ActiveRound | None, now: float) -> None:
        self.devices.take(device)
        self.expect(current, now)

    def note_presence(
        self, device: str, known_boot: str, state: DeviceState, current: ActiveRound | None, now: float
    ) -> None:
        """Note from a device's presence whether it still does its carried work.

        Args:
            known_boot: Its boot nonce before this presence; "" if it is unknown.
            state: Its presence.
            current: The open round.
            now: The time, in seconds.
        """
        work = self.works.get(device)
        if work is None:
            return
        job = state.job
        if state.online:
            busy = job is not None and (job.run, job.round) == (self._spec.run, work.round)
            self.devices.note(device, busy=busy)
            if not busy and state.boot not in (known_boot, ""):
                self._uploads.release(device)
        self.expect(current, now)

    def expect(self, current: ActiveRound | None, now: float) -> None:
        """Let the open round expect the updates of the connected devices that do carried work."""
        if current is not None:
            current.expect(self.at_work, now)

    def resume(self, opening: RoundStart) -> None:
        """Leave the work of the updates that a continued round has already committed to this round."""
        for device, update in opening.updates.items():
            if update.work is not None:
                self.devices.drop(device)

    def begin_round(self, current: ActiveRound, now: float) -> None:
        """Hand the waiting updates over to a round, which was opened with them."""
        if self._spec.carry is not None:
            self.waiting = {}
            self.expect(current, now)

    def expire(self, version: int) -> list[Effect]:
        """End the work whose base is too old for a published model, and return the effects that tell its devices.

        After a crash between a checkpoint and its record, work may be too old already.
        """
        self._expired, cancels = self._expire(version)
        return cancels

    def continue_uploads(self, current: ActiveRound, now: float) -> None:
        """Let a round take in the devices that were uploading when the last one ended, so that their uploads continue."""
        for device in [device for device in self.works if self._uploads.holds(device)]:
            if current.takes(device):
                current.admit(device, self.devices.take(device), now)
                current.round.handle(device, ParticipantEvent.OFFER, now)
        if self._spec.carry is not None:
            self.expect(current, now)

    def end_round(self, current: ActiveRound, record: RoundRecord) -> tuple[RoundRecord, list[Effect]]:
        """Carry the unfinished work of a round that is over, and end work whose base is too old for the next round.

        Returns:
            The record with the figures of buffered rounds, and the effects that tell devices of the end of their work.
        """
        carry = self._spec.carry
        if carry is None:
            return record, []
        aggregated = record.outcome == "aggregated"
        self.waiting = {} if aggregated else current.committed_work()
        staleness = Counter(str(current.staleness(device)) for device in (current.reports if aggregated else ()))
        self.devices.add(current.work_left())
        stale, cancels = self._expire(current.version + aggregated)
        figures = BufferedFigures(
            carried=len(self.works),
            waiting=len(self.waiting),
            stale=stale + self._expired,
            staleness=dict(sorted(staleness.items(), key=lambda one: int(one[0]))),
            weights=self.speeds.shares(self._weights_in(current)) if aggregated else (),
        )
        return replace(record, buffered=figures), cancels

    def drop_waiting(self, record: RoundRecord) -> RoundRecord:
        """Forget the updates that wait, at the end of the run; return the record of the last round, which counts them."""
        if record.buffered is None:
            return record
        unused, self.waiting = len(self.waiting), {}
        return replace(record, buffered=replace(record.buffered, waiting=0, unused=unused))

    def cancels(self) -> list[Effect]:
        """Return the effects that end all carried work, at the end of the run."""
        works = sorted(self.works.items())
        return [self._envelopes.answer_carried(device, work, Cancel("late")) for device, work in works]

    def _expire(self, version: int) -> tuple[int, list[Effect]]:
        """Return the number of works whose base is too old for the next version, and the effects that end them."""
        if self._spec.carry is None:
            return 0, []
        stale = self.devices.expire(version, self._spec.carry.max_staleness)
        for device in stale:
            self._uploads.release(device)
        return len(stale), [
            self._envelopes.answer_carried(device, work, Cancel("stale")) for device, work in sorted(stale.items())
        ]

    def _weights_in(self, current: ActiveRound) -> dict[str, float]:
        """Return the weight of each update in a version."""
        carry = self._spec.carry
        assert carry is not None
        counted = {device: report.num_examples for device, report in current.reports.items() if report is not None}
        weighs = example_weights(counted, self._spec.limits.examples, current.members)
        return {device: weight * carry.factor(current.staleness(device)) for device, weight in weighs.items()}
