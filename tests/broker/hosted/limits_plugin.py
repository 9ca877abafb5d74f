"""Plugin of amqtt that enforces the limits of a hosted broker: it reports each violation and closes the connection.

It counts the messages and bytes of each second. After a stall of this process, messages arrive together that were sent apart,
so the limit of a second grows by the time for which the event loop stalled.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from dataclasses import dataclass, field
from pathlib import Path

from amqtt.broker import BrokerContext
from amqtt.mqtt.packet import MQTTPacket
from amqtt.mqtt.puback import PubackPacket
from amqtt.mqtt.publish import PublishPacket
from amqtt.mqtt.subscribe import SubscribePacket
from amqtt.mqtt.unsubscribe import UnsubscribePacket
from amqtt.plugins.base import BasePlugin
from amqtt.session import Session

from fedpatch.shared.mqtt.broker_profile import PROFILES

_TICK_S = 0.02


@dataclass
class Second:
    """The amounts of the last second."""

    amounts: deque[tuple[float, float]] = field(default_factory=deque)

    def add(self, amount: float, now: float) -> float:
        """Add an amount, and return the sum of the last second."""
        self.amounts.append((now, amount))
        while self.amounts[0][0] <= now - 1.0:
            self.amounts.popleft()
        return sum(one for _, one in self.amounts)


@dataclass
class Client:
    """The counters of one client's connection."""

    messages: Second = field(default_factory=Second)
    bytes: Second = field(default_factory=Second)
    subscribes: Second = field(default_factory=Second)
    filters: set[str] = field(default_factory=set)
    in_flight: dict[int, int] = field(default_factory=dict)


class Limits(BasePlugin[BrokerContext]):  # type: ignore[misc] # amqtt has no types
    """Enforces the profile named in its settings, and appends a line to the file `report` for each violation."""

    @dataclass
    class Config:
        """Settings of the plugin."""

        profile: str
        report: str

    def __init__(self, context: BrokerContext) -> None:
        super().__init__(context)
        self._limits = PROFILES[self.config.profile]
        self._report = Path(self.config.report)
        self._clients: dict[str, Client] = {}
        self._connects: defaultdict[str, Second] = defaultdict(Second)
        self._closing: list[asyncio.Task[None]] = []
        self._stalls = Second()
        self._ticked = time.monotonic()
        self._watch = asyncio.get_running_loop().create_task(self._watch_ticks())

    async def close(self) -> None:
        self._watch.cancel()

    async def on_broker_client_connected(self, *, client_id: str, client_session: Session) -> None:
        self._clients[client_id] = Client()
        self._require(client_session, "client id", len(client_id.encode()), self._limits.client_id_bytes)
        connects = self._connects[client_id].add(1, time.monotonic())
        self._require(client_session, "connects a second", connects, self._limits.connects_per_s)

    async def on_mqtt_packet_sent(self, *, packet: MQTTPacket, session: Session | None = None) -> None:
        if session is not None and isinstance(packet, PubackPacket):
            self._client(session).in_flight.pop(packet.packet_id, None)

    async def on_mqtt_packet_received(self, *, packet: MQTTPacket, session: Session | None = None) -> None:
        if session is None:
            return
        if isinstance(packet, PublishPacket):
            self._published(packet, session)
        elif isinstance(packet, SubscribePacket):
            self._subscribed(session, [topic_filter for topic_filter, _ in packet.payload.topics])
        elif isinstance(packet, UnsubscribePacket):
            self._require(session, "filters", len(packet.payload.topics), self._limits.filters_per_subscribe)
            self._client(session).filters.difference_update(packet.payload.topics)

    def _published(self, packet: PublishPacket, session: Session) -> None:
        client, limits, now, size = self._client(session), self._limits, time.monotonic(), len(packet.data or b"")
        self._require_topic(session, packet.topic_name)
        self._require(session, "message bytes", size, limits.message_bytes)
        self._require(session, "retained bytes", size if packet.retain_flag else 0, limits.retained_bytes)
        seconds = self._seconds(now)
        self._require(session, "messages a second", client.messages.add(1, now), limits.publishes_per_s * seconds)
        self._require(session, "bytes a second", client.bytes.add(size, now), limits.bytes_per_s * seconds)
        if packet.qos == 0:
            return
        client.in_flight[packet.packet_id] = size
        self._require(session, "in flight", len(client.in_flight), limits.in_flight)
        if len(client.in_flight) > 1:
            self._require(session, "bytes in flight", sum(client.in_flight.values()), limits.in_flight_bytes)

    def _subscribed(self, session: Session, filters: list[str]) -> None:
        client = self._client(session)
        client.filters.update(filters)
        for topic_filter in filters:
            self._require_topic(session, topic_filter)
        self._require(session, "filters", len(filters), self._limits.filters_per_subscribe)
        self._require(session, "subscriptions", len(client.filters), self._limits.subscriptions)
        now = time.monotonic()
        count = client.subscribes.add(1, now)
        self._require(session, "subscribes a second", count, self._limits.subscribes_per_s * self._seconds(now))

    def _require_topic(self, session: Session, topic: str) -> None:
        self._require(session, "topic levels", topic.count("/") + 1, self._limits.topic_levels)
        self._require(session, "topic bytes", len(topic.encode()), self._limits.topic_bytes)

    def _require(self, session: Session, what: str, found: float, limit: float) -> None:
        if found <= limit:
            return
        with self._report.open("a") as report:
            report.write(f"{what}: {found:g} instead of {limit:g}, {session.client_id}\n")
        _, handler = self.context._broker_instance.sessions[session.client_id]
        if handler.writer is not None:
            self._closing.append(asyncio.get_running_loop().create_task(handler.writer.close()))

    def _client(self, session: Session) -> Client:
        return self._clients.setdefault(session.client_id, Client())

    def _seconds(self, now: float) -> float:
        """Return the time span in seconds in which the messages of the last second were sent."""
        return 1.0 + self._stalls.add(0.0, now) + max(0.0, now - self._ticked - _TICK_S)

    async def _watch_ticks(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            now = time.monotonic()
            self._stalls.add(max(0.0, now - self._ticked - _TICK_S), now)
            self._ticked = now
