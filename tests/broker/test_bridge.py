"""The bridge of docs/how-to/brokers.md between two real mosquittos."""

from __future__ import annotations

import re

import pytest

from fedpatch.shared.mqtt.events import Received
from tests.docs.pages import OTHER
from tests.support.brokers import HOST, Mosquitto, client

UP, DOWN = "fedpatch/1/kitchen/dev/pi-1/up", "fedpatch/1/kitchen/dev/pi-1/down"


def _shown(port: int) -> str:
    """Return the block of the page, to a central broker on this machine without TLS."""
    (text,) = (one.text for one in OTHER if one.page == "docs/how-to/brokers.md" and one.text.startswith("connection"))
    return re.sub(r"bridge_cafile .*\n", "", text.replace("hub.example:8883", f"{HOST}:{port}"))


@pytest.mark.medium
@pytest.mark.broker
def test_shown_bridge_passes_messages_once_in_both_directions():
    connected = "$SYS/broker/connection/site-a/state"
    with (
        Mosquitto() as central,
        Mosquitto(_shown(central.port)) as site,
        client(central.url, "hub", UP, connected) as hub,
        client(site.url, "pi-1", DOWN) as device,
    ):
        hub.wait(Received, lambda one: one.topic == connected and one.payload == b"1")
        device.settle()
        device.link.publish(UP, b"chunk" * 20_000)
        assert hub.received(UP).payload == b"chunk" * 20_000
        for payload in (b"first", b"last"):
            hub.link.publish(DOWN, payload)
            assert device.received(DOWN).payload == payload, "a message came twice"
        device.link.publish(UP, b"last")
        assert hub.received(UP).payload == b"last", "a message came twice"
