"""State that a link's callers share with its thread: messages, subscriptions, and the state of the connection.

One lock guards it all. No thread holds the lock while it waits for the network.
"""

from __future__ import annotations

import threading

from fedpatch.shared.errors import BrokerError
from fedpatch.shared.mqtt import connection_errors
from fedpatch.shared.mqtt.broker_profile import UNLIMITED, BrokerProfile, LinkRates
from fedpatch.shared.mqtt.events import Connected
from fedpatch.shared.mqtt.outbox import Outbox, QueuedMessage, SubscriptionChange, Subscriptions
from fedpatch.shared.mqtt.url import BrokerUrl


class Session:
    """Shared state of a link: callers put messages and wait; the link's thread takes messages and reports events."""

    def __init__(self, broker: BrokerUrl, max_queued: int, profile: BrokerProfile = UNLIMITED) -> None:
        self.broker = broker
        self.stopping = threading.Event()
        self.drain_s = 0.0
        self._changed = threading.Condition()
        pace = LinkRates(profile)
        self._outbox = Outbox(max_queued, profile, pace)
        self._subscriptions = Subscriptions(profile, pace)
        self._profile = profile
        self._packet_limit_bytes = profile.packet_bytes
        self._connected: Connected | None = None
        self._fault: connection_errors.ConnectionFault | None = None

    # For callers.

    def put(self, message: QueuedMessage) -> bool:
        """Queue `message`. Returns False if there is no room or the link is stopped. Raises BrokerError if it is too large."""
        if not message.topic or "+" in message.topic or "#" in message.topic:
            raise ValueError(f"{message.topic!r} is not a topic for publishing")
        with self._changed:
            if message.packet_bytes > self._packet_limit_bytes:
                raise BrokerError(f"{self._too_large(message)}; {connection_errors.USE_SMALLER_CHUNKS}")
            return not self.stopping.is_set() and self._outbox.put(message)

    def subscribe(self, filters: tuple[str, ...]) -> None:
        """Subscribe to `filters`."""
        with self._changed:
            self._subscriptions.add(filters)

    def unsubscribe(self, filters: tuple[str, ...]) -> None:
        """Remove the subscriptions `filters`."""
        with self._changed:
            self._subscriptions.remove(filters)

    def wait_connected(self, timeout_s: float) -> Connected:
        """Block until connected. Raises BrokerError with the last fault after `timeout_s`, or at once for a lasting fault."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._connected or (self._fault and self._fault.lasting) or self.stopping.is_set(), timeout_s
            )
            if self._connected is not None:
                return self._connected
            fault = self._fault or connection_errors.silent(self.broker)
            raise BrokerError(fault.reason, remedy=fault.remedy)

    def stop(self, drain_s: float) -> None:
        """Accept no more messages. Queued ones may still be sent for `drain_s`."""
        with self._changed:
            self.drain_s = drain_s
            self.stopping.set()
            self._changed.notify_all()

    # For the link's thread.

    def connected(self, connected: Connected) -> None:
        """Record a new connection, and queue all subscriptions for it."""
        with self._changed:
            self._subscriptions.connected()
            self._packet_limit_bytes = connected.max_packet_bytes or self._profile.packet_bytes
            self._connected, self._fault = connected, None
            self._changed.notify_all()

    def disconnected(self) -> list[QueuedMessage]:
        """Record the end of a connection or attempt, and requeue unacknowledged messages. Returns the dropped ones."""
        with self._changed:
            self._connected = None
            return self._outbox.connection_lost()

    def failed(self, fault: connection_errors.ConnectionFault) -> None:
        """Record why an attempt failed or a connection ended."""
        with self._changed:
            self._fault = fault
            self._changed.notify_all()

    def next_wish(self, now: float) -> SubscriptionChange | None:
        """Return the next change of subscriptions to send at `now`, if any."""
        with self._changed:
            return self._subscriptions.next(now)

    def next_message(self, window: int, now: float) -> QueuedMessage | None:
        """Remove and return the next message, if one may be sent at `now`; waiting subscriptions are sent first."""
        with self._changed:
            return None if self._subscriptions.delay_s > 0 else self._outbox.take(window, now)

    def delay_s(self) -> float:
        """Return the time until the pace of the profile allows the next packet; 0: no packet waits for it."""
        with self._changed:
            return self._subscriptions.delay_s or self._outbox.delay_s

    def complaint(self, message: QueuedMessage) -> str | None:
        """Return why `message` cannot be sent, if the broker stated a lower limit after it was queued."""
        with self._changed:
            return self._too_large(message) if message.packet_bytes > self._packet_limit_bytes else None

    def sent(self, key: int, message: QueuedMessage, now: float) -> None:
        """Record a sent message.

        Args:
            key: Its packet identifier.
            now: The time, in seconds.
        """
        with self._changed:
            self._outbox.sent(key, message, now)

    def due_at(self, now: float) -> float:
        """Return the latest time of the acknowledgement of a subscription that is sent at `now`."""
        with self._changed:
            return self._outbox.due_at(now)

    def require_answer(self, by: float) -> None:
        """Require that the broker acknowledges something by a time."""
        with self._changed:
            self._outbox.require_answer(by)

    def is_overdue(self, now: float) -> bool:
        """Return whether an acknowledgement of the broker is overdue at `now`."""
        with self._changed:
            return self._outbox.is_overdue(now)

    def acknowledged(self, key: int) -> QueuedMessage | None:
        """Remove and return the message of the acknowledged packet `key`, if known."""
        with self._changed:
            return self._outbox.acknowledged(key)

    def idle(self) -> bool:
        """Return whether every message has been sent and acknowledged."""
        with self._changed:
            return len(self._outbox) == 0

    def want(self, topic: str) -> bool:
        """Return whether a subscription matches `topic`."""
        with self._changed:
            return self._subscriptions.want(topic)

    def _too_large(self, message: QueuedMessage) -> str:
        return f"{self.broker} accepts packets of {self._packet_limit_bytes} bytes, less than {message}"
