"""A link with a profile keeps the limits of a hosted broker; the broker closes the connection of a link without it."""

from __future__ import annotations

import pytest

from fedpatch.shared.mqtt.broker_profile import PROFILES, UNLIMITED
from fedpatch.shared.mqtt.events import Disconnected, Received
from tests.broker.hosted.limited_broker import limited_broker
from tests.support.brokers import client

pytestmark = pytest.mark.broker

FILTERS = tuple(f"fedpatch/1/home/blob/{number}/+" for number in range(24))


def exchange(url: str, count: int, size: int, **options: object) -> None:
    """Publish `count` messages of `size` bytes, and return once all have arrived; TimeoutError if the link breaks."""
    with client(url, "reader", "data/#") as reader, client(url, "writer", *FILTERS, **options) as writer:
        reader.settle()
        for number in range(count):
            writer.link.publish(f"data/{number}", bytes(size), retain=True)
        missing = {f"data/{number}" for number in range(count)}
        while missing:
            missing.discard(reader.wait(Received, patience_s=20.0).topic)
        writer.link.unsubscribe(*FILTERS)


@pytest.mark.medium
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize(("count", "size"), [(250, 100), (12, 60_000)], ids=["many-messages", "many-bytes"])
def test_profile_keeps_the_limits(profile: str, count: int, size: int):
    with limited_broker(profile) as broker:
        exchange(broker.url, count, size, profile=PROFILES[profile])
        assert broker.violations == []


@pytest.mark.parametrize(
    ("profile", "count", "size", "limit"),
    [
        ("aws", 400, 100, "messages a second"),
        ("aws", 12, 100_000, "bytes a second"),
        ("aws", 1, 130_000, "message bytes"),
        ("azure", 1, 70_000, "retained bytes"),
        ("azure", 1, 1, "filters"),
    ],
)
def test_without_the_profile_the_limit_is_exceeded(profile: str, count: int, size: int, limit: str):
    with limited_broker(profile) as broker, client(broker.url, "writer", profile=UNLIMITED) as writer:
        if limit == "filters":
            writer.link.subscribe(*FILTERS)
        for number in range(count):
            writer.link.publish(f"data/{number}", bytes(size), qos=0 if count > 3 else 1, retain=True)
        writer.wait(Disconnected, patience_s=30.0)
        assert any(line.startswith(f"{limit}:") for line in broker.violations), broker.violations
