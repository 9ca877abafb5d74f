"""State of a link that outlives a connection: the outbox of messages to send, and the subscriptions.

Both are pure state machines without a socket. A message stays in the outbox until the broker has acknowledged it, so after
a lost connection all unacknowledged messages are sent again, in their order. There is one exception: if a broker closes
the connection at a message, for example a too large one, it would do so each time. So a message that was in flight when a
connection broke is sent alone the next time, and dropped after `MAX_ATTEMPTS` broken connections.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from fedpatch.shared.errors import BrokerError, IllegalTransition
from fedpatch.shared.mqtt.broker_profile import UNLIMITED, BrokerProfile, LinkRates

MAX_IN_FLIGHT = 20
# On a slow line a keepalive must get through between the chunks: 256 KiB in 30 s is 70 kbit/s.
MAX_IN_FLIGHT_BYTES = 256 * 1024
MAX_ATTEMPTS = 3
ACK_S = 60.0
"""Time for an acknowledgement. After it the connection is made anew: a lost PUBACK would block a place in flight for ever, and
with a lost SUBSCRIBE the link would be deaf."""
_SLOWEST_BYTES_S = 2000.0


@dataclass
class QueuedMessage:
    """A message to send; `attempts` counts the connections that broke while it was unacknowledged."""

    topic: str
    payload: bytes = field(repr=False)
    qos: int = 1
    retain: bool = False
    attempts: int = 0

    @property
    def packet_bytes(self) -> int:
        """Size of its PUBLISH packet: fixed header, topic, packet id, empty properties, payload."""
        return 5 + 2 + len(self.topic.encode()) + 2 + 1 + len(self.payload)

    def __str__(self) -> str:
        return f"a message on {self.topic} ({len(self.payload)} bytes)"


class Outbox:
    """Queue of at most `capacity` messages that wait to be sent or acknowledged.

    `delay_s` is the time until the pace of the profile allows the next message, as of the last `take`.
    """

    def __init__(self, capacity: int, profile: BrokerProfile = UNLIMITED, pace: LinkRates | None = None) -> None:
        self.capacity = capacity
        self.delay_s = 0.0
        self._pace = pace or LinkRates(profile)
        self._most = min(MAX_IN_FLIGHT, profile.in_flight)
        self._most_bytes = min(MAX_IN_FLIGHT_BYTES, profile.in_flight_bytes)
        self._waiting: deque[QueuedMessage] = deque()
        self._unacknowledged: dict[int, QueuedMessage] = {}
        # The latest time of each acknowledgement, and of any acknowledgement at all.
        self._due: dict[int, float] = {}
        self._answer_by: float | None = None
        self._in_flight_bytes = 0

    def __len__(self) -> int:
        return len(self._waiting) + len(self._unacknowledged)

    def put(self, message: QueuedMessage) -> bool:
        """Queue `message`. Returns False if there is no room."""
        if len(self) >= self.capacity:
            return False
        self._waiting.append(message)
        return True

    def take(self, window: int, now: float = 0.0) -> QueuedMessage | None:
        """Remove and return the next message to send at `now` (monotonic seconds).

        None if no message waits, too much is in flight already, or the message would exceed the pace of the profile.
        """
        self.delay_s = 0.0
        if not self._waiting:
            return None
        message = self._waiting[0]
        in_flight = len(self._unacknowledged)
        alone = message.attempts > 0 or any(other.attempts > 0 for other in self._unacknowledged.values())
        too_many = in_flight >= (1 if alone else min(window, self._most))
        too_much = in_flight > 0 and self._in_flight_bytes + len(message.payload) > self._most_bytes
        if too_many or too_much:
            return None
        self.delay_s = self._pace.publish_wait_s(message.packet_bytes, now)
        if self.delay_s > 0:
            return None
        self._pace.published(message.packet_bytes, now)
        return self._waiting.popleft()

    def sent(self, key: int, message: QueuedMessage, now: float = 0.0) -> None:
        """Record that a message was sent.

        Args:
            key: The packet id, under which it will be acknowledged.
            now: The time, in monotonic seconds.
        """
        if key in self._unacknowledged:
            raise IllegalTransition(f"packet id {key} is on its way already")
        self._unacknowledged[key] = message
        self._in_flight_bytes += len(message.payload)
        self._due[key] = self.due_at(now)

    def due_at(self, now: float) -> float:
        """Return the latest time of the acknowledgement of a packet that is sent now: bytes in flight go first."""
        return now + ACK_S + self._in_flight_bytes / _SLOWEST_BYTES_S

    def require_answer(self, by: float) -> None:
        """Require that the broker acknowledges something by a time; an earlier requirement stays."""
        self._answer_by = by if self._answer_by is None else min(by, self._answer_by)

    def is_overdue(self, now: float) -> bool:
        """Return whether an acknowledgement is overdue at `now`: messages are sent in order, so the oldest one is due first."""
        oldest = next(iter(self._due.values()), None)
        return any(due is not None and now >= due for due in (oldest, self._answer_by))

    def acknowledged(self, key: int) -> QueuedMessage | None:
        """Remove and return the message that the broker acknowledged; None for an unknown `key`.

        An unknown key is that of a message with QoS 0, which was sent and which no broker acknowledges.
        """
        message = self._unacknowledged.pop(key, None)
        self._due.pop(key, None)
        if message is not None:
            self._answer_by = None
            self._in_flight_bytes -= len(message.payload)
        return message

    def connection_lost(self) -> list[QueuedMessage]:
        """Put unacknowledged messages back at the front of the queue. Returns the messages that are dropped instead."""
        lost = list(self._unacknowledged.values())
        self._unacknowledged.clear()
        self._due.clear()
        self._answer_by = None
        self._in_flight_bytes = 0
        for message in lost:
            message.attempts += 1
        self._waiting.extendleft(reversed([message for message in lost if message.attempts < MAX_ATTEMPTS]))
        return [message for message in lost if message.attempts >= MAX_ATTEMPTS]


@dataclass(frozen=True)
class SubscriptionChange:
    """A SUBSCRIBE to `filters` or, where not `wanted`, an UNSUBSCRIBE."""

    wanted: bool
    filters: tuple[str, ...]


class Subscriptions:
    """The current topic filters, and the changes that have not been sent to the broker yet.

    `delay_s` is the time until the pace of the profile allows the next change, as of the last `next`.
    """

    def __init__(self, profile: BrokerProfile = UNLIMITED, pace: LinkRates | None = None) -> None:
        self.filters: tuple[str, ...] = ()
        self.delay_s = 0.0
        self._profile = profile
        self._pace = pace or LinkRates(profile)
        self._wanted = topic_pattern(())
        self._wishes: deque[SubscriptionChange] = deque()

    def add(self, filters: tuple[str, ...]) -> None:
        """Add `filters`. Adding one again makes the broker send its retained messages again.

        Raises ValueError for a wrong filter, and BrokerError for more subscriptions than the profile permits.
        """
        for topic_filter in filters:
            _check(topic_filter)
        together = tuple(dict.fromkeys((*self.filters, *filters)))
        if len(together) > self._profile.subscriptions:
            most = f"{self._profile.service} permits {self._profile.subscriptions} subscriptions of a connection"
            raise BrokerError(f"{most}, not {len(together)}")
        self.filters = together
        self._wanted = topic_pattern(self.filters)
        self._wishes.append(SubscriptionChange(True, filters))

    def remove(self, filters: tuple[str, ...]) -> None:
        """Remove `filters`."""
        self.filters = tuple(kept for kept in self.filters if kept not in filters)
        self._wanted = topic_pattern(self.filters)
        self._wishes.append(SubscriptionChange(False, filters))

    def connected(self) -> None:
        """Queue all filters for a new connection, and removals, because a kept session may still have those filters."""
        removed = [topic_filter for wish in self._wishes if not wish.wanted for topic_filter in wish.filters]
        self._wishes.clear()
        self._wishes.append(SubscriptionChange(False, tuple(gone for gone in removed if gone not in self.filters)))
        self._wishes.append(SubscriptionChange(True, self.filters))

    def next(self, now: float = 0.0) -> SubscriptionChange | None:
        """Return the next change to send at `now` (monotonic seconds), with as many filters as the profile permits, if any."""
        self.delay_s = 0.0
        while self._wishes and not self._wishes[0].filters:
            self._wishes.popleft()
        if not self._wishes:
            return None
        self.delay_s = self._pace.subscribe_wait_s(now)
        if self.delay_s > 0:
            return None
        self._pace.subscribed(now)
        wish, most = self._wishes.popleft(), self._profile.filters_per_subscribe
        if len(wish.filters) > most:
            self._wishes.appendleft(SubscriptionChange(wish.wanted, wish.filters[most:]))
        return SubscriptionChange(wish.wanted, wish.filters[:most])

    def want(self, topic: str) -> bool:
        """Return whether `topic` matches a filter."""
        return self._wanted.fullmatch(topic) is not None


def _check(pattern: str) -> None:
    # Checked here, because a broker would close the connection at each attempt to subscribe.
    levels = pattern.split("/")
    wild = [level for level in levels if "+" in level or "#" in level]
    if not pattern or any(level not in ("+", "#") for level in wild) or "#" in levels[:-1]:
        raise ValueError(f"not a topic filter: {pattern!r}")


def topic_pattern(filters: Iterable[str]) -> re.Pattern[str]:
    """Return a pattern of the topics that match a filter; compiled once, because each received message is checked."""
    return re.compile("|".join(map(_pattern_of, filters)) or "(?!)", re.DOTALL)


def _pattern_of(topic_filter: str) -> str:
    pattern = re.escape(topic_filter).replace(r"\+", "[^/]*")
    if pattern.endswith(r"/\#"):  # which also matches the level above
        return pattern.removesuffix(r"/\#") + "(?:/.*)?"
    return pattern.replace(r"\#", ".*")
