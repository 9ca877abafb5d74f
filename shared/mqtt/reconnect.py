"""When a link tries to connect, and in which version of MQTT: one attempt after the other, with pauses that spread a fleet.

MQTT 5 comes first. A broker that refuses it, or does not answer, is asked in 3.1.1 at once, and so on in turn until one
version is answered; that one is kept.
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
    """One attempt to connect and, if it succeeds, that connection. Belongs to the link's thread."""

    protocol: ProtocolVersion
    answer_by: float = field(default_factory=lambda: time.monotonic() + CONNACK_TIMEOUT_S)
    fault: ConnectionFault | None = None
    connected: Connected | None = None
    window: int = MAX_IN_FLIGHT
    subscribing: dict[int, tuple[str, ...]] = field(default_factory=dict)
    drain_until: float | None = None
    goodbye_until: float | None = None
    socket: object = None

    def fail(self, fault: ConnectionFault) -> None:
        """Keep the first fault: what follows is its consequence."""
        self.fault = self.fault or fault


class Reconnector:
    """Makes attempts until the link is stopped. `make` makes one and returns when that connection is over.

    While `patient` is set, from any thread, the pause before each attempt is the longest that is allowed.
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
        """The body of the link's thread."""
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
            # Drawn anew each time, so that a fleet which lost its broker at one moment comes back spread out.
            pause_s = min(self._longest_s, random.uniform(self._shortest_s, 3 * pause_s))
            self._pause(self._longest_s if self.patient else pause_s, fault)

    def _pause(self, pause_s: float, fault: ConnectionFault) -> None:
        """Wait for that long or, where only the clock is wrong, until it has been set."""
        if fault.good_from is None:
            self._session.stopping.wait(pause_s)
            return
        until = time.monotonic() + pause_s
        while time.time() < fault.good_from and time.monotonic() < until:
            if self._session.stopping.wait(_CLOCK_EVERY_S):
                return

    def _change_protocol(self, attempt: ConnectionAttempt, fault: ConnectionFault) -> bool:
        """Come back at once, with another version or without a retained will, if that may be why it did not accept."""
        if fault.retains_nothing:
            return True
        maybe_version = fault.wrong_version or (fault.unanswered and not self._agreed)
        if attempt.connected is not None or not maybe_version:
            return False
        self.protocol = _OTHER[self.protocol]
        return True
