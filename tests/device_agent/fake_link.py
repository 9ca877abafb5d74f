"""A link without a network, which keeps the messages that device `pi` of fleet `lab` publishes."""

from __future__ import annotations

from fedpatch.shared.mqtt.traffic import Traffic
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.codec import decode
from fedpatch.shared.wire.messages import Body


class Wire:
    """A link that delivers to a list."""

    def __init__(self) -> None:
        self.up: list[Body] = []
        self.states: list[Body] = []
        self.patient = False
        self.started = False
        self.subscribed: set[str] = set()
        self.traffic = Traffic()

    def start(self) -> None:
        """Nothing to connect to."""
        self.started = True

    @property
    def idle(self) -> bool:
        return True

    def stop(self) -> None:
        """Nothing to leave."""

    def subscribe(self, *filters: str) -> None:
        """Note the filters; the link delivers no messages."""
        self.subscribed.update(filters)

    def unsubscribe(self, *filters: str) -> None:
        """Remove the filters."""
        self.subscribed.difference_update(filters)

    def check(self, within_s: float) -> None:
        """Do nothing: this link answers always."""

    def use_long_backoff(self, patient: bool) -> None:
        self.patient = patient

    def publish(self, topic: str, payload: bytes, *, qos: int = 1, retain: bool = False) -> bool:
        """Keep the message, unless it is a chunk."""
        self.traffic = self.traffic.plus(Traffic(sent_bytes=len(payload)))
        if topic == topics.up("lab", "pi"):
            self.up.append(decode(payload).body)
        if topic == topics.device_state("lab", "pi"):
            self.states.append(decode(payload).body)
        return True
