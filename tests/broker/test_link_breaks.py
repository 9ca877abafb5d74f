"""A link whose broker dies, freezes, comes back, or fails at a message."""

from __future__ import annotations

import pytest

from fedpatch.shared.mqtt import outbox
from fedpatch.shared.mqtt.client import Connected, Disconnected, Received
from tests.broker.relay import PUBACK, SUBACK, Relay
from tests.support.brokers import HOST, Client, Mosquitto, client, free_port

pytestmark = pytest.mark.broker


def test_message_published_during_an_outage_arrives_after_it(mosquitto):
    with client(mosquitto.url, "giver") as giver:
        giver.wait(Connected)
        mosquitto.kill()
        giver.wait(Disconnected)
        for number in range(30):
            assert giver.link.publish("kept", str(number).encode(), retain=True)
        mosquitto.start()
        giver.settle()
        with client(mosquitto.url, "taker", "kept") as taker:
            assert taker.received("kept").payload == b"29"


@pytest.mark.parametrize(("clean_start", "expected"), [(False, True), (True, False)])
def test_broker_keeps_the_session_except_with_clean_start(mosquitto, clean_start, expected):
    with client(mosquitto.url, "taker", "t", clean_start=clean_start) as taker:
        taker.settle()
    with client(mosquitto.url, "giver") as giver:
        giver.link.publish("t", b"while away")
        giver.settle()
    with client(mosquitto.url, "taker", "t", clean_start=clean_start) as taker:
        assert taker.wait(Connected).session_present is expected
        taker.settle()
        came = [event.payload for event in taker.seen if isinstance(event, Received) and event.topic == "t"]
        assert came == ([b"while away"] if expected else [])


def test_topic_unsubscribed_during_an_outage_is_not_delivered_from_the_kept_session(mosquitto):
    """A subscription that an earlier process left in the session delivers nothing."""
    with client(mosquitto.url, "taker", "old") as taker:
        taker.settle()
    with client(mosquitto.url, "taker", "new") as taker, client(mosquitto.url, "giver") as giver:
        assert taker.wait(Connected).session_present
        taker.settle()
        giver.link.publish("old", b"")
        giver.link.publish("new", b"")
        taker.received("new")
        assert "old" not in taker.topics


def test_an_oversize_message_from_before_the_limit_was_known_is_dropped(caplog):
    with Mosquitto("max_packet_size 20000") as small:
        one = Client(small.url, "one")
        one.link.subscribe("t")
        assert one.link.publish("t", bytes(20_000))
        assert one.link.publish("t", b"small")
        one.link.start()
        try:
            assert one.received("t").payload == b"small"
        finally:
            one.link.stop()
    assert "accepts packets of 20000 bytes, less than a message on t (20000 bytes)" in caplog.text
    assert not any(isinstance(event, Disconnected) for event in one.seen)


def test_full_outbox_returns_false_without_blocking():
    one = Client(f"mqtt://{HOST}:{free_port()}", "one", max_queued=3)
    one.link.start()
    try:
        assert [one.link.publish("t", b"") for _ in range(5)] == [True, True, True, False, False]
    finally:
        one.link.stop()


def test_a_frozen_broker_is_noticed_by_the_keepalive(mosquitto):
    with client(mosquitto.url, "one", keepalive_s=1) as one:
        one.wait(Connected)
        mosquitto.freeze()
        assert "silent for too long" in one.wait(Disconnected).reason
        mosquitto.thaw()
        one.wait(Connected)


def test_link_that_is_checked_is_made_anew_if_the_broker_acknowledges_nothing(mosquitto):
    """As where a firewall drops packets in silence: the keepalive alone would need 45 s."""
    with client(mosquitto.url, "giver") as giver:
        giver.settle()
        mosquitto.freeze()
        giver.link.publish("t", b"kept", retain=True)
        giver.link.check(0.2)
        giver.link.publish("t", b"status", qos=0)
        assert "did not acknowledge a message in time" in giver.wait(Disconnected).reason
        mosquitto.thaw()
        giver.settle()
        with client(mosquitto.url, "taker", "t") as taker:
            assert taker.received("t").payload == b"kept"


def test_link_that_is_checked_stays_if_the_broker_answers(mosquitto):
    with client(mosquitto.url, "giver") as giver:
        giver.settle()
        giver.link.publish("t", b"")
        giver.link.check(5.0)
        giver.settle()
        assert not [event for event in giver.seen if isinstance(event, Disconnected)]


@pytest.mark.parametrize("lost", [PUBACK, SUBACK], ids=["PUBACK", "SUBACK"])
def test_link_is_made_anew_if_an_acknowledgement_is_lost(mosquitto, monkeypatch, lost):
    """The broker answers everything else, so that no keepalive notices it."""
    monkeypatch.setattr(outbox, "ACK_S", 0.3)
    with Relay(mosquitto.port, swallows=lost) as path, client(path.url, "giver", "a") as giver:
        giver.link.publish("t", b"kept", retain=True)
        assert "did not acknowledge a message in time" in giver.wait(Disconnected).reason
        path.swallows = None
        giver.settle()
