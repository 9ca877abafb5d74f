"""What a link has still to send: a bounded queue, a window of what is on its way, and the way back after a lost link.

A pure state machine that holds no socket. A message stays here until the broker has acknowledged it, so after a lost
connection everything unacknowledged goes out again, in its old order. There is one exception: a broker that closes the
connection at a message (because it is too large, say) would do so for ever. So whatever was on its way when a
connection broke is sent alone the next time, and what breaks `MAX_ATTEMPTS` connections is given up.

What a link wants to receive, whether or not it is connected at the moment.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from fedpatch.shared.errors import IllegalTransition

MAX_IN_FLIGHT = 20
# On a slow link a keepalive must find its way between the chunks: 256 KiB in 30 s is 70 kbit/s.
MAX_IN_FLIGHT_BYTES = 256 * 1024
MAX_ATTEMPTS = 3


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
    """At most `capacity` messages, waiting or unacknowledged."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._waiting: deque[QueuedMessage] = deque()
        self._unacknowledged: dict[int, QueuedMessage] = {}
        self._flying_bytes = 0

    def __len__(self) -> int:
        return len(self._waiting) + len(self._unacknowledged)

    def put(self, message: QueuedMessage) -> bool:
        """Queue `message`; False when there is no room."""
        if len(self) >= self.capacity:
            return False
        self._waiting.append(message)
        return True

    def take(self, window: int) -> QueuedMessage | None:
        """The next message to send; None if there is none, or `window` messages or too many bytes are on their way."""
        if not self._waiting:
            return None
        message = self._waiting[0]
        flying = len(self._unacknowledged)
        alone = message.attempts > 0 or any(other.attempts > 0 for other in self._unacknowledged.values())
        too_many = flying >= (1 if alone else min(window, MAX_IN_FLIGHT))
        too_much = flying > 0 and self._flying_bytes + len(message.payload) > MAX_IN_FLIGHT_BYTES
        return None if too_many or too_much else self._waiting.popleft()

    def sent(self, key: int, message: QueuedMessage) -> None:
        """`message` is on its way and will be acknowledged under `key`."""
        if key in self._unacknowledged:
            raise IllegalTransition(f"packet id {key} is on its way already")
        self._unacknowledged[key] = message
        self._flying_bytes += len(message.payload)

    def acknowledged(self, key: int) -> QueuedMessage | None:
        """The message that the broker acknowledged, now forgotten; None for a key that is not on its way."""
        message = self._unacknowledged.pop(key, None)
        if message is not None:
            self._flying_bytes -= len(message.payload)
        return message

    def connection_lost(self) -> list[QueuedMessage]:
        """Queue everything unacknowledged once more, first of all; returns what is given up instead."""
        lost = list(self._unacknowledged.values())
        self._unacknowledged.clear()
        self._flying_bytes = 0
        for message in lost:
            message.attempts += 1
        self._waiting.extendleft(reversed([message for message in lost if message.attempts < MAX_ATTEMPTS]))
        return [message for message in lost if message.attempts >= MAX_ATTEMPTS]


@dataclass(frozen=True)
class SubscriptionChange:
    """Ask the broker for messages on `filters` (or, where not `wanted`, for no more of them)."""

    wanted: bool
    filters: tuple[str, ...]


class Subscriptions:
    """The filters wanted now, and what the broker has still to be told of them."""

    def __init__(self) -> None:
        self.filters: tuple[str, ...] = ()
        self._wishes: deque[SubscriptionChange] = deque()

    def add(self, filters: tuple[str, ...]) -> None:
        """Want `filters`; to want one again makes the broker send its retained messages again."""
        for one in filters:
            _check(one)
        self.filters = tuple(dict.fromkeys((*self.filters, *filters)))
        self._wishes.append(SubscriptionChange(True, filters))

    def remove(self, filters: tuple[str, ...]) -> None:
        """Want `filters` no more."""
        self.filters = tuple(one for one in self.filters if one not in filters)
        self._wishes.append(SubscriptionChange(False, filters))

    def connected(self) -> None:
        """Tell a new connection everything; a session that the broker kept may hold what was removed meanwhile."""
        removed = [one for wish in self._wishes if not wish.wanted for one in wish.filters]
        self._wishes.clear()
        self._wishes.append(SubscriptionChange(False, tuple(one for one in removed if one not in self.filters)))
        self._wishes.append(SubscriptionChange(True, self.filters))

    def next(self) -> SubscriptionChange | None:
        """What to tell the broker next."""
        while self._wishes:
            wish = self._wishes.popleft()
            if wish.filters:
                return wish
        return None

    def want(self, topic: str) -> bool:
        """Whether `topic` matches a filter."""
        return any(_matches(one, topic) for one in self.filters)


def _check(pattern: str) -> None:
    # Checked before it reaches a connection, which a broker would close at each attempt to subscribe.
    levels = pattern.split("/")
    wild = [one for one in levels if "+" in one or "#" in one]
    if not pattern or any(one not in ("+", "#") for one in wild) or "#" in levels[:-1]:
        raise ValueError(f"not a topic filter: {pattern!r}")


def _matches(pattern: str, topic: str) -> bool:
    wanted, levels = pattern.split("/"), topic.split("/")
    if wanted[-1] == "#":
        wanted = wanted[:-1]
        levels = levels[: len(wanted)]
    return len(wanted) == len(levels) and all(one in ("+", level) for one, level in zip(wanted, levels, strict=True))
