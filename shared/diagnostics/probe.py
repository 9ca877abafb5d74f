"""`Probe`, a broker connection of `doctor` that waits for the result of each step."""

from __future__ import annotations

import queue
import time
from dataclasses import dataclass
from typing import Any, Literal, Self

from fedpatch.shared.mqtt.broker_settings import BrokerSettings, link_options
from fedpatch.shared.mqtt.client import MqttLink
from fedpatch.shared.mqtt.connection_errors import Reason
from fedpatch.shared.mqtt.events import Connected, Disconnected, LinkEvent, Received

ANSWER_TIMEOUT_S = 3.0
CONNECT_TIMEOUT_S = 6.0

_FAILURE = 0x80

Taken = Literal["taken", "refused", "lost"]


@dataclass(frozen=True)
class _Answered:
    """The broker answered a PUBLISH or SUBSCRIBE; `what` is the topic or filter."""

    what: str
    refused: bool


class _ProbeLink(MqttLink):
    """A link that reports the broker's answers as events instead of logging them."""

    def __init__(self, url: str, *, events: queue.SimpleQueue[LinkEvent | _Answered], **options: Any) -> None:
        super().__init__(url, events=events.put, **options)
        self._answers = events

    def _on_publish(self, mid: int, reason: Reason) -> None:
        message = self._session.acknowledged(mid)
        if message is not None:
            self._answers.put(_Answered(message.topic, reason.value >= _FAILURE))

    def _on_subscribe(self, filters: tuple[str, ...], reasons: Any) -> None:
        for topic_filter, reason in zip(filters, reasons, strict=False):
            self._answers.put(_Answered(topic_filter, reason.value >= _FAILURE))


class Probe:
    """Connection for the duration of a `with` block, which raises BrokerError if it cannot connect.

    Args:
        settings: Settings of the connection.
        client_id: MQTT client id, never that of an agent.
        keeps_session: Whether the broker shall keep the session.
        topics: Filters that are subscribed from the beginning. Messages of a kept session arrive at once, and only
            those on these filters are received.
    """

    def __init__(
        self, settings: BrokerSettings, client_id: str, *, keeps_session: bool = False, topics: tuple[str, ...] = ()
    ) -> None:
        self._events: queue.SimpleQueue[LinkEvent | _Answered] = queue.SimpleQueue()
        self._link = _ProbeLink(
            settings.broker,
            client_id=client_id,
            events=self._events,
            **link_options(settings),
            clean_start=not keeps_session,
        )
        self._link.subscribe(*topics)
        self.received: list[Received] = []
        self.fault = ""
        self.ended = False  # by the broker, or the network

    def __enter__(self) -> Self:
        self._link.start()
        try:
            self.connected: Connected = self._link.wait_connected(CONNECT_TIMEOUT_S)
        except BaseException:
            self._link.stop(0.0)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._link.stop(0.0 if self.fault else ANSWER_TIMEOUT_S)

    def send(self, topic: str, payload: bytes = b"", *, retain: bool = False) -> None:
        """Publish without waiting.

        Args:
            topic: Topic without wildcards.

        Raises:
            BrokerError: The message exceeds the broker's packet limit.
        """
        self._link.publish(topic, payload, retain=retain)

    def publish(
        self, topic: str, payload: bytes = b"", *, retain: bool = False, timeout_s: float = ANSWER_TIMEOUT_S
    ) -> Taken:
        """Publish and wait for the broker's answer.

        Args:
            topic: Topic without wildcards.

        Returns:
            `lost` if the broker closes the connection or does not answer in time.
        """
        self.send(topic, payload, retain=retain)
        return self._answer(topic, timeout_s)

    def subscribe(self, *filters: str) -> list[str]:
        """Subscribe, wait for the answers, and return the filters that the broker refused."""
        self._link.subscribe(*filters)
        return [topic_filter for topic_filter in filters if self._answer(topic_filter) == "refused"]

    def gets(self, topic: str, payload: bytes | None = None, timeout_s: float = ANSWER_TIMEOUT_S) -> Received | None:
        """Return a message that was received or arrives in time.

        Args:
            payload: Its payload; None: any.

        Returns:
            The message, or None.
        """

        def fits(event: object) -> bool:
            return isinstance(event, Received) and event.topic == topic and payload in (None, event.payload)

        known = next((message for message in self.received if fits(message)), None)
        event = known or self._wait(fits, timeout_s)
        return event if isinstance(event, Received) else None

    def listen(self, seconds: float) -> None:
        """Receive messages until none has arrived for `seconds`."""
        while self._next(seconds) is not None:
            pass

    def _answer(self, what: str, timeout_s: float = ANSWER_TIMEOUT_S) -> Taken:
        answer = self._wait(lambda event: isinstance(event, _Answered) and event.what == what, timeout_s)
        if not isinstance(answer, _Answered):
            self.fault = self.fault or f"no answer within {timeout_s:g} s"
            return "lost"
        return "refused" if answer.refused else "taken"

    def _wait(self, fits: Any, timeout_s: float) -> LinkEvent | _Answered | None:
        give_up_at = time.monotonic() + timeout_s
        while not self.fault:
            event = self._next(give_up_at - time.monotonic())
            if event is None or fits(event):
                return event
        return None

    def _next(self, timeout_s: float) -> LinkEvent | _Answered | None:
        try:
            event = self._events.get(timeout=max(0.0, timeout_s))
        except queue.Empty:
            return None
        if isinstance(event, Received):
            self.received.append(event)
        if isinstance(event, Disconnected):
            self.fault = event.reason
            self.ended = True
        return event
