"""The coordinator's connection to the broker: its presence, the claim of its fleet, and messages both ways."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import Self

from msgspec import UNSET

from fedpatch.coordinator.guard.ingress_filter import IngressFilter
from fedpatch.coordinator.runtime.broker_drops import BrokerDrops
from fedpatch.coordinator.runtime.broker_refusals import BrokerRefusals
from fedpatch.coordinator.runtime.event_queue import AdmittedMessage, Deposed, EventQueue
from fedpatch.coordinator.runtime.fleet_claim import CONNECT_TIMEOUT_S, acquire_fleet, body_of, client_id
from fedpatch.coordinator.runtime.ports import REAL, Ports
from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared.errors import BrokerError, LeadershipLost, UsageError
from fedpatch.shared.mqtt.broker_profile import NO_PROFILE
from fedpatch.shared.mqtt.broker_settings import exposure, link_options
from fedpatch.shared.mqtt.certificate_holder import check_holder
from fedpatch.shared.mqtt.client import Connected, Disconnected, LinkEvent, Received
from fedpatch.shared.mqtt.connection_errors import SAME_NAME
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.codec import encode
from fedpatch.shared.wire.messages import Claim, CoordinatorState, Envelope

_log = logging.getLogger("fedpatch.coordinator")
# Messages that may wait for the broker: the chunks of a model, and a message to each device.
_MAX_QUEUED = 20_000


class Connection:
    """A context manager: the connection opens when the broker has answered, unless another coordinator of the fleet answers.

    Until it is closed, SIGINT and SIGTERM are events of `event_queue`, so that a Ctrl-C at the end of a run loses no result.

    Args:
        settings: Broker, fleet and identity.
        ports: The environment of the coordinator.

    Raises:
        BrokerError: The broker does not answer.
        UsageError: Another coordinator of the fleet is running.
    """

    def __init__(self, settings: RunSettings, ports: Ports = REAL) -> None:
        check_holder(settings.tls_files, settings.fleet, "coordinator")
        self.ports = ports
        self.event_queue = EventQueue(ports.clock, ports.queue())
        self.fleet = settings.fleet
        self.ingress_filter = IngressFilter(settings.max_devices)
        self._settings = settings
        self._boot = f"{ports.entropy.getrandbits(64):016x}"
        self._leadership = ports.leadership
        self._lost: LeadershipLost | None = None
        self._in_doubt = False
        self.leader_epoch = None if ports.leadership is None else ports.leadership.epoch
        self._presence = topics.coordinator_state(settings.fleet)
        self.link = ports.link(
            settings.broker,
            client_id=client_id(settings.fleet),
            events=self._take,
            will=(self._presence, self._state(online=False)),
            **link_options(settings),
            clean_start=True,
            max_queued=_MAX_QUEUED,
            gate=self._gate,
        )
        self.drops = BrokerDrops()
        self.refusals = BrokerRefusals()
        counts = topics.BROKER_COUNTS if settings.broker_profile == NO_PROFILE else ()
        self.link.subscribe(*topics.coordinator_filters(settings.fleet), *counts)
        self._open = ExitStack()
        self._connects = 0
        self.broker_certificate_ends: float | None = None
        self.chunk_bytes = settings.chunk_kib * 1024

    def __enter__(self) -> Self:
        if warning := exposure(self.link.broker):
            _log.warning(warning)
        try:
            if self._leadership is not None:
                self._leadership.on_loss(lambda: self.event_queue.put(Deposed()))
            self._claim()
            self.chunk_bytes = self.ports.chunk_bytes(self._settings, self._boot)
            self.link.start()
            self.established: Connected = self.link.wait_connected(CONNECT_TIMEOUT_S)
            self._open.enter_context(self.ports.interrupts(self.event_queue))
        except BaseException:
            self.link.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with self._open:
            if self._leads():
                self.announce(online=False)
                self.link.stop()
            else:  # another coordinator has its presence there
                self.link.stop(0.0)

    def _leads(self) -> bool:
        return self._lost is None and (self._leadership is None or self._leadership.leads)

    def must_lead(self) -> None:
        """Raise LeadershipLost if another coordinator leads the fleet."""
        if self._lost is not None:
            raise self._lost
        if self._leadership is not None:
            self._leadership.must_lead()

    def _gate(self) -> str:
        """Return why this coordinator must not connect or publish now; "" if it may. Called in the link's thread.

        A paused coordinator finds its connection closed when it goes on, whatever its clocks say. So a coordinator that was
        disconnected connects again only if no other one has begun: with standbys by the lock, else by a claim.
        """
        if not self._leads():
            return "this coordinator does not lead the fleet now"
        if self._leadership is None and self._in_doubt:
            return self._claim_again()
        return ""

    def _claim(self, attempts: int | None = None) -> None:
        """Claim the fleet. Raises as `acquire_fleet`, which also describes `attempts`."""
        ports = self.ports
        acquire_fleet(
            self._settings,
            self._boot,
            make_link=ports.link,
            received=ports.queue(),
            clock=ports.clock,
            leader_epoch=self.leader_epoch,
            attempts=attempts,
        )

    def _claim_again(self) -> str:
        try:
            self._claim(attempts=1)
        except BrokerError as error:
            return str(error)
        except UsageError:
            self._lost = LeadershipLost(
                f"another coordinator has taken over fleet {self.fleet!r} while this one was paused or disconnected; this one "
                "ends and publishes nothing more; end the other one before you resume this run"
            )
            self.event_queue.put(Deposed())
            return "another coordinator is at work"
        self._in_doubt = False
        return ""

    def _note_link(self, event: Connected | Disconnected) -> None:
        """Note whether the broker answers. Called in the link's thread."""
        if isinstance(event, Connected):
            self._connects += 1
            self.broker_certificate_ends = event.broker_certificate_ends
            if self._leadership is not None:
                self._leadership.broker_found()
            return
        self._in_doubt = self._connects > 0
        if self._leadership is not None:
            self._leadership.broker_lost()

    def announce(self, *, online: bool) -> None:
        """Publish the coordinator's presence."""
        self.link.publish(self._presence, self._state(online=online), retain=self.established.retain_available)

    def check_link(self, within_s: float) -> None:
        """Make the link anew unless the broker acknowledges this coordinator's presence within `within_s` seconds."""
        self.announce(online=True)
        self.link.check(within_s)

    def send(self, device: str, envelope: Envelope) -> int:
        """Send a message to a device and return its size in bytes; 0 if the queue is full.

        With a full queue the message is lost, like a message that the network loses: requests are repeated.
        """
        payload = encode(envelope)
        self.ingress_filter.sends(device, envelope)
        if self.link.publish(topics.down(self.fleet, device), payload):
            return len(payload)
        _log.warning("the outgoing queue is full; the message to %s is dropped (requests are repeated)", device)
        return 0

    def _take(self, event: LinkEvent) -> None:
        """Put an event of the link into the queue, unless it is for this connection. Called in the link's thread."""
        if isinstance(event, Received):
            self._on_received(event)
            return
        self._note_link(event)
        if isinstance(event, Disconnected) and SAME_NAME in event.reason:
            event = Disconnected(
                f"another coordinator of fleet {self.fleet!r} replaced this connection; end one of the two"
            )
        self.event_queue.put(event)

    def _on_received(self, event: Received) -> None:
        """Note counts of the broker, answer other coordinators, and put admitted messages of devices into the queue."""
        if self.drops.note(event.topic, event.payload) or self.refusals.note(event.topic, event.payload):
            return
        if event.topic == self._presence:
            self._on_coordinator(event)
            return
        topic = topics.parse_topic(self.fleet, event.topic)
        # A message that is not admitted is dropped before it enters the queue, so that a flood does not fill it.
        if topic is not None and event.payload and self.ingress_filter.admit(topic, len(event.payload)):
            self.event_queue.put(AdmittedMessage(topic, event.topic, event.payload))

    def _on_coordinator(self, event: Received) -> None:
        body = body_of(event)
        if not isinstance(body, Claim | CoordinatorState) or body.boot == self._boot:
            return
        if isinstance(body, Claim):
            # Not retained: the broker retains this presence already, and devices know this boot.
            self.link.publish(self._presence, self._state(online=True))
        elif self.leader_epoch is not None and not body.online and not event.retained:
            # The last will of a former leader has replaced this presence.
            self.link.publish(self._presence, self._state(online=True), retain=True)
        elif event.retained and self._connects > 1:
            # Some brokers give no reason for a closed connection, but the other coordinator has left a presence.
            _log.warning(
                "another coordinator of fleet %r was at work during the disconnection; end one of the two", self.fleet
            )

    def _state(self, *, online: bool) -> bytes:
        epoch = UNSET if self.leader_epoch is None else self.leader_epoch
        return encode(Envelope(CoordinatorState(online=online, boot=self._boot, leader_epoch=epoch)))
