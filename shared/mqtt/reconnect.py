"""Reconnecting: one attempt after the other, with random pauses so that a fleet does not reconnect at one moment.

The first attempt is in MQTT 5. After a refusal of the version, or no answer, the next attempt is in the other version (3.1.1)
at once, and so on in turn. The version in which the broker answers is kept.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from fedpatch.shared.mqtt.connection_errors import ConnectionFault, lost_silently
from fedpatch.shared.mqtt.events import Connected, Disconnected, ProtocolVersion
from fedpatch.shared.mqtt.outbox import MAX_IN_FLIGHT
from fedpatch.shared.mqtt.session import Session

CONNACK_TIMEOUT_S = 10.0

_CLOCK_EVERY_S = 1.0

_OTHER: dict[ProtocolVersion, ProtocolVersion] = {"5": "3.1.1", "3.1.1": "5"}


@dataclass
class ConnectionAttempt:
    """State of one attempt to connect and, if it succeeds, of that connection. It belongs to the link's thread."""

    protocol: ProtocolVersion
    answer_by: float = field(default_factory=lambda: time.monotonic() + CONNACK_TIMEOUT_S)
    fault: ConnectionFault | None = None
    connected: Connected | None = None
    window: int = MAX_IN_FLIGHT
    # Filters that the broker has not acknowledged yet, and the latest time of that.
    subscribing: dict[int, tuple[tuple[str, ...], float]] = field(default_factory=dict)
    drain_until: float | None = None
    goodbye_until: float | None = None
    socket: object = None

    def is_deaf(self, now: float) -> bool:
        """Return whether the acknowledgement of a subscription is overdue: nobody knows whether the broker has it."""
        return any(now >= due for _, due in self.subscribing.values())

    def fail(self, fault: ConnectionFault) -> None:
        """Record a fault. Only the first one is kept, because later ones are its consequences."""
        self.fault = self.fault or fault


class Reconnector:
    """Loop of attempts to connect, until the link is stopped.

    While `patient` is True, which any thread may set, each pause is the longest one.

    Args:
        session: The link's session.
        delays_s: Shortest and longest pause.
        make: Makes one attempt, and returns when that connection is over.
        events: Called with each failed attempt or ended connection.
    """

    def __init__(
        self,
        session: Session,
        delays_s: tuple[float, float],
        make: Callable[[ConnectionAttempt], None],
        events: Callable[[Disconnected], None],
    ) -> None:
        self.protocol: ProtocolVersion = "5"
        self.patient = False
        self._agreed = False
        self._session = session
        self._shortest_s, self._longest_s = delays_s
        self._make = make
        self._events = events

    def run(self) -> None:
        """Make attempts until the session is stopping. This is the body of the link's thread."""
        pause_s = self._shortest_s
        changed = False
        while not self._session.stopping.is_set():
            attempt = ConnectionAttempt(self.protocol)
            began = time.monotonic()
            self._make(attempt)
            if self._session.stopping.is_set():
                return
            fault = attempt.fault or lost_silently(self._session.broker)
            self._agreed = self._agreed or attempt.connected is not None
            changed = not changed and self._change_protocol(attempt, fault)
            if changed:
                continue
            self._session.failed(fault)
            self._events(Disconnected(fault.reason))
            if fault.renewal:
                continue
            if attempt.connected is not None and time.monotonic() - began > pause_s:
                pause_s = self._shortest_s
            # Decorrelated jitter: a fleet that lost its broker at one moment reconnects spread over time.
            pause_s = min(self._longest_s, random.uniform(self._shortest_s, 3 * pause_s))
            self._pause(self._longest_s if self.patient else pause_s, fault)

    def _pause(self, pause_s: float, fault: ConnectionFault) -> None:
        """Wait for `pause_s`, or less if only this machine's clock is wrong and is corrected earlier."""
        if fault.good_from is None:
            self._session.stopping.wait(pause_s)
            return
        until = time.monotonic() + pause_s
        while time.time() < fault.good_from and time.monotonic() < until:
            if self._session.stopping.wait(_CLOCK_EVERY_S):
                return

    def _change_protocol(self, attempt: ConnectionAttempt, fault: ConnectionFault) -> bool:
        """Return whether to retry at once, in the other version or without a retained will, because either may be the cause."""
        if fault.retains_nothing:
            return True
        maybe_version = fault.wrong_version or (fault.unanswered and not self._agreed)
        if attempt.connected is not None or not maybe_version:
            return False
        self.protocol = _OTHER[self.protocol]
        return True
