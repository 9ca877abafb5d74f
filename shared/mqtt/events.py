"""Events of a link, and `Link`, the interface of a link; it is the same over MQTT and in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

ProtocolVersion = Literal["5", "3.1.1"]


@dataclass(frozen=True)
class Connected:
    """The broker accepted the connection. The link renews all subscriptions.

    Attributes:
        protocol: MQTT version.
        max_packet_bytes: The broker's packet limit; None if it states none.
        retain_available: Whether the broker supports retained messages.
        session_present: Whether the broker had kept the session.
        broker_certificate_ends: Unix time at which the broker's certificate expires; None without TLS.
    """

    protocol: ProtocolVersion
    max_packet_bytes: int | None
    retain_available: bool
    session_present: bool
    broker_certificate_ends: float | None = None


@dataclass(frozen=True)
class Disconnected:
    """A connection ended or an attempt failed; `reason` is a sentence for people. The link continues to reconnect."""

    reason: str


@dataclass(frozen=True)
class Received:
    """A message on a subscribed topic; `retained` if the broker had retained it."""

    topic: str
    payload: bytes = field(repr=False)
    retained: bool


LinkEvent = Connected | Disconnected | Received


class Link(Protocol):
    """Connection to the other side. It passes events to a callable that its constructor takes."""

    def start(self) -> None:
        """Connect, and reconnect until `stop`."""

    def publish(self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False) -> bool:
        """Queue a message, without blocking.

        Args:
            topic: Topic without wildcards.
            qos: 0 or 1.

        Returns:
            False if there is no room.
        """

    def subscribe(self, *filters: str) -> None:
        """Subscribe to `filters`, now and after each reconnect."""

    def unsubscribe(self, *filters: str) -> None:
        """Remove the subscriptions `filters`."""

    def check(self, within_s: float) -> None:
        """Make the connection anew unless the broker acknowledges something within `within_s` seconds."""

    @property
    def idle(self) -> bool:
        """True if the broker has acknowledged every published message."""

    def stop(self) -> None:
        """Send queued messages, disconnect without a last will, and emit no more events."""
