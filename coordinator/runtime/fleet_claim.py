"""The claim of a fleet: a coordinator checks that no other one is running before it uses the client id of the fleet.

Two coordinators with one client id would disconnect each other for ever, so the claim is published under another id. If the
broker's retained presence is offline, the check takes no time. If a coordinator died with its broker, the check waits once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

from msgspec import UNSET

from fedpatch.coordinator.settings import RunSettings
from fedpatch.shared.errors import BrokerError, UsageError, WireError
from fedpatch.shared.mqtt.broker_settings import link_options
from fedpatch.shared.mqtt.client import Connected, Disconnected, LinkEvent, MqttLink, Received
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.codec import decode, encode
from fedpatch.shared.wire.messages import Body, Claim, CoordinatorState, Envelope

# The time that a machine may pause while it swaps or waits for its SD card.
ANSWER_S = 5.0
CONNECT_TIMEOUT_S = 10.0
# The time for the broker to return this claim, after the retained messages.
_ECHO_S = 5.0

_log = logging.getLogger("fedpatch.coordinator")


def client_id(fleet: str) -> str:
    """Return the client id of the coordinator of `fleet`. No device has it, since device names contain no dot."""
    return f"fedpatch.{fleet}.coordinator"


def acquire_fleet(
    settings: RunSettings,
    boot: str,
    *,
    make_link: Callable[..., MqttLink] = MqttLink,
    received: SimpleQueue[LinkEvent] | None = None,
    clock: Callable[[], float] = time.monotonic,
    leader_epoch: int | None = None,
    attempts: int | None = None,
) -> None:
    """Return if no other coordinator of the fleet is running.

    Args:
        settings: Broker and fleet.
        boot: Nonce of this coordinator's start.
        make_link: Makes the connection; takes the arguments of MqttLink.
        received: An empty queue for the events of the connection.
        clock: Returns monotonic seconds.
        leader_epoch: Epoch of this coordinator, if it leads a fleet with standbys: coordinators of lower epochs are ignored.
        attempts: Number of attempts to connect; None: as many as fit in CONNECT_TIMEOUT_S.

    Raises:
        UsageError: Another coordinator is running.
        BrokerError: The broker does not answer.
    """
    received = SimpleQueue() if received is None else received
    topic = topics.coordinator_state(settings.fleet)
    link = make_link(
        settings.broker,
        client_id=f"{client_id(settings.fleet)}.{boot}",
        events=received.put,
        **link_options(settings),
        clean_start=True,
    )
    link.subscribe(topic)
    link.start()
    try:
        retains = _connected(link, received, attempts).retain_available
        link.publish(topic, encode(Envelope(Claim(boot))))
        if _answered(received, boot, clock, retains=retains, leader_epoch=leader_epoch):
            raise UsageError(
                f"{link.broker}: another coordinator is at work for fleet {settings.fleet!r} (on another machine, or in "
                "another state directory); wait for it, end it first, or use another --fleet"
            )
    finally:
        link.stop()


def _connected(link: MqttLink, received: SimpleQueue[LinkEvent], attempts: int | None) -> Connected:
    """Wait for the connection; raise BrokerError after so many failed attempts, or after CONNECT_TIMEOUT_S."""
    for _ in range(attempts or 0):
        try:
            event = received.get(timeout=CONNECT_TIMEOUT_S)
        except Empty:
            break
        if isinstance(event, Connected):
            return event
        if isinstance(event, Disconnected):
            raise BrokerError(event.reason)
    return link.wait_connected(0.0 if attempts else CONNECT_TIMEOUT_S)


def body_of(event: Received) -> Body | None:
    """Return the body of a message on the topic of the presence; None if it is no message."""
    try:
        return decode(event.payload).body
    except WireError:
        return None


def _answered(
    received: SimpleQueue[LinkEvent],
    boot: str,
    clock: Callable[[], float],
    *,
    retains: bool,
    leader_epoch: int | None = None,
) -> bool:
    """Return whether another coordinator answers the claim; a retained presence alone is no answer."""
    asked, maybe_there = False, not retains
    until = clock() + _ECHO_S
    while (left_s := until - clock()) > 0 and (maybe_there or not asked):
        try:
            event = received.get(timeout=left_s)
        except Empty:
            break
        if not isinstance(event, Received):
            continue
        body = body_of(event)
        if isinstance(body, CoordinatorState) and body.boot != boot and not _is_former(body, leader_epoch):
            maybe_there = body.online
            if body.online and not event.retained:
                return True
        elif isinstance(body, Claim) and body.boot == boot:
            asked, until = True, clock() + ANSWER_S
    if not asked:
        _log.warning(
            "cannot check whether another coordinator is at work: the broker does not let this one read its own topic; "
            "if the broker has an acl_file, write it anew with `fedpatch broker acl`"
        )
    return False


def _is_former(state: CoordinatorState, leader_epoch: int | None) -> bool:
    """Return whether a presence is of a leader with an epoch below `leader_epoch`."""
    return leader_epoch is not None and state.leader_epoch is not UNSET and state.leader_epoch < leader_epoch
