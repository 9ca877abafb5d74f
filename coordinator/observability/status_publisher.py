"""Publishes the status of a run to watchers. Nothing depends on these messages, so the messages of the rounds come first."""

from __future__ import annotations

import logging
from dataclasses import replace

from fedpatch.coordinator.observability.status_message import EMPTY_STATUS, StatusMessage
from fedpatch.coordinator.rounds.run_spec import RunSpec
from fedpatch.shared.errors import BrokerError
from fedpatch.shared.mqtt.events import Link
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.codec import encode
from fedpatch.shared.wire.messages import Envelope
from fedpatch.shared.wire.run_status import RunStatus

LEAST_S = 1.0
"""Shortest time between two messages."""

REPEAT_S = 5.0
"""An unchanged status is published again after this time, for new watchers. A busy connection delays a status no longer."""

_PROOF_S = 5.0
_MAX_STRIKES = 3

_log = logging.getLogger("fedpatch.coordinator")


class StatusPublisher:
    """Publishes a changed status at most once a second, with QoS 0.

    Some brokers close the connection when a client publishes to a topic that it may not write. If three connections end
    within seconds of their first status, the publisher stops for the rest of the run.
    """

    def __init__(self, link: Link, fleet: str, spec: RunSpec) -> None:
        self._link = link
        self._topic = topics.run_status(fleet)
        self._about = Envelope(body=EMPTY_STATUS, task=spec.task, run=spec.run, epoch=spec.epoch)
        self._connected = True
        self._last = EMPTY_STATUS
        self._compared_at = self._last_at = float("-inf")
        self._first_at: float | None = None
        self._strikes = 0

    def connected(self) -> None:
        """The connection is back: publish the next status even if it has not changed."""
        self._connected = True
        self._last_at = float("-inf")

    def disconnected(self, now: float) -> None:
        """The connection is lost: publish nothing until `connected`."""
        self._connected = False
        first_at, self._first_at = self._first_at, None
        if first_at is not None and now < first_at + _PROOF_S:
            self._strikes += 1
            if self._strikes == _MAX_STRIKES:
                _log.warning(
                    "the broker ends the connection whenever %s is written, so no one can watch this run; allow the "
                    "coordinator to write it (`fedpatch broker acl` prints the rules)",
                    self._topic,
                )

    def publish(self, message: StatusMessage, now: float) -> None:
        """Publish `message` if a status is due; that of a run that has stopped is always due."""
        if not self._connected or self._strikes >= _MAX_STRIKES:
            return
        status, stopped = message.status, bool(message.status.stopped)
        if not stopped and (
            now < self._compared_at + LEAST_S or (now < self._last_at + REPEAT_S and not self._link.idle)
        ):
            return
        self._compared_at = now
        if not stopped and now < self._last_at + REPEAT_S and _timeless(status) == _timeless(self._last):
            return
        try:
            self._link.publish(self._topic, encode(replace(self._about, body=status, round=message.round)), qos=0)
        except BrokerError as error:
            _log.debug("status not published: %s", error)
        if self._first_at is None:
            self._first_at = now
        elif now >= self._first_at + _PROOF_S:
            self._strikes = 0
        self._last, self._last_at = status, now


def _timeless(status: RunStatus) -> RunStatus:
    """The status without the fields that change with time alone."""
    return replace(status, eta_s=None, elapsed_s=0.0, pause_s=0.0)
