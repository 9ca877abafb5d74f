"""Messages that a broker does not accept: the session continues, and the log has the remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fedpatch.shared.errors import BrokerError
from fedpatch.shared.mqtt.client import Connected, Disconnected, Received
from tests.broker.relay import Relay
from tests.support.brokers import Client, Mosquitto, client

pytestmark = pytest.mark.broker

LIMIT_BYTES = 20_000
REMEDY = "use smaller chunks (fedpatch run --chunk-kib)"


@contextmanager
def connected(option: str, *, old: bool) -> Iterator[Client]:
    """A client of a broker with a limit, connected with MQTT 5, or with 3.1.1 if `old`."""
    with (
        Mosquitto(f"{option} {LIMIT_BYTES}") as broker,
        Relay(broker.port, old=old) as relay,
        client(relay.url, "one", "t") as one,
    ):
        assert one.wait(Connected).protocol == ("3.1.1" if old else "5")
        yield one


def send_around(one: Client, size: int) -> list[bytes]:
    """Publish a message, then the poison, then another message; return those that the broker delivers."""
    for payload in (b"before", bytes(size), b"after"):
        assert one.link.publish("t", payload)
    one.wait(Received, lambda event: event.payload == b"after")
    one.settle()
    return [event.payload for event in one.seen if isinstance(event, Received) and event.topic == "t"]


def test_a_stated_limit_is_kept():
    """MQTT 5, `max_packet_size`: a message that is too large is never sent."""
    with connected("max_packet_size", old=False) as one:
        with pytest.raises(BrokerError) as caught:
            one.link.publish("t", bytes(LIMIT_BYTES))
        assert f"accepts packets of {LIMIT_BYTES} bytes, less than" in str(caught.value)
        assert str(caught.value).endswith(REMEDY)
        assert send_around(one, LIMIT_BYTES - 100) == [b"before", bytes(LIMIT_BYTES - 100), b"after"]
        assert not any(isinstance(event, Disconnected) for event in one.seen)


@pytest.mark.parametrize(("option", "old"), [("max_packet_size", True), ("message_size_limit", False)])
def test_a_limit_that_is_not_stated_costs_a_few_connections(option: str, old: bool, caplog: pytest.LogCaptureFixture):
    """The connection ends each time that the message is sent, until the link drops the message; the log has the remedy.

    In 3.1.1 the broker ends the connection. In MQTT 5 mosquitto acknowledges with a reason that no acknowledgement may have
    (0x95), and paho ends the connection.
    """
    with connected(option, old=old) as one:
        assert set(send_around(one, 2 * LIMIT_BYTES)) == {b"before", b"after"}
        broken = [event.reason for event in one.seen if isinstance(event, Disconnected)]
        # A broker that stalls during a connect costs a connection too, for another reason.
        assert sum("does not answer" not in reason for reason in broken) in (2, 3)
    assert f"gave up a message on t ({2 * LIMIT_BYTES} bytes): the connection to" in caplog.text
    assert REMEDY in caplog.text


def test_a_limit_of_messages_is_kept_secret_in_3_1_1(caplog: pytest.LogCaptureFixture):
    """`message_size_limit`: the broker acknowledges a message and discards it; only `doctor` notices its absence."""
    with connected("message_size_limit", old=True) as one:
        assert send_around(one, LIMIT_BYTES + 1) == [b"before", b"after"]
        assert not any(isinstance(event, Disconnected) for event in one.seen)
    assert caplog.text == ""
