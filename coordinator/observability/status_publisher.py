"""Tells watchers how the run stands, in as far as that is no burden: nobody waits for it, and nothing depends on it."""

from __future__ import annotations

import logging
from dataclasses import replace

from fedpatch.coordinator.observability.snapshot import Snapshot, status_of
from fedpatch.coordinator.rounds.run_spec import RunSpec
from fedpatch.shared.errors import BrokerError
from fedpatch.shared.mqtt.events import Link
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.codec import encode
from fedpatch.shared.wire.messages import Envelope
from fedpatch.shared.wire.run_status import RunStatus

LEAST_S = 1.0
"""Between two messages."""

REPEAT_S = 5.0
"""After which the same is told again, for whoever has just come; and how long work may keep the link for itself."""

_PROOF_S = 5.0
_MAX_STRIKES = 3

_log = logging.getLogger("fedpatch.coordinator")


class StatusPublisher:
    """One message a second at most, where something has changed; QoS 0, so the broker owes no answer.

    Some brokers close the connection at a topic that their access rules do not know. One that does so to the first message
    of three connections is told no more of them.
    """

    def __init__(self, link: Link, fleet: str, spec: RunSpec) -> None:
        self._link = link
        self._topic = topics.run_status(fleet)
        self._about = Envelope(body=_NOTHING, task=spec.task, run=spec.run, epoch=spec.epoch)
        self._connected = True
        self._told = _NOTHING
        self._looked_at = self._told_at = float("-inf")
        self._first_at: float | None = None
        self._strikes = 0

    def connected(self) -> None:
        """The broker is there; watchers may have missed what was."""
        self._connected = True
        self._told_at = float("-inf")

    def disconnected(self, now: float) -> None:
        """Whatever would be said now is not said at all."""
        self._connected = False
        first_at, self._first_at = self._first_at, None
        if first_at is not None and now < first_at + _PROOF_S:
            self._strikes += 1
            if self._strikes == _MAX_STRIKES:
                _log.warning(
                    "the broker ends the connection whenever %s is written, so nobody can watch this run; allow the "
                    "coordinator to write it (`fedpatch broker acl` prints the rules)",
                    self._topic,
                )

    def tell(self, snapshot: Snapshot, stopped: str, now: float) -> None:
        """Publishes `snapshot`, if it is time to; that the run has `stopped` at once."""
        if not self._connected or self._strikes >= _MAX_STRIKES:
            return
        if not stopped and (
            now < self._looked_at + LEAST_S or (now < self._told_at + REPEAT_S and not self._link.idle)
        ):
            return
        self._looked_at = now
        status = status_of(snapshot, stopped)
        if not stopped and now < self._told_at + REPEAT_S and _timeless(status) == _timeless(self._told):
            return
        try:
            self._link.publish(self._topic, encode(replace(self._about, body=status, round=snapshot.round)), qos=0)
        except BrokerError as error:
            _log.debug("watchers are not told: %s", error)
        if self._first_at is None:
            self._first_at = now
        elif now >= self._first_at + _PROOF_S:
            self._strikes = 0
        self._told, self._told_at = status, now


def _timeless(status: RunStatus) -> RunStatus:
    """Without what changes by the mere passing of time."""
    return replace(status, eta_s=None, elapsed_s=0.0, pause_s=0.0)


_NOTHING = RunStatus("", "", 0, None, "", False, (), (), 0, 0, (), 0, 0, None, None, 0.0, 0.0, (), (), 0, 0)
