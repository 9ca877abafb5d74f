"""Broker URLs: what is understood, and what the error says of the rest."""

from __future__ import annotations

import pytest

from shared.broker_url import BrokerUrl, parse_broker_url
from shared.errors import UsageError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mqtt://broker.lan", BrokerUrl("broker.lan", 1883, False)),
        ("mqtts://broker.lan", BrokerUrl("broker.lan", 8883, True)),
        ("mqtt://10.0.0.1:2000/", BrokerUrl("10.0.0.1", 2000, False)),
        ("mqtt://[::1]:1884", BrokerUrl("::1", 1884, False)),
        ("mqtts://pi%401@broker.lan:99", BrokerUrl("broker.lan", 99, True, "pi@1")),
    ],
)
def test_a_broker_url_is_understood(text, expected):
    """Port and TLS follow from the scheme; a user name may be there."""
    assert parse_broker_url(text) == expected


@pytest.mark.parametrize(
    ("text", "mend"),
    [
        ("broker.lan:1883", "write mqtt://broker.lan:1883"),
        ("tcp://broker.lan", "use mqtt:// or mqtts://"),
        ("mqtt://", "write mqtt://host"),
        ("mqtt://:1883", "write mqtt://host"),
        ("mqtt://broker.lan:99999", "write mqtt://host:1883"),
        ("mqtt://broker.lan:x", "write mqtt://host:1883"),
        ("mqtt://broker.lan:0", "write mqtt://host"),
        ("mqtt://a b", "write mqtt://host"),
        ("mqtts://broker.lan/path", "write mqtts://broker.lan"),
        ("mqtt://[::1", "write mqtt://host:1883"),
    ],
)
def test_a_wrong_url_is_refused_with_its_mend(text, mend):
    """Each error says what to write instead."""
    with pytest.raises(UsageError) as caught:
        parse_broker_url(text)
    assert mend in str(caught.value)


@pytest.mark.parametrize("text", ["mqtt://pi:secret@broker.lan", "tcp://pi:secret@broker.lan", "mqtt://pi:secret@h:x"])
def test_a_password_in_a_url_is_refused_and_not_repeated(text):
    """A URL ends up in logs; a password must not."""
    with pytest.raises(UsageError) as caught:
        parse_broker_url(text)
    assert "secret" not in str(caught.value)


def test_a_broker_is_named_with_its_port():
    """An address of IPv6 stands in brackets."""
    assert str(BrokerUrl("::1", 1883, False)) == "[::1]:1883"
    assert str(BrokerUrl("h", 1, True)) == "h:1"
