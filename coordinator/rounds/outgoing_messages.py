"""Addresses messages to devices: run, epoch and round of the envelope, and answers to what is no longer current."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

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

# After which a device offers once more what another run may still take.
KEEP_S = 60.0


class EnvelopeFactory:
    """Numbers the messages of a run, and remembers what each device last had committed.

    `resumable` are the open rounds of other runs that somebody may go on with: what waits for those goes on waiting.
    """

    def __init__(self, spec: RunSpec, resumable: Mapping[str, int] | None = None) -> None:
        self._spec = spec
        self._resumable = resumable or {}
        self._last_id = 0
        self.committed: dict[str, str] = {}

    def send(self, device: str, round_number: int, body: Body) -> SendMessage:
        """A message of a round of this run."""
        spec = self._spec
        return self._numbered(
            device, Envelope(body, task=spec.task, run=spec.run, epoch=spec.epoch, round=round_number)
        )

    def answer_stale(self, device: str, envelope: Envelope, reason: RefuseReason) -> list[Effect]:
        """Closes what a device still believes to be open, in the terms of its own message, so that it can forget it."""
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
        """Of a device in quarantine nothing is taken. `cancel` is for one that does not know that reason to refuse."""
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
