"""The properties that fedpatch needs of a broker's connections: every broker has them, or the link compensates."""

from __future__ import annotations

import pytest

from fedpatch.shared.mqtt.client import Connected, Disconnected, Received
from fedpatch.shared.wire import topics
from tests.broker.contract.targets import Target
from tests.broker.relay import Relay
from tests.support.brokers import Client

pytestmark = pytest.mark.broker


def payloads(one: Client, topic: str) -> list[bytes]:
    """Return the payloads of all messages received so far on a topic."""
    return [event.payload for event in one.seen if isinstance(event, Received) and event.topic == topic]


@pytest.mark.medium
def test_link_reports_the_negotiated_protocol(target: Target, fleet: str):
    with target.client(f"{fleet}.one", will=(topics.coordinator_state(fleet), b"gone")) as one:
        about = one.wait(Connected)
    assert about.protocol == target.speaks
    assert about.max_packet_bytes == target.announces
    assert about.retain_available == (target.retains or not target.announces_retain)


def test_small_messages_arrive_once_and_in_order(target: Target, fleet: str):
    topic = topics.up(fleet, "pi-1")
    with target.client(f"{fleet}.taker", topic) as taker, target.client(f"{fleet}.giver") as giver:
        taker.settle()
        for number in range(90):
            assert giver.link.publish(topic, str(number).encode())
        came = [taker.received(topic).payload for _ in range(90)]
    assert came == [str(number).encode() for number in range(90)]


def test_presence_is_seen_by_who_comes_later(target: Target, fleet: str):
    """If the broker retains it. If not, a message without subscribers is lost, which must do no other harm."""
    topic = topics.device_state(fleet, "pi-1")
    with target.client(f"{fleet}.device") as device:
        device.wait(Connected)
        assert device.link.publish(topic, b"here", retain=True)
        device.settle()
        with target.client(f"{fleet}.late", *topics.coordinator_filters(fleet)) as late:
            if target.retains:
                assert late.received(topic) == Received(topic, b"here", retained=True)
            late.settle()
            assert payloads(late, topic) == ([b"here"] if target.retains else [])
            assert device.link.publish(topic, b"", retain=True)
            device.settle()
        assert not any(isinstance(event, Disconnected) for event in device.seen)


def test_a_connection_that_breaks_leaves_its_last_will(target: Target, fleet: str):
    topic = topics.device_state(fleet, "pi-1")
    with Relay(target.port) as cable, target.client(f"{fleet}.watcher", topic) as watcher:
        watcher.settle()
        with target.client(f"{fleet}.device", url=cable.url, will=(topic, b"gone")) as device:
            device.wait(Connected)
            device.settle()
            cable.cut()
            assert watcher.received(topic).payload == b"gone"
            device.wait(Connected)
            device.link.publish(topic, b"back")
            while watcher.received(topic).payload != b"back":
                pass


def test_a_name_that_is_taken_twice_goes_to_the_later_one(target: Target, fleet: str):
    """The broker closes the earlier connection; some brokers send the reason."""
    topic, name = topics.down(fleet, "pi-1"), f"{fleet}.twin"
    with target.client(name, topic, reconnect_delay_s=(100.0, 100.0)) as first:
        first.settle()
        with target.client(name, topic) as second:
            reason = first.wait(Disconnected).reason
            second.settle()
            with target.client(f"{fleet}.giver") as giver:
                giver.link.publish(topic, b"for the second")
                assert second.received(topic).payload == b"for the second"
    reported = "another client has our name" in reason
    assert reported or "was lost" in reason
    assert target.reports_takeover in (reported, None)


@pytest.mark.medium
def test_subscriptions_survive_a_power_cut_of_the_broker(target: Target, fleet: str):
    """The broker may have lost all its state: the links reconnect, subscribe again, and send their queued messages."""
    topic = topics.down(fleet, "pi-1")
    with target.client(f"{fleet}.taker", topic) as taker, target.client(f"{fleet}.giver") as giver:
        taker.settle()
        giver.wait(Connected)
        target.restart()
        taker.wait(Disconnected)
        taker.wait(Connected)
        taker.settle()
        giver.link.publish(topic, b"after the cut")
        while taker.received(topic).payload != b"after the cut":
            pass
