"""Messages and chunks of a job, from the device to its coordinator."""

from __future__ import annotations

import logging
from dataclasses import replace

from fedpatch.device_agent.job.job_effects import JobKey, SendAfterSave, SendMessage
from fedpatch.device_agent.policy.withheld_reasons import without_reason
from fedpatch.device_agent.runtime.presence import AgentLink, Identity
from fedpatch.device_agent.runtime.traffic_count import TrafficCount
from fedpatch.device_agent.state.history import DECLINED, DeviceHistory
from fedpatch.device_agent.state.masking_file import MaskingFile
from fedpatch.device_agent.state.update_spool import UpdateSpool
from fedpatch.shared.app.logging import fields
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.chunks import Chunk, encode_chunk
from fedpatch.shared.wire.codec import encode
from fedpatch.shared.wire.messages import Decline, Envelope, Offer

_log = logging.getLogger("fedpatch.agent")


class MessageSender:
    """Publishes the messages and chunks of a job.

    Args:
        identity: Names of this agent.
        link: Connection to the broker.
        spool: Files of the update that an offer is about.
        masking: File of the masked round that a message may depend on.
        history: The history for the owner.
        traffic: Bytes of this process, for the history.
        shares_reasons: Whether declines and failures tell the coordinator their reason.
    """

    def __init__(
        self,
        identity: Identity,
        link: AgentLink,
        spool: UpdateSpool,
        masking: MaskingFile,
        history: DeviceHistory,
        traffic: TrafficCount,
        *,
        shares_reasons: bool,
    ) -> None:
        self._identity = identity
        self._link = link
        self._spool = spool
        self._masking = masking
        self._history = history
        self._traffic = traffic
        self._shares_reasons = shares_reasons

    def send(self, effect: SendMessage) -> None:
        """Publish a message; note a decline in the history, and check the file of an update before its offer."""
        envelope = effect.envelope
        body = envelope.body
        if isinstance(body, Decline):
            _log.info("declined: %s %s", body.reason, body.detail, extra=fields(reason=body.reason))
            key = JobKey(envelope.run, envelope.epoch, envelope.round, envelope.task)
            self._history.note(DECLINED, f"{body.reason}: {body.detail}".removesuffix(": "), self._traffic.total, key)
        if isinstance(body, Offer):
            self._spool.check(body.manifest)  # it may have waited for hours, and cards wear out
        if not self._shares_reasons:
            envelope = replace(envelope, body=without_reason(body))
        self._publish(envelope)

    def send_after_save(self, effect: SendAfterSave) -> None:
        """Save the state of the masked round, then publish the message that depends on it."""
        self._masking.save(effect.state)
        self._publish(effect.envelope)

    def send_chunk(self, chunk: Chunk) -> None:
        """Publish a chunk of the update."""
        topic = topics.update_chunk(self._identity.fleet, self._identity.device, chunk.digest, chunk.index)
        self._link.publish(topic, encode_chunk(chunk))

    def _publish(self, envelope: Envelope) -> None:
        self._link.publish(topics.up(self._identity.fleet, self._identity.device), encode(envelope))
