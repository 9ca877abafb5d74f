"""The process of `fedpatch-agent bus`: publishes the state after each change, handles the switch, answers examples."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from fedpatch.device_agent.bus.device_state import read_state, set_paused
from fedpatch.device_agent.bus.home_assistant import OFF, OFFLINE, ON, ONLINE, BusTopics, discovery
from fedpatch.device_agent.bus.settings import BusSettings, ServedTopic, all_served
from fedpatch.device_agent.state.status_file import read_standing
from fedpatch.shared.app.signals import exit_code_of, forward_signals
from fedpatch.shared.errors import BrokerError, FedpatchError, UsageError
from fedpatch.shared.mqtt.broker_settings import exposure, password_of
from fedpatch.shared.mqtt.client import Connected, Disconnected, LinkEvent, MqttLink, Received
from fedpatch.shared.mqtt.tls_context import tls_context
from fedpatch.shared.mqtt.url import parse_broker_url

if TYPE_CHECKING:
    from fedpatch.device_agent.bus.predictions import Features
    from fedpatch.device_agent.models.personal import PersonalModel

_log = logging.getLogger("fedpatch.bus")
RELOAD_EVERY_S = 60.0

Publish = Callable[[str, bytes, bool], object]


def run_bus(settings: BusSettings) -> int:
    """Serve the bus until SIGTERM or Ctrl-C; return the exit code.

    Raises:
        UsageError: The password file or a file of TLS cannot be used.
    """
    broker, password = parse_broker_url(settings.broker), password_of(settings)
    tls_context(broker, settings.tls_files)  # report a wrong file now, not once the device's identity is known
    if warning := exposure(broker):
        _log.warning(warning)
    events: SimpleQueue[LinkEvent | int] = SimpleQueue()
    with forward_signals(events.put):
        topics = _wait_for_identity(settings, events)
        if isinstance(topics, int):
            return exit_code_of(topics)
        link = MqttLink(
            settings.broker,
            client_id=f"fedpatch-bus.{topics.fleet}.{topics.device}",
            events=events.put,
            will=(topics.availability, OFFLINE.encode()),
            username=settings.username,
            password=password,
            tls=settings.tls_files,
            profile=settings.profile,
            clean_start=True,
        )
        bus = Bus(settings, topics, lambda topic, payload, retain: link.publish(topic, payload, retain=retain))
        link.subscribe(*bus.filters)
        link.start()
        try:
            return _loop(bus, events, settings.every_s)
        finally:
            link.publish(topics.availability, OFFLINE.encode(), retain=True)
            link.stop()


def _wait_for_identity(settings: BusSettings, events: SimpleQueue[LinkEvent | int]) -> BusTopics | int:
    """Return the topics once the device's identity is known, or a signal that arrives earlier.

    A device that is announced under a wrong name would stay in Home Assistant, as its messages are retained.
    """
    reported = ""
    while True:
        try:
            return topics_of(settings)
        except FedpatchError as error:
            if str(error) != reported:
                reported = str(error)
                _log.warning("%s, or set device_id; waiting", reported)
        try:
            event = events.get(timeout=settings.every_s)
        except Empty:
            continue
        if isinstance(event, int):
            return event


def topics_of(settings: BusSettings) -> BusTopics:
    """Return the topics; `device_id` and a `fleet` other than the default take precedence over the names in the agent's status.

    Raises:
        FedpatchError: Neither the settings nor the agent's status name a device.
    """
    directory = settings.state_dir.expanduser()
    status: Mapping[str, Any] = {}
    try:
        status = read_standing(directory).status
    except FedpatchError:
        if not settings.device_id:
            raise
    device = settings.device_id or status.get("device_id")
    if not device:
        raise UsageError(f"the agent in {directory} has written no status yet; start it")
    fleet = settings.fleet if settings.fleet != BusSettings.fleet else status.get("fleet", settings.fleet)
    return BusTopics(settings.topic, fleet, device)


def _loop(bus: Bus, events: SimpleQueue[LinkEvent | int], every_s: float) -> int:
    due = 0.0
    while True:
        now = time.monotonic()
        if now >= due:
            bus.look(now)
            due = now + every_s
        try:
            event = events.get(timeout=max(0.0, due - time.monotonic()))
        except Empty:
            continue
        if isinstance(event, int):
            return exit_code_of(event)
        bus.take(event)


class Bus:
    """Reactions of the process to events of its connection and to each reading of the state.

    Args:
        settings: The settings.
        topics: Topics of the device.
        publish: Publishes a payload on a topic, retained or not.
    """

    def __init__(self, settings: BusSettings, topics: BusTopics, publish: Publish) -> None:
        self._settings, self._topics, self._publish = settings, topics, publish
        self._state_dir = settings.state_dir.expanduser()
        self._services = all_served(settings.serve)
        self._model: PersonalModel | None = None
        self._features: Features | None = None
        self._reload_at = 0.0
        self._connected = False
        self._last = b""

    @property
    def filters(self) -> list[str]:
        """Filters to subscribe to, without those that another one covers: a broker may deliver a message once for each."""
        own = [self._topics.may_work] if self._settings.switch else []
        services = list({service.source: service for service in self._services}.values())
        for one in tuple(services):
            if any(other.covers(one) for other in services if other is not one):
                services.remove(one)
        return [*own, *(service.source for service in services)]

    def take(self, event: LinkEvent) -> None:
        """Handle an event of the connection."""
        match event:
            case Connected(protocol=protocol):
                _log.info("device %s: connected to the broker, MQTT %s", self._topics.device, protocol)
                self._connected = True
                self._announce()
            case Disconnected(reason=reason):
                self._connected = False
                _log.warning("broker: %s; trying again", reason)
            case Received(topic=topic, payload=payload, retained=retained):
                if self._settings.switch and topic == self._topics.may_work:
                    self._switch(payload, retained)
                    return
                for service in self._services:
                    if service.takes(topic):
                        self._predict(service, payload)

    def look(self, now: float) -> None:
        """Publish the state if it has changed, and open a newer model once a minute."""
        self._show()
        if self._services and now >= self._reload_at:
            self._reload_at = now + RELOAD_EVERY_S
            self._reload()

    def _announce(self) -> None:
        """Publish all retained messages, which the broker may have lost."""
        form = self._settings.discovery
        messages = discovery(self._topics, self._settings.discovery_prefix, form, switch=self._settings.switch)
        for topic, message in messages.items():
            self._publish(topic, json.dumps(message).encode() if message else b"", True)
        self._publish(self._topics.availability, ONLINE.encode(), True)
        self._last = b""
        self._show()

    def _show(self) -> None:
        state = json.dumps(read_state(self._state_dir)).encode()
        if self._connected and state != self._last:
            self._last = state
            self._publish(self._topics.state, state, True)

    def _switch(self, payload: bytes, retained: bool) -> None:
        if not payload:
            return  # a retained command was cleared
        if retained or payload not in (ON.encode(), OFF.encode()):
            _log.warning("ignored on %s: only ON and OFF that are not retained are commands", self._topics.may_work)
            return
        try:
            set_paused(self._state_dir, payload == OFF.encode())
        except FedpatchError as error:
            _log.error("%s", error)
        self._show()

    def _reload(self) -> None:
        from fedpatch.device_agent.models.personal import PersonalModel
        from fedpatch.shared.tasks.task import find_task

        try:
            if self._model is not None:
                self._model.reload_if_newer()
                return
            self._model = PersonalModel.open(self._state_dir, self._settings.task)
        except FedpatchError as error:
            _log.warning("no predictions: %s", error)
            return
        known = self._model.metadata
        try:
            self._features = find_task(known.task_ref or known.task).features
        except FedpatchError as error:
            _log.warning("payloads are examples: the task's features cannot be had: %s", error)

    def _predict(self, service: ServedTopic, payload: bytes) -> None:
        from fedpatch.device_agent.bus.predictions import answer

        if self._model is None:
            answered = {"error": "there is no personal model yet"}
        else:
            answered = answer(self._model, payload, self._features)
        try:
            self._publish(service.target, json.dumps(answered).encode(), False)
        except BrokerError as error:
            _log.warning("no prediction: %s", str(error).partition(";")[0])  # its remedy is for a run
            refused = {"error": "the outputs are too large for the broker"}
            self._publish(service.target, json.dumps(refused).encode(), False)
