"""A look for another agent under the name of this device, with a client id of its own, before the agent connects.

The broker ends the connection of a client when another one connects with its id. So an agent that may fail at its task or data
would cut off a running one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

from fedpatch.device_agent.runtime.begun_anew import is_foreign
from fedpatch.device_agent.runtime.presence import Identity
from fedpatch.shared.errors import FedpatchError, WireError
from fedpatch.shared.mqtt.broker_settings import BrokerSettings, link_options
from fedpatch.shared.mqtt.client import MqttLink
from fedpatch.shared.mqtt.events import LinkEvent, Received
from fedpatch.shared.mqtt.traffic import Traffic
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.codec import decode
from fedpatch.shared.wire.messages import DeviceState

CONNECT_S = 2.0
"""Longest wait for the broker; without an answer nobody is taken to be online."""
RETAINED_S = 0.3
"""Longest wait for the retained state; a name that was never used has none."""


@dataclass(frozen=True)
class NameChecked:
    """The answer.

    Attributes:
        in_use: Whether another agent is online under this device's name.
        is_foreign: Whether the last start under this name has ended and is not of this state directory.
        traffic: What the look has moved.
    """

    in_use: bool
    is_foreign: bool = False
    traffic: Traffic = field(default_factory=Traffic)


def ask_in_thread(
    settings: BrokerSettings, identity: Identity, boots: Collection[str], events: Callable[[NameChecked], None]
) -> None:
    """Ask in a thread of its own, and pass the answer to `events`.

    Args:
        boots: Nonces of earlier starts of this agent.
        events: Takes the answer; it must only enqueue it.
    """

    def ask() -> None:
        events(check_name(settings, identity, boots))

    threading.Thread(target=ask, name="name check", daemon=True).start()


def check_name(settings: BrokerSettings, identity: Identity, boots: Collection[str]) -> NameChecked:
    """Find out whether the broker retains a state of another agent; not in use where that cannot be found out.

    Args:
        boots: Starts of this agent, whose own states do not count.
    """
    received: SimpleQueue[LinkEvent] = SimpleQueue()
    try:
        link = MqttLink(
            settings.broker,
            client_id=f"{identity.client_id}.look",
            events=received.put,
            **link_options(settings),
            clean_start=True,
        )
    except FedpatchError:
        return NameChecked(in_use=False)
    link.subscribe(topics.device_state(identity.fleet, identity.device))
    state = None
    with suppress(FedpatchError):
        link.start()
        try:
            link.wait_connected(CONNECT_S)
            state = _state(received)
        finally:
            link.stop(0.0)
    own = (*boots, identity.boot)
    in_use = state is not None and state.online and state.boot not in own
    return NameChecked(in_use, is_foreign(state, own), link.traffic)


def _state(received: SimpleQueue[LinkEvent]) -> DeviceState | None:
    give_up_at = time.monotonic() + RETAINED_S
    while True:
        try:
            event = received.get(timeout=max(0.0, give_up_at - time.monotonic()))
        except Empty:
            return None
        if isinstance(event, Received):
            try:
                body = decode(event.payload).body
            except WireError:
                return None
            return body if isinstance(body, DeviceState) else None
