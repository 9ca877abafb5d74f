"""The link on real brokers: mosquitto (MQTT 5) and amqtt (3.1.1 only)."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from fedpatch.shared.mqtt.client import Connected, Disconnected, MqttLink, Received
from tests.support.brokers import PATIENCE_S, Client, Mosquitto, client, link_is_alive
from tests.support.paths import ROOT

pytestmark = pytest.mark.broker


DIES = """
import sys, threading
from fedpatch.shared.mqtt.client import Connected, MqttLink
connected = threading.Event()
url, will = sys.argv[1:]
link = MqttLink(url, client_id="mortal", events=lambda event: connected.set(), will=(will, b"gone"))
link.start()
connected.wait()
print("connected", flush=True)
sys.stdin.read()
link.stop()
"""


def test_the_best_protocol_of_the_broker_is_found(mosquitto, amqtt):
    with client(mosquitto.url, "one") as new, client(amqtt.url, "one") as old:
        assert new.wait(Connected).protocol == "5"
        assert old.wait(Connected) == Connected("3.1.1", None, True, False)
        assert all(not isinstance(event, Disconnected) for event in new.seen + old.seen)


def test_published_message_is_received(broker):
    payload = bytes(range(256)) * 512
    with client(broker, "giver") as giver, client(broker, "taker", "a/+", "b") as taker:
        taker.settle()
        for topic in ("c", "a/x/y", "a/1", "b"):
            assert giver.link.publish(topic, payload)
        assert taker.wait(Received) == Received("a/1", payload, retained=False)
        assert taker.wait(Received) == Received("b", payload, retained=False)


def test_messages_arrive_in_the_order_they_were_published(broker):
    with client(broker, "giver") as giver, client(broker, "taker", "n/#") as taker:
        taker.settle()
        for number in range(300):
            assert giver.link.publish(f"n/{number}", bytes(50_000 if number % 10 == 0 else 10))
        assert [taker.wait(Received).topic for _ in range(300)] == [f"n/{number}" for number in range(300)]


def test_a_message_without_acknowledgement_arrives_too(broker):
    with client(broker, "giver") as giver, client(broker, "taker", "q") as taker:
        taker.settle()
        assert giver.link.publish("q", b"0", qos=0)
        assert taker.received("q").payload == b"0"


def test_a_retained_message_waits_for_who_subscribes_later(broker):
    with client(broker, "giver") as giver:
        giver.link.publish("kept", b"state", retain=True)
        giver.settle()
        with client(broker, "other", "else") as other, client(broker, "taker", "kept") as taker:
            assert taker.received("kept") == Received("kept", b"state", retained=True)
            taker.link.unsubscribe("kept")
            taker.link.subscribe("kept")
            assert taker.received("kept").payload == b"state"
            other.settle()
            assert "kept" not in other.topics


def test_nothing_comes_after_unsubscribing(broker):
    with client(broker, "giver") as giver, client(broker, "taker", "a", "b") as taker:
        taker.settle()
        taker.link.unsubscribe("a")
        taker.settle()
        giver.link.publish("a", b"")
        giver.link.publish("b", b"")
        taker.received("b")
        assert "a" not in taker.topics


@pytest.mark.parametrize("violent", [True, False])
def test_the_last_will_is_for_a_violent_end_only(broker, violent):
    with client(broker, "watcher", "will") as watcher:
        watcher.settle()
        with subprocess.Popen(
            [sys.executable, "-c", DIES, broker, "will"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
        ) as mortal:
            assert mortal.stdout is not None and mortal.stdin is not None
            assert mortal.stdout.readline() == b"connected\n"
            if violent:
                mortal.kill()
                assert watcher.received("will").payload == b"gone"
            else:
                mortal.stdin.close()
                assert mortal.wait(PATIENCE_S) == 0
                watcher.settle()
        with client(broker, "late", "will") as late:
            if violent:
                assert late.received("will").retained
            late.settle()
            assert violent or "will" not in watcher.topics + late.topics


def test_stop_sends_what_is_queued_and_leaves_nothing_behind(broker):
    with client(broker, "taker", "t/#") as taker:
        taker.settle()
        with client(broker, "giver") as giver:
            giver.wait(Connected)
            for number in range(100):
                assert giver.link.publish(f"t/{number}", bytes(1000))
            giver.link.stop(PATIENCE_S)
        assert not link_is_alive("giver")
        assert giver.link.publish("t/late", b"") is False
        assert [taker.wait(Received).topic for _ in range(100)] == [f"t/{number}" for number in range(100)]


def test_a_receiver_that_fails_does_not_end_the_link(mosquitto, caplog):
    arrived = threading.Event()

    def receiver(event: object) -> None:
        if isinstance(event, Received) and event.payload == b"2":
            arrived.set()
            return
        raise RuntimeError("not today")

    link = MqttLink(mosquitto.url, client_id="one", events=receiver)
    link.subscribe("t")
    link.start()
    try:
        link.publish("t", b"1")
        link.publish("t", b"2")
        assert arrived.wait(PATIENCE_S)
    finally:
        link.stop()
    assert "the receiver of link events failed at Connected" in caplog.text


@pytest.mark.parametrize("topic", ["", "a/+", "#"])
def test_a_topic_that_cannot_be_published_on_is_an_error_of_the_caller(topic):
    one = Client("mqtt://127.0.0.1:1", "one")
    with pytest.raises(ValueError, match="not a topic"):
        one.link.publish(topic, b"")
    one.link.stop()


def test_the_configuration_for_development_is_one_that_mosquitto_takes():
    own = ("listener", "allow_anonymous", "set_tcp_nodelay", "persistence ")  # set by every broker of these tests
    lines = (ROOT / "broker_config" / "mosquitto-dev.conf").read_text("utf-8").splitlines()
    options = "\n".join(line for line in lines if not line.startswith(own))
    with Mosquitto(options) as broker, client(broker.url, "one") as one:
        assert one.wait(Connected).max_packet_bytes == 1_048_576
