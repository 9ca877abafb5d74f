"""A broker: sessions with a bounded queue, retained messages, last wills, QoS 1; it may be killed and lose all that."""

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
    """Of a topic; each one is another, even with the same words."""

    topic: str
    payload: bytes
    retained: bool = False


@dataclass
class Session:
    """Of one client id: what it subscribed to, and what it has not acknowledged. Without a wire, it is away."""

    filters: dict[str, None] = field(default_factory=dict)
    queue: deque[Message] = field(default_factory=deque)
    wire: Wire | None = None
    link: SimulatedLink | None = None
    will: Message | None = None
    lasts: bool = False


class Broker:
    """Delivers to sessions, in order. `kill` loses queues and subscriptions; `forgets`: retained messages too."""

    def __init__(self, rng: random.Random, weather: Weather) -> None:
        self.up = True
        self.weather = weather
        self.retained: dict[str, bytes] = {}
        self.sessions: dict[str, Session] = {}
        # Asked of each message whether it is lost here and now.
        self.swallows: Callable[[str, bytes], bool] = lambda topic, payload: False
        self._rng = rng

    def kill(self, forgets: bool) -> None:
        """Clients only notice that the connection is gone; wills die with it."""
        self.up = False
        wires = [one.wire for one in self.sessions.values() if one.wire is not None]
        self.sessions.clear()
        if forgets:
            self.retained.clear()
        for wire in wires:
            wire.close_broker()

    def accept(self, link: SimulatedLink, wire: Wire) -> None:
        """A client connects; it takes the place of one with its id, whose will is then published."""
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
        """What is retained comes at once, and again for a filter that was there already."""
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
        """Presence is spared: a broker that drops it live still has it for a subscriber, which is another matter."""
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
    """Whether a filter wants a topic."""
    return topic_pattern((pattern,)).fullmatch(topic) is not None
