"""Broker URLs: the accepted forms, and the errors of the rest."""

from __future__ import annotations

import pytest

from fedpatch.shared.errors import UsageError
from fedpatch.shared.mqtt.url import BrokerUrl, parse_broker_url


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mqtt://broker.lan", BrokerUrl("broker.lan", 1883, False)),
        ("mqtts://broker.lan", BrokerUrl("broker.lan", 8883, True)),
        ("mqtt://10.0.0.1:2000/", BrokerUrl("10.0.0.1", 2000, False)),
        ("mqtt://[::1]:1884", BrokerUrl("::1", 1884, False)),
        ("mqtts://pi%401@broker.lan:99", BrokerUrl("broker.lan", 99, True, "pi@1")),
        ("broker.lan", BrokerUrl("broker.lan", 8883, True)),
        ("broker.lan:1883", BrokerUrl("broker.lan", 1883, True)),
        ("127.0.0.1", BrokerUrl("127.0.0.1", 8883, True)),
        ("pi-1@[fd00::1]:99", BrokerUrl("fd00::1", 99, True, "pi-1")),
        ("mqtts://[fe80::1%eth0]", BrokerUrl("fe80::1%eth0", 8883, True)),
        ("mqtts://[fe80::1%25eth0]", BrokerUrl("fe80::1%eth0", 8883, True)),
        ("mqtt", BrokerUrl("mqtt", 8883, True)),
        ("mqtt:1883", BrokerUrl("mqtt", 1883, True)),
        ("mqtt://mqtt:1883", BrokerUrl("mqtt", 1883, False)),
    ],
)
def test_broker_url_is_parsed_to_its_parts(text, expected):
    assert parse_broker_url(text) == expected


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("", "write mqtts://host"),
        ("fd00::1", "an address of IPv6 goes in brackets: write mqtts://[fd00::1]:8883"),
        ("mqtt://fe80::1%eth0", "an address of IPv6 goes in brackets: write mqtt://[fe80::1%eth0]:1883"),
        ("mqtt://fd00::1:1883", "an address of IPv6 goes in brackets: write mqtt://[fd00::1]:1883"),
        ("mqtt://1:2:3:4:5:6:7:1883", "write mqtt://[1:2:3:4:5:6:7:1883]:1883"),
        ("tcp://broker.lan", "use mqtt:// or mqtts://"),
        ("mqtt://", "write mqtt://host"),
        ("mqtt://:1883", "write mqtt://host"),
        ("mqtt://broker.lan:99999", "write mqtt://host:1883"),
        ("mqtt://broker.lan:x", "write mqtt://host:1883"),
        ("mqtt://broker.lan:0", "write mqtt://host"),
        ("mqtt://a b", "write mqtt://host"),
        ("mqtts://broker.lan/path", "write mqtts://broker.lan"),
        ("mqtt://[::1", "write mqtt://host:1883"),
        ("mqtt:/hub", "write mqtt://hub"),
        ("mqtt:hub:1883", "write mqtt://hub:1883"),
        ("MQTTS:hub", "write mqtts://hub"),
        ("mqtts//hub", "write mqtts://hub"),
        ("mqtt://hub\r", "a space or a line end is in it; write mqtt://host"),
    ],
)
def test_malformed_url_raises_usage_error_with_a_remedy(text, remedy):
    with pytest.raises(UsageError) as caught:
        parse_broker_url(text)
    assert remedy in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "mqtt://pi:secret@broker.lan",
        "tcp://pi:secret@broker.lan",
        "mqtt://pi:secret@h:x",
        "pi:secret@broker.lan",
        "mqtt:/pi:secret@broker.lan",
        "mqtt:secret@broker.lan",
        "mqtt//pi:secret@broker.lan",
    ],
)
def test_a_password_in_a_url_is_refused_and_not_repeated(text):
    with pytest.raises(UsageError) as caught:
        parse_broker_url(text)
    assert "secret" not in str(caught.value)


def test_a_broker_is_named_with_its_port():
    assert str(BrokerUrl("::1", 1883, False)) == "[::1]:1883"
    assert str(BrokerUrl("h", 1, True)) == "h:1"


@pytest.mark.parametrize(
    ("hosts", "loopback"),
    [
        ("127.0.0.1 127.8.7.6 [::1] localhost LOCALHOST", True),
        ("10.0.0.1 128.0.0.1 0.0.0.0 [::] [::ffff:127.0.0.1] 127.1 localhost.lan ip6-localhost h", False),
    ],
)
def test_host_is_loopback_by_its_address_or_the_reserved_name(hosts, loopback):
    """A name is not looked up, whatever its present address is."""
    for host in hosts.split():
        assert parse_broker_url(f"mqtt://{host}").loopback == loopback, host
