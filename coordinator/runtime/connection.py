"""The coordinator's connection to the broker: its presence there, its inbox, and signals as one more kind of event."""

from __future__ import annotations

import logging
import secrets
import threading
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Self

from fedpatch.coordinator.guard.ingress_filter import IngressFilter
from fedpatch.coordinator.runtime.chunk_size import find_chunk_bytes
from fedpatch.coordinator.runtime.event_queue import EventQueue, Interrupt
from fedpatch.coordinator.runtime.fleet_claim import CONNECT_TIMEOUT_S, acquire_fleet, body_of, client_id
from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared.app.signals import signals_told
from fedpatch.shared.diagnostics.own_certificate import check_holder
from fedpatch.shared.mqtt.broker_settings import exposure, password_of
from fedpatch.shared.mqtt.client import Connected, Disconnected, LinkEvent, MqttLink, Received
from fedpatch.shared.mqtt.connection_errors import SAME_NAME
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.codec import encode
from fedpatch.shared.wire.messages import Claim, CoordinatorState, Envelope

_log = logging.getLogger("fedpatch.coordinator")

# Publishes that may wait for the broker: a model in chunks, and a message to each device.
_MAX_QUEUED = 20_000


class Connection:
    """Entered when the broker has answered and no other coordinator of the fleet has; left without a last will.

    Raises BrokerError when the broker does not answer, and UsageError when another coordinator does. While it is open,
    SIGINT and SIGTERM come as events too, to the very end: what the run came to is not lost to somebody who presses
    Ctrl-C while it says goodbye.
    """

    def __init__(self, settings: RunSettings) -> None:
        check_holder(settings.tls_files, settings.fleet, "coordinator")
        self.inbox = EventQueue()
        self.fleet = settings.fleet
        self.door = IngressFilter(settings.max_devices)
        self._settings = settings
        self._boot = secrets.token_hex(8)
        self._presence = topics.coordinator_state(settings.fleet)
        self.link = MqttLink(
            settings.broker,
            client_id=client_id(settings.fleet),
            events=self._take,
            will=(self._presence, self._state(online=False)),
            username=settings.username,
            password=password_of(settings),
            tls=settings.tls_files,
            clean_start=True,
            max_queued=_MAX_QUEUED,
        )
        self.link.subscribe(*topics.coordinator_filters(settings.fleet))
        self._open = ExitStack()
        self._connects = 0
        self.broker_certificate_ends: float | None = None
        self.chunk_bytes = settings.chunk_kib * 1024

    def __enter__(self) -> Self:
        if warning := exposure(self.link.broker):
            _log.warning(warning)
        try:
            acquire_fleet(self._settings, self._boot)
            self.chunk_bytes = find_chunk_bytes(self._settings, self._boot)
            self.link.start()
            self.established: Connected = self.link.wait_connected(CONNECT_TIMEOUT_S)
            self._open.enter_context(interrupts_into(self.inbox))
        except BaseException:
            self.link.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with self._open:
            self.announce(online=False)
            self.link.stop()

    def announce(self, *, online: bool) -> None:
        """Says that the coordinator is there, or leaves."""
        self.link.publish(self._presence, self._state(online=online), retain=self.established.retain_available)

    def send(self, device: str, envelope: Envelope) -> int:
        """A message to a device; returns its size in bytes.

        One that finds the queue full is lost, as it may be on its way: devices are asked again.
        """
        payload = encode(envelope)
        self.door.sends(device, envelope)
        if self.link.publish(topics.down(self.fleet, device), payload):
            return len(payload)
        _log.warning("outgoing queue is full; %s will hear later", device)
        return 0

    def _take(self, event: LinkEvent) -> None:
        """In the link's thread: what coordinators say to each other is answered here, everything else goes to the inbox."""
        if isinstance(event, Received) and event.topic == self._presence:
            self._on_coordinator(event)
            return
        if isinstance(event, Received):
            # Refused before it takes a place: a flood is not to grow what waits for the coordinator.
            topic = topics.parse_topic(self.fleet, event.topic)
            if topic is None or not event.payload or not self.door.admit(topic, len(event.payload)):
                return
        if isinstance(event, Connected):
            self._connects += 1
            self.broker_certificate_ends = event.broker_certificate_ends
        if isinstance(event, Disconnected) and SAME_NAME in event.reason:
            event = Disconnected(f"another coordinator of fleet {self.fleet!r} took our connection; end one of the two")
        self.inbox.put(event)

    def _on_coordinator(self, event: Received) -> None:
        body = body_of(event)
        if not isinstance(body, Claim | CoordinatorState) or body.boot == self._boot:
            return
        if isinstance(body, Claim):
            # Not retained: the broker has it already, and devices know this boot.
            self.link.publish(self._presence, self._state(online=True))
        elif event.retained and self._connects > 1:
            # Not every broker says why it closed a connection; but whoever had it in between has left a presence.
            _log.warning(
                "another coordinator of fleet %r was at work while we were away; end one of the two", self.fleet
            )

    def _state(self, *, online: bool) -> bytes:
        return encode(Envelope(CoordinatorState(online=online, boot=self._boot)))


def interrupts_into(inbox: EventQueue) -> AbstractContextManager[None]:
    """SIGINT and SIGTERM become events.

    In another thread than the first, where Python sets no handlers, they stay what they are.
    """
    if threading.current_thread() is not threading.main_thread():
        return nullcontext()
    return signals_told(lambda _: inbox.put(Interrupt()))
