"""Sources of a console's status messages: a broker, or the coordinator that started it."""

from __future__ import annotations

import secrets
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fedpatch.coordinator.console.beside import events_of
from fedpatch.coordinator.console.feed import Feed
from fedpatch.shared.mqtt.broker_settings import BrokerSettings, link_options
from fedpatch.shared.mqtt.client import MqttLink
from fedpatch.shared.wire.topics import watcher_filters


@contextmanager
def from_broker(settings: BrokerSettings, feed: Feed) -> Iterator[None]:
    """Give the feed the messages of a broker within the block. A broker that does not answer is retried for ever."""
    link = MqttLink(
        settings.broker,
        client_id=f"fedpatch.{settings.fleet}.console.{secrets.token_hex(4)}",
        events=feed.events.put,
        **link_options(settings),
        clean_start=True,
    )
    link.subscribe(*watcher_filters(settings.fleet))
    link.start()
    try:
        yield
    finally:
        link.stop(0.0)


@contextmanager
def from_stdin(fleet: str, feed: Feed, ended: Callable[[], None]) -> Iterator[None]:
    """Give the feed the statuses on stdin within the block; call `ended` at their end.

    Args:
        fleet: Name of the fleet.
        feed: Takes the statuses.
        ended: Called from a thread.
    """

    def read() -> None:
        # Python closes sys.stdin when it ends, and aborts if a thread waits in it.
        with open(sys.stdin.fileno(), "rb", closefd=False) as pipe:
            for event in events_of(pipe, fleet):
                feed.events.put(event)
        ended()

    threading.Thread(target=read, name="statuses", daemon=True).start()
    yield
