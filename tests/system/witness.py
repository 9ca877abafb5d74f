"""Who had an update committed in which round, as told on the wire to the devices."""

from __future__ import annotations

from fedpatch.shared.mqtt.client import Received
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.codec import decode
from fedpatch.shared.wire.messages import Committed
from tests.support.brokers import Client


class Witness:
    """Reads along what the coordinator tells the devices of `fleet`, by way of a client that it is given."""

    def __init__(self, client: Client, fleet: str) -> None:
        self._client = client
        self._fleet = fleet
        client.link.subscribe(topics.down(fleet, "any").replace("any", "+"))
        client.settle()

    def rounds(self, run: str) -> list[list[str]]:
        """The devices whose updates were committed in rounds 1, 2, ... of `run`."""
        self._client.settle()
        committed: dict[int, set[str]] = {}
        for event in self._client.seen:
            if not isinstance(event, Received):
                continue
            topic = topics.parse_topic(self._fleet, event.topic)
            if topic is None or topic.kind != "down":
                continue
            envelope = decode(event.payload)
            if isinstance(envelope.body, Committed) and envelope.run == run:
                committed.setdefault(envelope.round, set()).add(topic.device)
        return [sorted(committed.get(number, ())) for number in range(1, max(committed, default=0) + 1)]
