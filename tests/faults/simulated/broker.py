"""A broker: sessions with a bounded queue, retained messages, last wills, QoS 1; a kill may lose all of these."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from fedpatch.shared.mqtt.outbox import topic_pattern
from tests.faults.simulated.wire import Weather, Wire

if TYPE_CHECKING:
    from tests.faults.simulated.link import SimulatedLink

MAX_QUEUED = 200


@dataclass(frozen=True, eq=False)
class Message:
    """A message on a topic. Messages with equal content are still different messages."""

    topic: str
    payload: bytes
    retained: bool = False


@dataclass
class Session:
    """The session of a client id: its filters and unacknowledged messages. Without a wire the client is not connected."""

    filters: dict[str, None] = field(default_factory=dict)
    queue: deque[Message] = field(default_factory=deque)
    wire: Wire | None = None
    link: SimulatedLink | None = None
    will: Message | None = None
    lasts: bool = False


class Broker:
    """Delivers messages to sessions in order. `kill` loses queues and subscriptions, with `forgets` also retained messages."""

    def __init__(self, rng: random.Random, weather: Weather) -> None:
        self.up = True
        self.weather = weather
        self.retained: dict[str, bytes] = {}
        self.sessions: dict[str, Session] = {}
        # Returns for each message whether the broker loses it.
        self.swallows: Callable[[str, bytes], bool] = lambda topic, payload: False
        self._rng = rng

    def kill(self, forgets: bool) -> None:
        """End without a notice: clients only lose their connections, and no will is published."""
        self.up = False
        wires = [one.wire for one in self.sessions.values() if one.wire is not None]
        self.sessions.clear()
        if forgets:
            self.retained.clear()
        for wire in wires:
            wire.close_broker()

    def accept(self, link: SimulatedLink, wire: Wire) -> None:
        """Connect a client; it replaces a client with the same id, whose will is then published."""
        if not self.up:
            wire.close_broker()
            return
        session = self.sessions.get(link.client_id)
        if session is not None and session.wire is not None:
            former = session.wire
            self._leave(session)
            former.broker_lost = lambda: None
            former.close_broker()
        present = session is not None and session.lasts and not link.clean_start
        if session is None or not present:
            session = self.sessions[link.client_id] = Session(lasts=not link.clean_start)
        session.wire, session.link, session.will = wire, link, Message(*link.will) if link.will else None
        wire.broker_lost = partial(self._gone, session, wire)
        wire.down(partial(link.on_connack, wire, present))
        for message in list(session.queue):
            self._send(session, message)

    def subscribe(self, link: SimulatedLink, filters: tuple[str, ...]) -> None:
        """Add filters; retained messages are delivered at once, and again for a filter that the session already has."""
        session = self._session(link)
        if session is not None:
            session.filters.update(dict.fromkeys(filters))
            for topic, payload in list(self.retained.items()):
                if any(matches(one, topic) for one in filters):
                    self._enqueue(session, Message(topic, payload, retained=True))

    def unsubscribe(self, link: SimulatedLink, filters: tuple[str, ...]) -> None:
        session = self._session(link)
        for one in filters if session else ():
            session.filters.pop(one, None)  # type: ignore[union-attr]

    def publish(self, topic: str, payload: bytes, *, retain: bool) -> None:
        if self.swallows(topic, payload):
            return
        if retain:
            self.retained.pop(topic, None)
            if payload:
                self.retained[topic] = payload
        for session in list(self.sessions.values()):
            if any(matches(one, topic) for one in session.filters):
                self._enqueue(session, Message(topic, payload))

    def goodbye(self, link: SimulatedLink) -> None:
        session = self._session(link)
        if session is not None and session.wire is not None:
            session.will = None
            wire = session.wire
            self._gone(session, wire)
            wire.broker_lost = lambda: None

    def _session(self, link: SimulatedLink) -> Session | None:
        session = self.sessions.get(link.client_id)
        return session if session is not None and session.link is link else None

    def _gone(self, session: Session, wire: Wire) -> None:
        if session.wire is wire:
            self._leave(session)
            if not session.lasts:
                self.sessions = {name: one for name, one in self.sessions.items() if one is not session}

    def _leave(self, session: Session) -> None:
        session.wire = session.link = None
        will, session.will = session.will, None
        if will is not None:
            self.publish(will.topic, will.payload, retain=True)

    def _enqueue(self, session: Session, message: Message) -> None:
        """Queue a message, or drop it at random. Presence is never dropped: a real broker would still retain a dropped one."""
        presence = message.topic.endswith(("/state", "/coord"))
        if not presence and (self._rng.random() < self.weather.loss or len(session.queue) >= MAX_QUEUED):
            return
        for _ in range(1 + (self._rng.random() < self.weather.twice)):
            session.queue.append(message)
            self._send(session, message)

    def _send(self, session: Session, message: Message) -> None:
        if session.wire is not None and session.link is not None:
            session.wire.down(partial(session.link.on_message, session.wire, message, session))


@lru_cache(maxsize=4096)
def matches(pattern: str, topic: str) -> bool:
    """Return whether a filter matches a topic."""
    return topic_pattern((pattern,)).fullmatch(topic) is not None
