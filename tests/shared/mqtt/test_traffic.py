"""Bytes of a connection, by the kernel's count, beside the bytes that a socket passed on."""

from __future__ import annotations

import socket
from queue import SimpleQueue

import pytest

from fedpatch.shared.mqtt.client import MqttLink
from fedpatch.shared.mqtt.events import Connected, LinkEvent, Received
from fedpatch.shared.mqtt.traffic import Traffic, traffic_of
from tests.support.brokers import HOST, Mosquitto
from tests.support.byte_meter import Meter


def test_traffic_of_a_closed_or_missing_connection_is_nothing():
    closed = socket.socket()
    closed.close()
    assert [traffic_of(closed), traffic_of(None)] == [Traffic(), Traffic()]


def test_traffic_adds_up_and_has_a_difference():
    assert Traffic(5, 7).plus(Traffic(1, 2)).since(Traffic(2, 3)) == Traffic(4, 6)
    assert Traffic(5, 7).total_bytes == 12


@pytest.mark.medium
@pytest.mark.broker
def test_link_counts_the_bytes_of_its_socket_within_five_percent():
    """Small messages, acknowledgements and a large message, both ways."""
    events: SimpleQueue[LinkEvent] = SimpleQueue()
    with Mosquitto() as broker, Meter(broker.port) as meter:
        link = MqttLink(f"mqtt://{HOST}:{meter.port}", client_id="pi", events=events.put, clean_start=True)
        link.subscribe("echo")
        link.start()
        while not isinstance(events.get(timeout=30.0), Connected):
            pass
        sizes = [10] * 50 + [100_000]
        for size in sizes:
            link.publish("echo", bytes(size))
        received = 0
        while received < len(sizes):
            received += isinstance(events.get(timeout=30.0), Received)
        link.stop()
    assert link.traffic.sent_bytes == pytest.approx(meter.up, rel=0.05)
    assert link.traffic.received_bytes == pytest.approx(meter.down, rel=0.05)
