"""Answers to outdated messages, so that their senders end the job: of another run, epoch or round, or of a round that is over.

A message of a device in quarantine is answered like one. The updates of carried work are not outdated while a later round may
take them (coordinator.rounds.carried_rounds).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fedpatch.coordinator.rounds.active_round import ActiveRound
from fedpatch.coordinator.rounds.envelopes import EnvelopeFactory
from fedpatch.coordinator.rounds.known_devices import Fleet
from fedpatch.coordinator.rounds.participant_transitions import Phase
from fedpatch.coordinator.rounds.run_effects import CountEvent, Effect
from fedpatch.coordinator.rounds.run_spec import RunSpec
from fedpatch.shared.wire.features import CARRY_FEATURE
from fedpatch.shared.wire.messages import (
    Accept,
    Body,
    Cancel,
    Committed,
    Envelope,
    Need,
    Offer,
    Progress,
    Refused,
    RetryAfter,
)
from fedpatch.shared.wire.reason_codes import RefuseReason

# The pause before a device repeats the offer of an update that a paused run may still take.
KEEP_S = 60.0


class OutdatedMessages:
    """Finds outdated messages, and answers them in the run, epoch and round of the message.

    Args:
        spec: The terms of the run.
        fleet: The known devices.
        envelopes: Makes the envelopes.
        resumable: Open rounds of other runs that can be resumed, by run. Devices keep their updates for these.
    """

    def __init__(
        self, spec: RunSpec, fleet: Fleet, envelopes: EnvelopeFactory, resumable: Mapping[str, int] | None = None
    ) -> None:
        self._spec = spec
        self._fleet = fleet
        self._envelopes = envelopes
        self._resumable = resumable or {}

    def reason(
        self, device: str, envelope: Envelope, current: ActiveRound | None, last_round: int
    ) -> RefuseReason | None:
        """Return the reason for which a message is too late, or not expected; None if it belongs to the open round.

        Args:
            device: The sender.
            current: The open round.
            last_round: The number of the last round that began.
        """
        spec = self._spec
        if envelope.run == spec.run and envelope.epoch < spec.epoch:
            return RefuseReason.STALE_EPOCH
        ours = (spec.run, spec.epoch, current.round.number if current else 0)
        if current is None or (envelope.run, envelope.epoch, envelope.round) != ours:
            older = spec.carry is not None and envelope.run == spec.run and envelope.round <= last_round
            return self.known_reason(device, RefuseReason.STALE) if older else RefuseReason.LATE
        if device not in current.round.participants:
            return RefuseReason.NOT_INVITED
        phase = current.round.phase
        if phase is Phase.UNMASKING:
            return RefuseReason.LATE if isinstance(envelope.body, Offer) else None
        return None if phase in (Phase.RECRUITING, Phase.COLLECTING) else RefuseReason.LATE

    def known_reason(self, device: str, reason: RefuseReason) -> RefuseReason:
        """Return the reason, or LATE for a device of a version without carried work."""
        return reason if self._fleet.knows(device, CARRY_FEATURE) else RefuseReason.LATE

    def answer(self, device: str, envelope: Envelope, reason: RefuseReason) -> list[Effect]:
        """Answer an outdated message, so that the device ends its job.

        Args:
            device: The sender.
            envelope: Its message. The answer repeats its run, epoch and round.
            reason: The reason for the answer.
        """
        match envelope.body:
            case Offer(manifest=manifest) if self._envelopes.committed.get(device) == manifest.digest:
                return [self._envelopes.repeat(device, replace(envelope, body=Committed(manifest.digest)))]
            case Offer(manifest=manifest) if self._resumable.get(envelope.run) == envelope.round:
                return [self._envelopes.repeat(device, replace(envelope, body=RetryAfter(manifest.digest, KEEP_S)))]
            case Offer(manifest=manifest):
                answer: Body = Refused(manifest.digest, reason, "the round is over for this device")
            case Accept() | Progress() | Need():
                answer = Cancel(reason)
            case _:
                return []
        return [self._envelopes.repeat(device, replace(envelope, body=answer)), CountEvent(device, "late", reason)]

    def answer_quarantined(self, device: str, envelope: Envelope) -> list[Effect]:
        """Refuse a message of a quarantined device. An older agent does not know the reason, so it gets `cancel` too."""
        reason = RefuseReason.QUARANTINED
        answers: list[Body] = []
        match envelope.body:
            case Offer(manifest=manifest):
                answers = [Refused(manifest.digest, reason, "the coordinator's operator can release this device")]
                answers.append(Cancel(reason))
            case Accept() | Progress() | Need():
                answers = [Cancel(reason)]
        sends = [self._envelopes.repeat(device, replace(envelope, body=answer)) for answer in answers]
        return [*sends, CountEvent(device, "refused", reason)]
