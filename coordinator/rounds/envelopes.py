"""The envelopes of a run, with increasing ids, and the answers that need no open round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from fedpatch.coordinator.buffered.carried_work import CarriedWork
from fedpatch.coordinator.rounds.run_effects import CountEvent, Effect, SendMessage
from fedpatch.coordinator.rounds.run_spec import RunSpec
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


class EnvelopeFactory:
    """Makes the envelopes of a run with increasing ids, and the answers that need no open round.

    Args:
        spec: The terms of the run.
        resumable: Open rounds of other runs that can be resumed, by run. Devices keep their updates for these.

    Attributes:
        committed: Digest of the last committed update by device.
    """

    def __init__(self, spec: RunSpec, resumable: Mapping[str, int] | None = None) -> None:
        self._spec = spec
        self._resumable = resumable or {}
        self._last_id = 0
        self.committed: dict[str, str] = {}

    def send(self, device: str, round_number: int, body: Body) -> SendMessage:
        """Return the effect that sends a message of a round of this run.

        Args:
            device: The receiver.
            round_number: Number of the round.
            body: The message.
        """
        spec = self._spec
        self._last_id += 1
        return SendMessage(device, Envelope(body, self._last_id, spec.task, spec.run, spec.epoch, round_number))

    def answer_carried(self, device: str, work: CarriedWork, body: Body) -> SendMessage:
        """Return the effect that sends a message about carried work, in its epoch and round.

        Args:
            device: The receiver.
            work: Its work.
            body: The message.
        """
        message = self.send(device, work.round, body)
        return replace(message, envelope=replace(message.envelope, epoch=work.epoch))

    def answer_stale(self, device: str, envelope: Envelope, reason: RefuseReason) -> list[Effect]:
        """Answer a message of a round that is over, so that the device ends its job.

        Args:
            device: The sender.
            envelope: Its message. The answer repeats its run, epoch and round.
            reason: The reason for the answer.
        """
        match envelope.body:
            case Offer(manifest=manifest) if self.committed.get(device) == manifest.digest:
                return [self._numbered(device, replace(envelope, body=Committed(manifest.digest)))]
            case Offer(manifest=manifest) if self._resumable.get(envelope.run) == envelope.round:
                return [self._numbered(device, replace(envelope, body=RetryAfter(manifest.digest, KEEP_S)))]
            case Offer(manifest=manifest):
                answer: Body = Refused(manifest.digest, reason, "the round is over for this device")
            case Accept() | Progress() | Need():
                answer = Cancel(reason)
            case _:
                return []
        return [self._numbered(device, replace(envelope, body=answer)), CountEvent(device, "late", reason)]

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
        sends = [self._numbered(device, replace(envelope, body=answer)) for answer in answers]
        return [*sends, CountEvent(device, "refused", reason)]

    def _numbered(self, device: str, envelope: Envelope) -> SendMessage:
        self._last_id += 1
        return SendMessage(device, replace(envelope, id=self._last_id))
