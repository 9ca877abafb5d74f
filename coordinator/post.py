"""Addresses messages to devices: run, epoch and round of the envelope, and answers to what is no longer current."""

from __future__ import annotations

from dataclasses import replace

from coordinator.effects import Count, Effect, Send
from coordinator.run_spec import RunSpec
from shared.messages import Accept, Body, Cancel, Committed, Envelope, Need, Offer, Progress, Refused
from shared.reasons import RefuseReason


class Post:
    """Numbers the messages of a run, and remembers what each device last had committed."""

    def __init__(self, spec: RunSpec) -> None:
        self._spec = spec
        self._last_id = 0
        self.committed: dict[str, str] = {}

    def send(self, device: str, round_number: int, body: Body) -> Send:
        """A message of a round of this run."""
        spec = self._spec
        return self._numbered(
            device, Envelope(body, task=spec.task, run=spec.run, epoch=spec.epoch, round=round_number)
        )

    def settle_stale(self, device: str, envelope: Envelope, reason: RefuseReason) -> list[Effect]:
        """Closes what a device still believes to be open, in the terms of its own message, so that it can forget it."""
        match envelope.body:
            case Offer(manifest=manifest) if self.committed.get(device) == manifest.digest:
                return [self._numbered(device, replace(envelope, body=Committed(manifest.digest)))]
            case Offer(manifest=manifest):
                answer: Body = Refused(manifest.digest, reason, "the round is over for this device")
            case Accept() | Progress() | Need():
                answer = Cancel(reason)
            case _:
                return []
        return [self._numbered(device, replace(envelope, body=answer)), Count(device, "late", reason)]

    def _numbered(self, device: str, envelope: Envelope) -> Send:
        self._last_id += 1
        return Send(device, replace(envelope, id=self._last_id))
