"""When the status of a run is published: a changed status at most once a second, and each status again after five seconds."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace

from msgspec import UNSET

from fedpatch.coordinator.observability.status_message import EMPTY_STATUS, MAX_TEXT, StatusMessage, timeless
from fedpatch.coordinator.rounds.run_spec import RunSpec
from fedpatch.shared.errors import BrokerError
from fedpatch.shared.mqtt.events import Link
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.codec import encode
from fedpatch.shared.wire.messages import Envelope

LEAST_S = 1.0
"""Shortest time between two messages."""

REPEAT_S = 5.0
"""An unchanged status is published again after this time, for new watchers. A busy connection delays no status longer."""

_PROOF_S = 5.0
_MAX_STRIKES = 3

_log = logging.getLogger("fedpatch.coordinator")


class StatusPublisher:
    """Publishes a changed status at most once a second, with QoS 0. Messages of rounds come first.

    Some brokers close the connection when a client publishes to a topic that it may not write. If three connections end
    within seconds of their first status, the publisher stops for the rest of the run.
    """

    def __init__(self, link: Link, fleet: str, spec: RunSpec) -> None:
        self._link = link
        self._topic = topics.run_status(fleet)
        self._about = Envelope(body=EMPTY_STATUS, task=spec.task, run=spec.run, epoch=spec.epoch)
        self._connected = True
        self._last, self._round = EMPTY_STATUS, 0
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

    def publish_silence(self, words: str) -> None:
        """Publish the last status again with the stores that are silent. Called in another thread: the run's one waits.

        Args:
            words: The stores in words; "" when they answer again.
        """
        if not self._connected or self._strikes >= _MAX_STRIKES:
            return
        status = replace(self._last, silent_stores=words[:MAX_TEXT] or UNSET)
        with suppress(BrokerError):
            self._link.publish(self._topic, encode(replace(self._about, body=status, round=self._round)), qos=0)

    def publish(self, message: StatusMessage, now: float) -> None:
        """Publish `message` if a status is due; the status of a stopped run is always due."""
        if not self._connected or self._strikes >= _MAX_STRIKES:
            return
        status, stopped = message.status, bool(message.status.stopped)
        if not stopped and (
            now < self._compared_at + LEAST_S or (now < self._last_at + REPEAT_S and not self._link.idle)
        ):
            return
        self._compared_at = now
        if not stopped and now < self._last_at + REPEAT_S and timeless(status) == timeless(self._last):
            return
        try:
            self._link.publish(self._topic, encode(replace(self._about, body=status, round=message.round)), qos=0)
        except BrokerError as error:
            _log.debug("status not published: %s", error)
        if self._first_at is None:
            self._first_at = now
        elif now >= self._first_at + _PROOF_S:
            self._strikes = 0
        self._last, self._last_at, self._round = status, now, message.round
