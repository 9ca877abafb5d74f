"""The link to the broker: what both sides need of MQTT, and the one file that speaks to paho.

`MqttLink` owns one thread. That thread alone touches paho; callers only leave messages on the desk and get events back,
in order. Rules that follow from how brokers and paho behave:

- A paho client lives as long as one connection. What is unacknowledged and what is subscribed is kept on the desk, so
  nothing is lost, or sent for ever, when a connection breaks.
- The loop is ours, not paho's `loop_start`: that thread ends for good at an exception it does not expect, does not tell
  why a connection failed, brings all devices of a fleet back in step, and fails beyond file descriptor 1024.
- Callbacks record or enqueue, and nothing else.
- A PUBACK frees a place in the outbox and means nothing more: brokers drop messages that they have acknowledged.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from fedpatch.shared.errors import UsageError
from fedpatch.shared.mqtt import connection_errors
from fedpatch.shared.mqtt.events import Connected, Disconnected, Link, LinkEvent, Received
from fedpatch.shared.mqtt.outbox import MAX_IN_FLIGHT, QueuedMessage
from fedpatch.shared.mqtt.reconnect import CONNACK_TIMEOUT_S, ConnectionAttempt, Reconnector
from fedpatch.shared.mqtt.session import Session
from fedpatch.shared.mqtt.socket_loop import SocketLoop
from fedpatch.shared.mqtt.tls_context import Credentials, TlsFiles, peer_ends
from fedpatch.shared.mqtt.tls_errors import fault_of
from fedpatch.shared.mqtt.url import BrokerUrl, parse_broker_url

__all__ = ["BrokerUrl", "Connected", "Disconnected", "Link", "LinkEvent", "MqttLink", "Received", "parse_broker_url"]

SESSION_EXPIRY_S = 3600
GOODBYE_TIMEOUT_S = 1.0

_PAHO_VERSION = {"5": mqtt.MQTTv5, "3.1.1": mqtt.MQTTv311}

_SYSTEM_CAS = TlsFiles()

log = logging.getLogger("fedpatch.link")


class MqttLink:
    """A link over MQTT 5 or 3.1.1.

    `events` is called from the link's thread, in order, and must only put the event somewhere (`queue.put`). `will` is
    (topic, payload), retained. Without `clean_start` the broker keeps the session for an hour after a disconnect. At
    most `max_queued` messages wait or are unacknowledged. The user name may stand in the URL; the password never does.
    """

    def __init__(  # noqa: PLR0913 - one keyword per independent choice of the caller
        self,
        url: str,
        *,
        client_id: str,
        events: Callable[[LinkEvent], None],
        will: tuple[str, bytes] | None = None,
        username: str | None = None,
        password: str | None = None,
        tls: TlsFiles = _SYSTEM_CAS,
        keepalive_s: int = 30,
        reconnect_delay_s: tuple[float, float] = (1.0, 60.0),
        clean_start: bool = False,
        max_queued: int = 1000,
    ) -> None:
        self.broker = parse_broker_url(url)
        self._credentials = Credentials(self.broker, tls)
        self._username, self._password = username or self.broker.username, password
        self._client_id, self._events, self._will = client_id, events, will
        self._keepalive_s, self._clean_start = keepalive_s, clean_start
        self._retains = True
        self._session = Session(self.broker, max_queued)
        self._loop = SocketLoop()
        self._attempts = Reconnector(self._session, reconnect_delay_s, self._connect, self._emit)
        self._thread = threading.Thread(target=self._attempts.run, name=f"link {client_id}", daemon=True)

    def start(self) -> None:
        """Begin to connect in a thread of its own; returns at once."""
        self._thread.start()

    def publish(self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False) -> bool:
        """Queue a message, connected or not; False when the outbox is full or the link has been stopped.

        A message above the packet limit that the broker stated raises BrokerError, for the broker would close the
        connection at it; one queued before the limit is known is dropped with a warning. QoS 0 is sent once at most.
        """
        queued = self._session.put(QueuedMessage(topic, payload, qos, retain))
        self._loop.wake()
        return queued

    def subscribe(self, *filters: str) -> None:
        """Subscribe with QoS 1, again at each reconnect; to repeat it makes the broker send retained messages again."""
        self._session.subscribe(filters)
        self._loop.wake()

    def unsubscribe(self, *filters: str) -> None:
        """Give `filters` up; nothing more is received on them, even if it is on its way."""
        self._session.unsubscribe(filters)
        self._loop.wake()

    def use_long_backoff(self, patient: bool) -> None:
        """Whether to wait for as long as is allowed before each further attempt to connect; callable from any thread."""
        self._attempts.patient = patient

    def wait_connected(self, timeout_s: float) -> Connected:
        """Block until connected; BrokerError with the last reason after `timeout_s`, or once waiting is no use."""
        return self._session.wait_connected(timeout_s)

    @property
    def idle(self) -> bool:
        """Nothing that was published waits to be acknowledged by the broker."""
        return self._session.idle()

    def stop(self, drain_s: float = 2.0) -> None:
        """Take no more messages, send the queued ones for up to `drain_s`, leave without a last will, join."""
        self._session.stop(drain_s)
        self._loop.wake()
        if self._thread.ident is not None:
            self._thread.join(drain_s + GOODBYE_TIMEOUT_S + CONNACK_TIMEOUT_S)
            if self._thread.is_alive():
                log.warning("still waiting for %s; the network thread is left behind", self.broker)
                return
        self._loop.close()

    # One connection, in the link's thread.

    def _connect(self, attempt: ConnectionAttempt) -> None:
        client: mqtt.Client | None = None
        try:
            client = self._new_client(attempt)
            options = _connect_options(self._clean_start) if attempt.protocol == "5" else {}
            client.connect(self.broker.host, self.broker.port, self._keepalive_s, **options)
            self._loop.run(client, partial(self._turn, client, attempt))
        except UsageError as error:
            attempt.fail(connection_errors.ConnectionFault(str(error), lasting=True))
        except (OSError, UnicodeError) as error:
            known = fault_of(self.broker, self._credentials.files, error)
            attempt.fail(known or connection_errors.unreachable(self.broker, error))
        except Exception:
            log.exception("unexpected failure of the connection to %s", self.broker)
        finally:
            left = client.socket() if client is not None else None
            if left is not None:
                left.close()
        for message in self._session.disconnected():
            log.warning(
                "gave up %s: the connection to %s breaks whenever it is sent; if the broker takes no messages of that "
                "size, %s",
                message,
                self.broker,
                connection_errors.USE_SMALLER_CHUNKS,
            )

    def _turn(self, client: mqtt.Client, attempt: ConnectionAttempt) -> bool:
        """What to do before waiting for the socket; False to give the connection up."""
        now = time.monotonic()
        if attempt.goodbye_until is not None:
            return now < attempt.goodbye_until
        if attempt.connected is not None:
            self._feed(client, attempt)
        elif now > attempt.answer_by:
            attempt.fail(connection_errors.silent(self.broker))
            return False
        if self._session.stopping.is_set():
            self._leave_when_sent(client, attempt)
        elif self._credentials.renewed(now):
            attempt.fail(connection_errors.renewed(self.broker))
            self._say_goodbye(client, attempt)
        return True

    def _feed(self, client: mqtt.Client, attempt: ConnectionAttempt) -> None:
        """Hand paho what callers want, never more than one packet ahead of the socket: a ping must get through."""
        while wish := self._session.next_wish():
            if wish.wanted:
                _, mid = client.subscribe([(one, 1) for one in wish.filters])
                attempt.subscribing[mid or 0] = wish.filters
            else:
                client.unsubscribe(list(wish.filters))
        while not client.want_write() and (message := self._session.next_message(attempt.window)):
            if complaint := self._session.complaint(message):
                log.warning("dropped a message: %s", complaint)
                continue
            # A broker that retains nothing would close the connection at a message that wants it.
            info = client.publish(message.topic, message.payload, message.qos, message.retain and self._retains)
            if message.qos > 0:
                self._session.sent(info.mid, message)

    def _leave_when_sent(self, client: mqtt.Client, attempt: ConnectionAttempt) -> None:
        """Say goodbye once all is sent or it takes too long."""
        now = time.monotonic()
        if attempt.drain_until is None:
            attempt.drain_until = now + self._session.drain_s
        if attempt.connected is None or self._session.idle() or now > attempt.drain_until:
            self._say_goodbye(client, attempt)

    def _say_goodbye(self, client: mqtt.Client, attempt: ConnectionAttempt) -> None:
        """Leave without a last will; a broker that does not take even that is left a second later."""
        attempt.goodbye_until = time.monotonic() + GOODBYE_TIMEOUT_S
        client.disconnect()

    # paho's callbacks, which run in the same thread.

    def _new_client(self, attempt: ConnectionAttempt) -> mqtt.Client:
        client = mqtt.Client(
            CallbackAPIVersion.VERSION2,
            client_id=self._client_id,
            clean_session=self._clean_start if attempt.protocol == "3.1.1" else None,
            protocol=_PAHO_VERSION[attempt.protocol],
            reconnect_on_failure=False,
        )
        if self._username is not None:
            client.username_pw_set(self._username, self._password)
        if (context := self._credentials.context()) is not None:
            client.tls_set_context(context)
        if self._will is not None:
            client.will_set(*self._will, qos=1, retain=self._retains)
        client.on_socket_open = lambda _client, _data, sock: _opened(attempt, sock)
        client.on_connect = lambda _client, _data, flags, reason, properties: self._on_connect(
            attempt, flags.session_present, reason, properties
        )
        client.on_disconnect = lambda _client, _data, flags, reason, _properties: attempt.fail(
            fault_of(self.broker, self._credentials.files, getattr(attempt.socket, "alert", None))
            or connection_errors.lost(
                self.broker, reason, flags.is_disconnect_packet_from_server, bool(attempt.connected)
            )
        )
        client.on_message = lambda _client, _data, message: self._on_message(message)
        client.on_publish = lambda _client, _data, mid, reason, _properties: self._on_publish(mid, reason)
        client.on_subscribe = lambda _client, _data, mid, reasons, _properties: self._on_subscribe(
            attempt.subscribing.pop(mid, ()), reasons
        )
        return client

    def _on_connect(
        self, attempt: ConnectionAttempt, session_present: bool, reason: ReasonCode, properties: Properties | None
    ) -> None:
        if reason.is_failure:
            fault = connection_errors.refused(self.broker, self._username, reason, with_password=bool(self._password))
            # Once: a broker that refuses a will that is not retained too is tried again like any other.
            attempt.fail(fault if self._retains else replace(fault, retains_nothing=False))
            self._retains = self._retains and not fault.retains_nothing
            return
        self._retains = bool(getattr(properties, "RetainAvailable", 1))
        attempt.window = getattr(properties, "ReceiveMaximum", MAX_IN_FLIGHT)
        attempt.connected = Connected(
            protocol=attempt.protocol,
            max_packet_bytes=getattr(properties, "MaximumPacketSize", None),
            retain_available=self._retains,
            session_present=session_present,
            broker_certificate_ends=peer_ends(attempt.socket),
        )
        self._session.connected(attempt.connected)
        self._emit(attempt.connected)

    def _on_message(self, message: mqtt.MQTTMessage) -> None:
        try:
            topic = message.topic
        except UnicodeDecodeError:
            return
        # A kept session may deliver what an earlier process subscribed to, and some brokers what nobody did.
        if self._session.want(topic):
            self._emit(Received(topic, bytes(message.payload), bool(message.retain)))

    def _on_publish(self, mid: int, reason: ReasonCode) -> None:
        message = self._session.acknowledged(mid)
        if message is not None and reason.is_failure:
            log.warning("%s refused %s: %s", self.broker, message, str(reason).lower())

    def _on_subscribe(self, filters: tuple[str, ...], reasons: list[ReasonCode]) -> None:
        for one, reason in zip(filters, reasons, strict=False):
            if reason.is_failure:
                log.warning("%s refused the subscription to %s: %s", self.broker, one, str(reason).lower())

    def _emit(self, event: LinkEvent) -> None:
        try:
            self._events(event)
        except Exception:
            log.exception("the receiver of link events failed at %s", type(event).__name__)


def _opened(attempt: ConnectionAttempt, sock: Any) -> None:
    attempt.socket = sock
    # A small QoS 1 message and its answer take 88 ms where both sides let Nagle wait, and 0.4 ms where neither does.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _connect_options(clean_start: bool) -> dict[str, Any]:
    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.SessionExpiryInterval = 0 if clean_start else SESSION_EXPIRY_S
    return {"clean_start": clean_start, "properties": properties}
