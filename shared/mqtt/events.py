"""What a link tells its owner, and what its owner may ask of it; the same over MQTT and in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

ProtocolVersion = Literal["5", "3.1.1"]


@dataclass(frozen=True)
class Connected:
    """The broker took us; subscriptions are made again. `max_packet_bytes` is None where the broker states no limit.

    `broker_certificate_ends` is in unix seconds, None without TLS.
    """

    protocol: ProtocolVersion
    max_packet_bytes: int | None
    retain_available: bool
    session_present: bool
    broker_certificate_ends: float | None = None


@dataclass(frozen=True)
class Disconnected:
    """A connection ended or could not be made; `reason` is a sentence for people. The link goes on trying."""

    reason: str


@dataclass(frozen=True)
class Received:
    """A message on a topic that we subscribed to; `retained` when the broker had kept it."""

    topic: str
    payload: bytes = field(repr=False)
    retained: bool


LinkEvent = Connected | Disconnected | Received


class Link(Protocol):
    """A way to the other side; events come through a callable given at construction."""

    def start(self) -> None:
        """Begin to connect, and go on until `stop`."""

    def publish(self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False) -> bool:
        """Queue a message; False when there is no room. Never blocks."""

    def subscribe(self, *filters: str) -> None:
        """Want messages on `filters`, now and after every reconnect."""

    def unsubscribe(self, *filters: str) -> None:
        """Want no more messages on `filters`."""

    @property
    def idle(self) -> bool:
        """Nothing that was published waits to be acknowledged by the broker."""

    def stop(self) -> None:
        """Send what is queued, leave without a last will, and give no more events."""
