"""The envelopes of a run, with increasing ids."""

from __future__ import annotations

from dataclasses import replace

from fedpatch.coordinator.buffered.carried_work import CarriedWork
from fedpatch.coordinator.rounds.run_effects import SendMessage
from fedpatch.coordinator.rounds.run_spec import RunSpec
from fedpatch.shared.wire.messages import Body, Envelope


class EnvelopeFactory:
    """Makes the envelopes of a run with increasing ids.

    Args:
        spec: The terms of the run.

    Attributes:
        committed: Digest of the last committed update by device.
    """

    def __init__(self, spec: RunSpec) -> None:
        self._spec = spec
        self._last_id = 0
        self.committed: dict[str, str] = {}

    def send(self, device: str, round_number: int, body: Body) -> SendMessage:
        """Return the effect that sends a message of a round of this run.

        Args:
            device: The receiver.
        """
        spec = self._spec
        self._last_id += 1
        return SendMessage(device, Envelope(body, self._last_id, spec.task, spec.run, spec.epoch, round_number))

    def answer_carried(self, device: str, work: CarriedWork, body: Body) -> SendMessage:
        """Return the effect that sends a message about carried work, in its epoch and round.

        Args:
            device: The receiver.
        """
        message = self.send(device, work.round, body)
        return replace(message, envelope=replace(message.envelope, epoch=work.epoch))

    def repeat(self, device: str, envelope: Envelope) -> SendMessage:
        """Return the effect that sends an envelope with its own run, epoch and round, and a new id.

        Args:
            device: The receiver.
        """
        self._last_id += 1
        return SendMessage(device, replace(envelope, id=self._last_id))
