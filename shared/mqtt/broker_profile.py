"""Limits of hosted brokers, and the pace of a connection that keeps them: the setting `broker_profile`.

A hosted broker lets one connection publish and subscribe less than a broker of your own does. The figures below are the
documented quotas of November 2026, where no other date is given. "KB" counts as 1,000 bytes, the smaller reading.

AWS IoT Core (https://docs.aws.amazon.com/general/latest/gr/iot-core.html, message broker): payload, publishes, throughput,
unacknowledged publishes and subscriptions of a connection, connects of a client id. The limits of filters and topics are also
those that the AWS SDK checks (mqtt5.ClientExtendedValidationAndFlowControl). Not confirmed: 5,000 retained messages an account
(adjustable).

Azure Event Grid (https://learn.microsoft.com/azure/event-grid/quotas-limits and .../mqtt-retain): message and retained size,
retained messages of a throughput unit, publishes, bandwidth, and unacknowledged bytes and messages of a session. Confirmed in
the edition of November 2023 only: segments and length of a topic, filters of a SUBSCRIBE, subscriptions and SUBSCRIBE requests
of a session. Maximum packet: mqtt-support. Not confirmed: 128 bytes of a client id.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from fedpatch.shared.token_bucket import TokenBucket

NO_PROFILE: Final = "none"

# The broker may discard messages above the rate, and the network can bring messages closer together.
_USED_RATE = 0.9
_BURST = 0.1


@dataclass(frozen=True, kw_only=True)
class BrokerProfile:
    """Limits of one connection to a broker; without arguments none but those of MQTT and of the link itself.

    Attributes:
        service: Name of the service.
        domain: End of the host names of its brokers.
        tls_only: Whether the service accepts no connection without TLS.
        message_bytes: Size of a message.
        retained_bytes: Size of a retained message.
        retained_messages: Number of retained messages.
        publishes_per_s: Messages a second.
        bytes_per_s: Bytes of messages a second.
        in_flight: Messages that wait for an acknowledgement.
        in_flight_bytes: Bytes of these messages. One message may always be in flight.
        filters_per_subscribe: Topic filters of a SUBSCRIBE or UNSUBSCRIBE.
        subscribes_per_s: SUBSCRIBE and UNSUBSCRIBE packets a second.
        subscriptions: Subscriptions of a connection.
        topic_levels: Levels of a topic.
        topic_bytes: Length of a topic.
        client_id_bytes: Length of a client id.
        connects_per_s: CONNECT packets a second with one client id. No link counts them: each connection of a coordinator's
            start has an id of its own, and a link waits before it reconnects.

    Example:
        >>> PROFILES["azure"].packet_bytes
        64000
    """

    service: str = ""
    domain: str = ""
    tls_only: bool = False
    message_bytes: int = 268_435_455
    retained_bytes: int = 268_435_455
    retained_messages: float = math.inf
    publishes_per_s: float = math.inf
    bytes_per_s: float = math.inf
    in_flight: int = 65_535
    in_flight_bytes: int = 268_435_455
    filters_per_subscribe: int = 65_535
    subscribes_per_s: float = math.inf
    subscriptions: int = 65_535
    topic_levels: int = 65_535
    topic_bytes: int = 65_535
    client_id_bytes: int = 65_535
    connects_per_s: float = math.inf

    @property
    def packet_bytes(self) -> int:
        """Size of the largest packet that passes whether it is retained or not."""
        return min(self.message_bytes, self.retained_bytes, self.in_flight_bytes)


UNLIMITED: Final = BrokerProfile()

PROFILES: Final[dict[str, BrokerProfile]] = {
    "aws": BrokerProfile(
        service="AWS IoT Core",
        domain=".amazonaws.com",
        tls_only=True,
        message_bytes=128_000,
        retained_bytes=128_000,
        retained_messages=5_000,
        publishes_per_s=100,
        bytes_per_s=512 * 1024,
        in_flight=100,
        filters_per_subscribe=8,
        subscriptions=50,
        topic_levels=8,
        topic_bytes=256,
        client_id_bytes=128,
        connects_per_s=1,
    ),
    "azure": BrokerProfile(
        service="Azure Event Grid",
        domain=".eventgrid.azure.net",
        tls_only=True,
        message_bytes=512_000,
        retained_bytes=64_000,
        retained_messages=10_000,
        publishes_per_s=1_000,
        bytes_per_s=1_000_000,
        in_flight=1_000,
        in_flight_bytes=64_000,
        filters_per_subscribe=10,
        subscribes_per_s=5,
        subscriptions=50,
        topic_levels=8,
        topic_bytes=256,
        client_id_bytes=128,
    ),
}


def fitting_profile(host: str) -> str:
    """Return the name of the profile of a hosted broker, by its host name; "" for any other broker.

    Example:
        >>> fitting_profile("a1-ats.iot.eu-west-1.amazonaws.com")
        'aws'
    """
    return next((name for name, profile in PROFILES.items() if host.endswith(profile.domain)), "")


def send_rate(limit_per_s: float, burst: float) -> TokenBucket:
    """Return a full bucket from which at most `limit_per_s` is spent within any second.

    It gains `limit_per_s - burst` a second, so that a full bucket plus the gain of one second is the limit. A small burst
    spreads the messages over the second.

    Args:
        limit_per_s: Most tokens within a second; infinite: no limit.
        burst: Most tokens at once, below the limit.
    """
    if limit_per_s == math.inf:
        return TokenBucket(1.0, math.inf, math.inf)
    return TokenBucket(limit_per_s - burst, burst, burst)


class LinkRates:
    """The rates of one link under a profile: messages, bytes and SUBSCRIBE packets a second."""

    def __init__(self, profile: BrokerProfile) -> None:
        self._messages = send_rate(_USED_RATE * profile.publishes_per_s, _BURST * profile.publishes_per_s)
        # Bytes above the rate are delayed and not discarded, so the whole rate is used.
        self._bytes = send_rate(profile.bytes_per_s, profile.packet_bytes)
        self._subscribes = send_rate(profile.subscribes_per_s, 1)

    def publish_wait_s(self, packet_bytes: int, now: float) -> float:
        """Return the seconds until a message of `packet_bytes` may be sent."""
        return max(self._messages.wait_s(1, now), self._bytes.wait_s(packet_bytes, now))

    def published(self, packet_bytes: int, now: float) -> None:
        """Record that a message of `packet_bytes` is sent."""
        self._messages.owe(1, now)
        self._bytes.owe(packet_bytes, now)

    def subscribe_wait_s(self, now: float) -> float:
        """Return the seconds until a SUBSCRIBE may be sent."""
        return self._subscribes.wait_s(1, now)

    def subscribed(self, now: float) -> None:
        """Record that a SUBSCRIBE is sent."""
        self._subscribes.owe(1, now)
