"""A console listens to the broker of the newest run, also after a run at another broker has begun."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from fedpatch.coordinator.console import sources
from fedpatch.coordinator.console.feed import Feed
from fedpatch.coordinator.console.snapshot import Snapshot
from fedpatch.coordinator.observability.status_follower import StatusFollower
from fedpatch.shared.errors import UsageError
from fedpatch.shared.mqtt.broker_settings import BrokerSettings
from fedpatch.shared.wire.codec import encode
from fedpatch.shared.wire.messages import Envelope
from fedpatch.shared.wire.topics import run_status
from tests.coordinator.console.consoles import FLEET, wait_until
from tests.coordinator.observability.statuses import collecting
from tests.support.brokers import Mosquitto, client

pytestmark = [pytest.mark.medium, pytest.mark.broker]


@contextmanager
def _shown(settings: BrokerSettings | None, newest: Callable[[], BrokerSettings | None]) -> Iterator[list[Snapshot]]:
    found: list[Snapshot] = []
    follower = None if settings is None else StatusFollower(FLEET, settings.broker, 0.0)
    feed = Feed(None, follower, found.append)
    feed.start()
    try:
        with sources.from_broker(settings, feed, newest):
            yield found
    finally:
        feed.stop()


def _publish_status(url: str, run: str) -> None:
    message = collecting(run=run)
    data = encode(Envelope(message.status, task="digits", run=message.run, round=message.round))
    with client(url, "coordinator") as coordinator:
        coordinator.link.publish(run_status(FLEET), data, retain=True)
        coordinator.settle()


def _run_shown(found: list[Snapshot]) -> str:
    status = found[-1].live["status"] if found else None
    return str(status["run"]) if status else ""


def test_console_follows_a_newer_run_to_another_broker(monkeypatch):
    monkeypatch.setattr(sources, "LOOK_EVERY_S", 0.02)
    with Mosquitto() as first, Mosquitto() as second:
        _publish_status(first.url, "run-1")
        _publish_status(second.url, "run-2")
        newest = [BrokerSettings(broker=first.url, fleet=FLEET)]
        with _shown(newest[0], lambda: newest[-1]) as found:
            wait_until(lambda: _run_shown(found) == "run-1")
            first.kill()
            newest.append(BrokerSettings(broker=second.url, fleet=FLEET))
            wait_until(lambda: _run_shown(found) == "run-2" and found[-1].live["link"])


def test_console_that_began_before_the_first_run_shows_the_first_run(monkeypatch):
    monkeypatch.setattr(sources, "LOOK_EVERY_S", 0.02)
    begun: list[BrokerSettings] = []

    def newest() -> BrokerSettings | None:
        if not begun:
            raise UsageError("no run was begun here")
        return begun[0]

    with Mosquitto() as broker, _shown(None, newest) as found:
        _publish_status(broker.url, "run-1")
        begun.append(BrokerSettings(broker=broker.url, fleet=FLEET))
        wait_until(lambda: _run_shown(found) == "run-1")
