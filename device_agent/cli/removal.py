"""Clears the retained messages of a device: its presence at the fleet's broker, its discovery and state at its owner's bus."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from queue import Empty, SimpleQueue

from fedpatch.device_agent.bus.home_assistant import ONLINE, BusTopics, discovery
from fedpatch.device_agent.bus.settings import FORMS, BusSettings
from fedpatch.device_agent.runtime.presence import Identity
from fedpatch.device_agent.settings import AgentSettings
from fedpatch.device_agent.state.status_file import LOCK_NAME, host_as_device_id
from fedpatch.shared.app.locks import is_held
from fedpatch.shared.config.load import load
from fedpatch.shared.errors import BrokerError, UsageError
from fedpatch.shared.mqtt.broker_settings import BrokerSettings, link_options
from fedpatch.shared.mqtt.client import MqttLink
from fedpatch.shared.mqtt.events import LinkEvent, Received
from fedpatch.shared.wire import topics

ANSWER_S = 2.0
"""Longest wait for a retained message, which a broker sends right after the subscription."""


def clear_presence(settings: AgentSettings, connect_s: float, send_s: float) -> str:
    """Clear the device's retained state, and return the device's name.

    Args:
        settings: Settings of the agent, which must have ended.
        connect_s: Longest wait for the broker.
        send_s: Longest wait for its acknowledgement.

    Raises:
        UsageError: The agent is running.
        BrokerError: The broker does not answer.
    """
    lock = settings.state_dir / LOCK_NAME
    if lock.exists() and is_held(lock):
        raise UsageError(
            f"the agent is running with {settings.state_dir}; end it first: systemctl disable --now fedpatch-agent"
        )
    identity = Identity.new(settings.fleet, settings.device_id or host_as_device_id())
    _clear(settings, identity.client_id, [topics.device_state(identity.fleet, identity.device)], connect_s, send_s)
    return identity.device


def clear_bus(file: Path, agent: AgentSettings, device: str, connect_s: float, send_s: float) -> Sequence[str]:
    """Clear what `fedpatch-agent bus` has retained, in every form of discovery; return the topics.

    Args:
        file: Settings file of the bus.
        device: Name of the device, unless the file names it.
        connect_s: As of `clear_presence`.
        send_s: As of `clear_presence`.

    Raises:
        UsageError: The bus is running: it would retain all of it again.
        BrokerError: The broker does not answer.
    """
    settings = load(BusSettings, file=file, environ=os.environ, flags={})
    fleet = settings.fleet if settings.fleet != BusSettings.fleet else agent.fleet
    bus = BusTopics(settings.topic, fleet, settings.device_id or device)
    messages = [discovery(bus, settings.discovery_prefix, form, switch=True) for form in FORMS]
    retained = list(dict.fromkeys([topic for one in messages for topic in one] + [bus.state, bus.availability]))
    if _is_online(settings, bus, connect_s, send_s):
        raise UsageError(
            f"{bus.device} is still on the bus; end it first: systemctl disable --now fedpatch-bus; if it has ended and its "
            "broker does not know (a power cut), start it before: systemctl start fedpatch-bus"
        )
    _clear(settings, f"fedpatch-bus.{bus.fleet}.{bus.device}", retained, connect_s, send_s)
    return retained


def _is_online(settings: BusSettings, bus: BusTopics, connect_s: float, send_s: float) -> bool:
    """Return whether the bus runs, by its retained availability; False where none comes within ANSWER_S."""
    events: SimpleQueue[LinkEvent] = SimpleQueue()
    # Under the name of the bus, this connection would end that of a running one, and the last will would say offline.
    name = f"fedpatch-bus.{bus.fleet}.{bus.device}.remove"
    link = MqttLink(settings.broker, client_id=name, events=events.put, **link_options(settings), clean_start=True)
    link.subscribe(bus.availability)
    link.start()
    try:
        link.wait_connected(connect_s)
        give_up_at = time.monotonic() + ANSWER_S
        while True:
            event = events.get(timeout=max(0.0, give_up_at - time.monotonic()))
            if isinstance(event, Received):
                return event.payload == ONLINE.encode()
    except Empty:
        return False
    finally:
        link.stop(send_s)


def _clear(settings: BrokerSettings, client_id: str, retained: Sequence[str], connect_s: float, send_s: float) -> None:
    link = MqttLink(
        settings.broker,
        client_id=client_id,
        events=lambda _: None,
        **link_options(settings),
        clean_start=True,
    )
    link.start()
    try:
        link.wait_connected(connect_s)
        for topic in retained:
            link.publish(topic, b"", retain=True)
    finally:
        link.stop(send_s)
    if not link.idle:
        raise BrokerError(f"{settings.broker}: did not acknowledge within {send_s:g} s; repeat the command")
