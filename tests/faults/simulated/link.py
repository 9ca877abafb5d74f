"""The link of a world: the interface of shared.mqtt.client.MqttLink, over a wire in virtual time.

Outbox and subscriptions are the real code; there are no paho, threads and sockets.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from fedpatch.shared.errors import BrokerError
from fedpatch.shared.mqtt.events import Connected, Disconnected, LinkEvent, Received
from fedpatch.shared.mqtt.outbox import MAX_IN_FLIGHT, Outbox, QueuedMessage, Subscriptions
from fedpatch.shared.mqtt.traffic import Traffic
from fedpatch.shared.mqtt.url import BrokerUrl
from tests.faults.simulated.broker import Message, Session
from tests.faults.simulated.wire import Host, Wire

if TYPE_CHECKING:
    from tests.faults.simulated.world import World

CONNACK_S = 10.0
RETRY_S = (1.0, 10.0)


class SimulatedLink:
    """A client `client_id` on `host`; `events` is called while no process acts."""

    def __init__(
        self,
        world: World,
        host: Host,
        *,
        client_id: str,
        events: Callable[[LinkEvent], None],
        will: tuple[str, bytes] | None = None,
        clean_start: bool = False,
        max_queued: int = 1000,
        **_: Any,
    ) -> None:
        self.broker = BrokerUrl("127.0.0.1", 1883, tls=False)
        self.client_id, self.will, self.clean_start = client_id, will, clean_start
        self._world, self._host, self._events = world, host, events
        self._outbox = Outbox(max_queued)
        self._subscriptions = Subscriptions()
        self._wire: Wire | None = None
        self._connected: Connected | None = None
        self._stopped = False
        self._last_key = 0
        self._pause_s = RETRY_S[0]
        self.traffic = Traffic()

    # ---- for its owner

    def start(self) -> None:
        self._connect()

    def publish(self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False) -> bool:
        self._world.oracle.on_publish(topic, payload)
        self.traffic = self.traffic.plus(Traffic(sent_bytes=len(topic) + len(payload)))
        queued = not self._stopped and self._outbox.put(QueuedMessage(topic, payload, qos, retain))
        self._feed()
        return queued

    def subscribe(self, *filters: str) -> None:
        self._subscriptions.add(filters)
        self._feed()

    def unsubscribe(self, *filters: str) -> None:
        self._subscriptions.remove(filters)
        self._feed()

    @property
    def idle(self) -> bool:
        return len(self._outbox) == 0

    def check(self, within_s: float) -> None:
        """Make the connection anew unless the broker acknowledges something within `within_s` seconds."""
        wire = self._wire
        self._outbox.require_answer(self._world.now + within_s)
        self._world.agenda.after(within_s, lambda: self._check_again(wire))

    def _check_again(self, wire: Wire | None) -> None:
        if wire is not None and self._wire is wire and self._outbox.is_overdue(self._world.now):
            wire.close_client()
            self._lost(wire)

    def wait_connected(self, timeout_s: float) -> Connected:
        """Let the world's time advance until the broker has answered."""
        self._world.wait(lambda: self._connected is not None, timeout_s)
        if self._connected is None:
            raise BrokerError("the simulated broker does not answer")
        return self._connected

    def use_long_backoff(self, patient: bool) -> None:
        """Fail if `patient`: in a world each name has one device, so no duplicate exists."""
        assert not patient, f"{self.client_id} believes that another has its name"

    def stop(self) -> None:
        """Send the queued messages, and disconnect without a will."""
        if self._stopped:
            return
        self._world.wait(lambda: self.idle or self._connected is None, 1.0)
        if self._wire is not None and self._connected is not None:
            self._wire.up(partial(self._world.broker.goodbye, self))
        self.die()

    def die(self) -> None:
        self._stopped = True
        wire, self._wire, self._connected = self._wire, None, None
        if wire is not None:
            wire.close_client()

    # ---- the connection

    def _connect(self) -> None:
        if self._stopped or self._wire is not None:
            return
        if self._host.reach == "cut" or not self._world.broker.up:
            self._failed()
            return
        wire = self._wire = self._world.wire()
        wire.client_lost = partial(self._lost, wire)
        self._host.connect(wire)
        if self._host.reach == "silent":
            wire.silent = True
        wire.up(partial(self._world.broker.accept, self, wire))
        self._world.agenda.after(CONNACK_S, partial(self._give_up, wire))

    def _give_up(self, wire: Wire) -> None:
        if self._wire is wire and self._connected is None:
            wire.close_client()
            self._lost(wire)

    def _lost(self, wire: Wire) -> None:
        if self._wire is wire:
            self._wire = self._connected = None
            self._outbox.connection_lost()
            self._failed()

    def _failed(self) -> None:
        shortest_s, longest_s = RETRY_S
        self._pause_s = min(longest_s, self._world.rng.uniform(shortest_s, 3 * self._pause_s))
        self._world.agenda.after(self._pause_s, self._connect)
        self._emit(Disconnected("the simulated connection is gone"))

    def on_connack(self, wire: Wire, present: bool) -> None:
        if self._wire is wire:
            self._pause_s = RETRY_S[0]
            self._connected = Connected("5", None, True, present)
            self._subscriptions.connected()
            self._feed()
            self._emit(self._connected)

    def on_message(self, wire: Wire, message: Message, session: Session) -> None:
        """Handle a delivered message; the broker may drop it once it is acknowledged."""
        if self._wire is wire:
            wire.up(partial(_forget, session, message))
            if self._subscriptions.want(message.topic):
                self._emit(Received(message.topic, message.payload, message.retained))

    def _acknowledged(self, wire: Wire, key: int) -> None:
        if self._wire is wire:
            self._outbox.acknowledged(key)
            self._feed()

    def _feed(self) -> None:
        wire = self._wire
        if wire is None or self._connected is None:
            return
        while wish := self._subscriptions.next():
            does = self._world.broker.subscribe if wish.wanted else self._world.broker.unsubscribe
            wire.up(partial(does, self, wish.filters))
        while message := self._outbox.take(MAX_IN_FLIGHT):
            self._last_key += 1
            self._outbox.sent(self._last_key, message)
            wire.up(partial(self._arrived, wire, self._last_key, message))

    def _arrived(self, wire: Wire, key: int, message: QueuedMessage) -> None:
        self._world.broker.publish(message.topic, message.payload, retain=message.retain)
        wire.down(partial(self._acknowledged, wire, key))

    def _emit(self, event: LinkEvent) -> None:
        if not self._stopped:
            if isinstance(event, Received):
                self.traffic = self.traffic.plus(Traffic(received_bytes=len(event.topic) + len(event.payload)))
            self._events(event)


def _forget(session: Session, message: Message) -> None:
    if message in session.queue:
        session.queue.remove(message)
