"""The shipped files of mosquitto carry 2,000 devices: here 1,300 sessions and the burst of their presences, without TLS."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.attacks import raw
from tests.support.brokers import HOST, Mosquitto, client

DEVICES = 1300
CONFIGURATIONS = Path(__file__).parents[2] / "broker_config"
LIMITS = (
    "max_connections",
    "max_queued_messages",
    "max_queued_bytes",
    "memory_limit",
    "max_packet_size",
    "max_keepalive",
)
FILES = ("mosquitto.conf", "mosquitto-passwords.conf", "mosquitto-dev.conf")

pytestmark = pytest.mark.broker


@contextlib.contextmanager
def broker_with_limits_of(configuration: str) -> Iterator[Mosquitto]:
    """A broker with the limits of a shipped file and of its first listener, which is for devices."""
    limits: dict[str, str] = {}
    for line in (CONFIGURATIONS / configuration).read_text("utf-8").splitlines():
        option, _, value = line.partition(" ")
        if option in LIMITS:
            limits.setdefault(option, value)
    with Mosquitto("\n".join(f"{option} {value}" for option, value in limits.items())) as broker:
        yield broker


@contextlib.contextmanager
def sessions(port: int, count: int) -> Iterator[list[bytes]]:
    """Open `count` connections, and yield the answers of the broker to their CONNECT."""
    with contextlib.ExitStack() as stack:
        connections = []
        for number in range(count):
            connection = stack.enter_context(socket.create_connection((HOST, port), raw.PATIENCE_S))
            connection.sendall(raw.hello(b"device-%d" % number))
            connections.append(connection)
        yield [connection.recv(4) for connection in connections]


@pytest.mark.medium
@pytest.mark.parametrize("configuration", FILES)
def test_shipped_broker_accepts_1300_devices(configuration):
    with broker_with_limits_of(configuration) as broker, sessions(broker.port, DEVICES) as answers:
        assert answers == [b"\x20\x02\x00\x00"] * DEVICES


@pytest.mark.medium
@pytest.mark.parametrize("configuration", FILES)
def test_shipped_broker_drops_no_presence_of_1300_devices(configuration):
    with broker_with_limits_of(configuration) as broker:
        presences = [
            raw.publish(b"fedpatch/1/home/dev/device-%d/state" % number, b"x" * 500, flags=0b0011, mid=number + 1)
            for number in range(DEVICES)
        ]
        with raw.welcomed(broker.port, "devices") as connection:
            connection.sendall(b"".join(presences))
            acknowledged = 0
            while acknowledged < 4 * DEVICES:
                acknowledged += len(connection.recv(4096))
        with client(broker.url, "coordinator", "fedpatch/1/home/dev/+/state") as one:
            one.settle()
            assert len({topic for topic in one.topics if topic.endswith("/state")}) == DEVICES
