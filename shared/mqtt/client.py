"""The MQTT link of coordinator and agent, and the one module that imports paho.

`MqttLink` owns one thread, and only this thread calls paho. Callers put messages into the session's outbox and receive
events, in order. These rules follow from the behaviour of brokers and paho:

- A paho client lives as long as one connection. The session keeps unacknowledged messages and subscriptions, so a broken
  connection does not lose a message, and no message is repeated without end.
- The link has its own loop instead of paho's `loop_start`. paho's thread ends at any unexpected exception, does not report why
  a connection failed, lets all devices of a fleet reconnect at the same time, and fails beyond file descriptor 1024.
- A paho callback only records or enqueues.
- A PUBACK frees a place in the outbox and proves nothing else: brokers drop messages that they have acknowledged.
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
from fedpatch.shared.mqtt.broker_profile import UNLIMITED, BrokerProfile
from fedpatch.shared.mqtt.events import Connected, Disconnected, Link, LinkEvent, Received
from fedpatch.shared.mqtt.outbox import MAX_IN_FLIGHT, QueuedMessage
from fedpatch.shared.mqtt.reconnect import CONNACK_TIMEOUT_S, ConnectionAttempt, Reconnector
from fedpatch.shared.mqtt.session import Session
from fedpatch.shared.mqtt.socket_loop import SocketLoop
from fedpatch.shared.mqtt.tls_context import Credentials, TlsFiles, peer_ends
from fedpatch.shared.mqtt.tls_errors import fault_of
from fedpatch.shared.mqtt.traffic import Traffic, traffic_of
from fedpatch.shared.mqtt.url import BrokerUrl, parse_broker_url

__all__ = ["BrokerUrl", "Connected", "Disconnected", "Link", "LinkEvent", "MqttLink", "Received", "parse_broker_url"]

SESSION_EXPIRY_S = 3600
DRAIN_S = 2.0
GOODBYE_TIMEOUT_S = 1.0

_PAHO_VERSION = {"5": mqtt.MQTTv5, "3.1.1": mqtt.MQTTv311}

_SYSTEM_CAS = TlsFiles()

log = logging.getLogger("fedpatch.link")


class MqttLink:
    """A link over MQTT 5 or 3.1.1, which reconnects by itself.

    Args:
        url: Broker URL, which may have the user name and never has the password.
        client_id: MQTT client id.
        events: Called from the link's thread with each event, in order. It must only enqueue the event (`queue.put`).
        will: Topic and payload of the last will, which is retained.
        username: User name at the broker; None: that of the URL, if any.
        password: Password at the broker.
        tls: Files of the CA, the own certificate and its key.
        keepalive_s: MQTT keepalive.
        reconnect_delay_s: Shortest and longest pause before an attempt to reconnect.
        clean_start: Whether the broker forgets the session; else it keeps the session for an hour after a disconnect.
        max_queued: Most messages that wait to be sent or acknowledged.
        profile: Limits of the broker that it does not state.
        gate: Returns why not to connect and to send messages now, "" if nothing prevents it; called in the link's thread.
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
        profile: BrokerProfile = UNLIMITED,
        gate: Callable[[], str] | None = None,
    ) -> None:
        self._gate = gate or (lambda: "")
        self.broker = parse_broker_url(url)
        self._credentials = Credentials(self.broker, tls)
        self._username, self._password = username or self.broker.username, password
        self._client_id, self._events, self._will = client_id, events, will
        self._keepalive_s, self._clean_start = keepalive_s, clean_start
        self._retains = True
        self._profile = profile
        self._session = Session(self.broker, max_queued, profile)
        self._loop = SocketLoop()
        self._traffic = self._earlier_traffic = Traffic()
        self._attempts = Reconnector(self._session, reconnect_delay_s, self._connect, self._emit)
        self._thread = threading.Thread(target=self._attempts.run, name=f"link {client_id}", daemon=True)

    def start(self) -> None:
        """Start the link's thread, which connects. Returns at once."""
        self._thread.start()

    def publish(self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False) -> bool:
        """Queue a message, whether connected or not.

        Args:
            topic: Topic without wildcards.
            qos: 0 (sent at most once) or 1.

        Returns:
            False if the outbox is full or the link has been stopped.

        Raises:
            BrokerError: The message exceeds the broker's packet limit; the broker would close the connection. A message that
                was queued before the limit is known is dropped with a warning instead.
        """
        queued = self._session.put(QueuedMessage(topic, payload, qos, retain))
        self._loop.wake()
        return queued

    def subscribe(self, *filters: str) -> None:
        """Subscribe with QoS 1, now and at each reconnect. A repeated call makes the broker send retained messages again."""
        self._session.subscribe(filters)
        self._loop.wake()

    def unsubscribe(self, *filters: str) -> None:
        """Remove the subscriptions `filters`. No message on them is received from now on, even one that is on its way."""
        self._session.unsubscribe(filters)
        self._loop.wake()

    def check(self, within_s: float) -> None:
        """Make the connection anew unless the broker acknowledges something within `within_s` seconds.

        The caller publishes a message with QoS 1 at the same time.
        """
        self._session.require_answer(time.monotonic() + within_s)
        self._loop.wake()

    def use_long_backoff(self, patient: bool) -> None:
        """Set whether each attempt to reconnect waits for the longest pause. Callable from any thread."""
        self._attempts.patient = patient

    def wait_connected(self, timeout_s: float) -> Connected:
        """Block until connected. Raises BrokerError with the last fault after `timeout_s`, or at once for a lasting fault."""
        return self._session.wait_connected(timeout_s)

    @property
    def idle(self) -> bool:
        """True if the broker has acknowledged every published message."""
        return self._session.idle()

    @property
    def traffic(self) -> Traffic:
        """Bytes that this link has moved in all its connections. Callable from any thread."""
        return self._traffic

    def stop(self, drain_s: float = DRAIN_S) -> None:
        """Accept no more messages, send queued ones for up to `drain_s`, disconnect without a last will, join the thread."""
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
            if reason := self._gate():
                attempt.fail(connection_errors.ConnectionFault(reason))
                return
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
            open_socket = client.socket() if client is not None else None
            if open_socket is not None:
                self._measure(open_socket)
                open_socket.close()
            self._earlier_traffic = self._traffic
        for message in self._session.disconnected():
            log.warning(
                "gave up %s: the connection to %s breaks whenever it is sent; if the broker accepts no messages of that "
                "size, %s",
                message,
                self.broker,
                connection_errors.USE_SMALLER_CHUNKS,
            )

    def _turn(self, client: mqtt.Client, attempt: ConnectionAttempt) -> bool:
        """Do the link's work before each wait for the socket. Returns False to end the connection."""
        now = time.monotonic()
        self._measure(client.socket())
        if attempt.goodbye_until is not None:
            return now < attempt.goodbye_until
        if attempt.connected is not None:
            self._feed(client, attempt)
        elif now > attempt.answer_by:
            attempt.fail(connection_errors.silent(self.broker))
            return False
        if attempt.connected is not None and (self._session.is_overdue(now) or attempt.is_deaf(now)):
            attempt.fail(connection_errors.unacknowledged(self.broker))
            return False
        if self._session.stopping.is_set():
            self._leave_when_sent(client, attempt)
        elif self._credentials.renewed(now):
            attempt.fail(connection_errors.renewed(self.broker))
            self._say_goodbye(client, attempt)
        return True

    def _measure(self, connection: Any) -> None:
        self._traffic = self._earlier_traffic.plus(traffic_of(connection))

    def _feed(self, client: mqtt.Client, attempt: ConnectionAttempt) -> None:
        """Give paho the subscriptions and messages, at most one packet ahead of the socket: a ping must get through."""
        while wish := self._session.next_wish(time.monotonic()):
            if wish.wanted:
                _, mid = client.subscribe([(topic_filter, 1) for topic_filter in wish.filters])
                attempt.subscribing[mid or 0] = wish.filters, self._session.due_at(time.monotonic())
            else:
                client.unsubscribe(list(wish.filters))
        while not client.want_write() and not self._gate():
            if (message := self._session.next_message(attempt.window, time.monotonic())) is None:
                break
            if complaint := self._session.complaint(message):
                log.warning("dropped a message: %s", complaint)
                continue
            # A broker without retained messages would close the connection at a message with the retain flag.
            info = client.publish(message.topic, message.payload, message.qos, message.retain and self._retains)
            if message.qos > 0:
                self._session.sent(info.mid, message, time.monotonic())
        if (delay_s := self._session.delay_s()) > 0:
            self._loop.wait_at_most(delay_s)

    def _leave_when_sent(self, client: mqtt.Client, attempt: ConnectionAttempt) -> None:
        """Disconnect once all messages are sent or `drain_s` is over."""
        now = time.monotonic()
        if attempt.drain_until is None:
            attempt.drain_until = now + self._session.drain_s
        if attempt.connected is None or self._session.idle() or now > attempt.drain_until:
            self._say_goodbye(client, attempt)

    def _say_goodbye(self, client: mqtt.Client, attempt: ConnectionAttempt) -> None:
        """Send DISCONNECT, so that the broker publishes no last will, and wait at most GOODBYE_TIMEOUT_S."""
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
            attempt.subscribing.pop(mid, ((), 0.0))[0], reasons
        )
        return client

    def _on_connect(
        self, attempt: ConnectionAttempt, session_present: bool, reason: ReasonCode, properties: Properties | None
    ) -> None:
        if reason.is_failure:
            fault = connection_errors.refused(self.broker, self._username, reason, with_password=bool(self._password))
            # Only once: a broker that also refuses a will without the retain flag is retried with pauses.
            attempt.fail(fault if self._retains else replace(fault, retains_nothing=False))
            self._retains = self._retains and not fault.retains_nothing
            return
        self._retains = bool(getattr(properties, "RetainAvailable", 1))
        attempt.window = getattr(properties, "ReceiveMaximum", MAX_IN_FLIGHT)
        attempt.connected = Connected(
            protocol=attempt.protocol,
            max_packet_bytes=self._packet_limit(getattr(properties, "MaximumPacketSize", None)),
            retain_available=self._retains,
            session_present=session_present,
            broker_certificate_ends=peer_ends(attempt.socket),
        )
        self._session.connected(attempt.connected)
        self._emit(attempt.connected)

    def _packet_limit(self, stated: int | None) -> int | None:
        """Return the lower one of the broker's limit and the profile's; None if there is none."""
        least = min(stated or UNLIMITED.packet_bytes, self._profile.packet_bytes)
        return least if least < UNLIMITED.packet_bytes else None

    def _on_message(self, message: mqtt.MQTTMessage) -> None:
        try:
            topic = message.topic
        except UnicodeDecodeError:
            return
        # A kept session may deliver messages of an earlier process's subscriptions. Some brokers deliver unsubscribed ones.
        if self._session.want(topic):
            self._emit(Received(topic, bytes(message.payload), bool(message.retain)))

    def _on_publish(self, mid: int, reason: ReasonCode) -> None:
        message = self._session.acknowledged(mid)
        if message is not None and reason.is_failure:
            log.warning("%s refused %s: %s", self.broker, message, str(reason).lower())

    def _on_subscribe(self, filters: tuple[str, ...], reasons: list[ReasonCode]) -> None:
        for topic_filter, reason in zip(filters, reasons, strict=False):
            if reason.is_failure:
                level = (
                    logging.DEBUG if topic_filter.startswith("$SYS/") else logging.WARNING
                )  # not each broker has these
                log.log(level, "%s refused the subscription to %s: %s", self.broker, topic_filter, str(reason).lower())

    def _emit(self, event: LinkEvent) -> None:
        try:
            self._events(event)
        except Exception:
            log.exception("the receiver of link events failed at %s", type(event).__name__)


def _opened(attempt: ConnectionAttempt, sock: Any) -> None:
    attempt.socket = sock
    # A small QoS 1 message and its answer take 88 ms with Nagle's algorithm on both sides, and 0.4 ms without it.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _connect_options(clean_start: bool) -> dict[str, Any]:
    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.SessionExpiryInterval = 0 if clean_start else SESSION_EXPIRY_S
    return {"clean_start": clean_start, "properties": properties}
