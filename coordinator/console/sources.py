"""Sources of a console's status messages: a broker, or the coordinator that started it."""

from __future__ import annotations

import logging
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fedpatch.coordinator.console.beside import events_of
from fedpatch.coordinator.console.feed import Feed
from fedpatch.coordinator.observability.status_follower import StatusFollower
from fedpatch.shared.errors import FedpatchError
from fedpatch.shared.mqtt.broker_settings import BrokerSettings, link_options
from fedpatch.shared.mqtt.client import MqttLink
from fedpatch.shared.wire.topics import watcher_filters

LOOK_EVERY_S = 2.0
"""Pause between two looks for a newer run."""

_log = logging.getLogger("fedpatch.console")


@contextmanager
def from_broker(
    settings: BrokerSettings | None, feed: Feed, newest: Callable[[], BrokerSettings | None]
) -> Iterator[None]:
    """Give the feed the messages of a broker within the block. A broker that does not answer is retried for ever.

    A newer run may use another broker: then the feed follows that one.

    Args:
        settings: The connection at the start; None before the first run.
        newest: Return the connection of the newest run, None without one; called from a thread, every LOOK_EVERY_S seconds.
    """
    first = None if settings is None else _connected(settings, feed)
    ended = threading.Event()

    def follow() -> None:
        known, link = settings, first
        while not ended.wait(LOOK_EVERY_S):
            try:
                found = newest()
                if found is None or found == known:
                    continue
                if link is not None:
                    link.stop(0.0)
                feed.follow(StatusFollower(found.fleet, found.broker, time.monotonic()))
                known, link = found, _connected(found, feed)
            except FedpatchError as error:
                _log.debug("no other broker: %s", error)  # the page shows what the registry says
        if link is not None:
            link.stop(0.0)

    thread = threading.Thread(target=follow, name="newest run's broker", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _connected(settings: BrokerSettings, feed: Feed) -> MqttLink:
    link = MqttLink(
        settings.broker,
        client_id=f"fedpatch.{settings.fleet}.console.{secrets.token_hex(4)}",
        events=feed.events.put,
        **link_options(settings),
        clean_start=True,
    )
    link.subscribe(*watcher_filters(settings.fleet))
    link.start()
    return link


@contextmanager
def from_stdin(fleet: str, feed: Feed, ended: Callable[[], None]) -> Iterator[None]:
    """Give the feed the statuses on stdin within the block; call `ended` at their end.

    Args:
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
