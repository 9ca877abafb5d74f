"""Brokers that cannot be reached or refuse the connection: the link reports the reason and keeps trying."""

from __future__ import annotations

import pytest

from fedpatch.shared.errors import BrokerError, UsageError
from fedpatch.shared.mqtt.client import Connected, Disconnected, MqttLink
from fedpatch.shared.mqtt.tls_context import TlsFiles
from tests.support.brokers import HOST, PATIENCE_S, Mosquitto, client, free_port, link_is_alive
from tests.support.identities import Certified

pytestmark = pytest.mark.broker


def test_stop_does_not_wait_for_the_next_attempt():
    with client(f"mqtt://{HOST}:{free_port()}", "one", reconnect_delay_s=(100.0, 100.0)) as one:
        one.wait(Disconnected)
    assert not link_is_alive("one")


def test_an_unreachable_broker_is_named_and_tried_again():
    port = free_port()
    with client(f"mqtt://{HOST}:{port}", "one") as one:
        for _ in range(3):
            assert one.wait(Disconnected).reason == f"connection refused by {HOST}:{port}; is a broker running there?"
        with pytest.raises(BrokerError, match="is a broker running there"):
            one.link.wait_connected(0.1)


def test_a_broker_that_starts_late_is_found():
    late = Mosquitto()
    with client(late.url, "one") as one:
        one.wait(Disconnected)
        with late:
            one.wait(Connected)
            assert one.link.wait_connected(1.0).protocol == "5"
            one.link.stop()


def test_a_name_that_cannot_be_looked_up_does_not_end_the_link():
    """Not every failed name lookup raises an OSError; the link's thread survives all of them."""
    with client("mqtt://no..such.host", "one") as one:
        for _ in range(2):
            assert "'no..such.host' cannot be resolved" in one.wait(Disconnected).reason
        assert link_is_alive("one")


def test_wrong_password_has_its_own_reason():
    with Mosquitto(passwords={"pi-1": "right"}) as guarded:
        for options, words in (
            ({"username": "pi-1", "password": "wrong"}, "refused user 'pi-1'; check the user name and the password"),
            ({}, "asks for a user name and a password"),
        ):
            with client(guarded.url, "one", **options) as one:
                assert words in one.wait(Disconnected).reason
                with pytest.raises(BrokerError, match="password"):
                    one.link.wait_connected(PATIENCE_S)
                assert not any(isinstance(event, Connected) for event in one.seen)
        with client(guarded.url.replace("//", "//pi-1@"), "one", password="right") as one:
            one.wait(Connected)


def test_tls_carries_large_messages_and_a_broker_of_another_ca_is_refused(tmp_path):
    own, stranger = (Certified(tmp_path / name).make() for name in ("own", "stranger"))
    with Mosquitto(own.server) as secret:
        url = secret.url.replace("mqtt:", "mqtts:")
        with client(url, "one", "t", tls=own.files()) as one:
            one.settle()
            for _ in range(5):
                one.link.publish("t", bytes(300_000))
            for _ in range(5):
                assert len(one.received("t").payload) == 300_000
        with client(url, "two", tls=stranger.files()) as two:
            assert "holds another CA; give --ca-file" in two.wait(Disconnected).reason
            with pytest.raises(BrokerError, match="cannot be trusted"):
                two.link.wait_connected(PATIENCE_S)
        with client(secret.url, "three") as three:
            assert f"{HOST}:{secret.port}" in three.wait(Disconnected).reason


def test_tls_to_a_plain_broker_names_the_cause(mosquitto):
    with client(mosquitto.url.replace("mqtt:", "mqtts:"), "one") as one:
        assert one.wait(Disconnected).reason.startswith((f"no TLS with {HOST}", f"{HOST}:{mosquitto.port} closed"))


def test_a_ca_file_must_exist_and_be_of_use(tmp_path):
    for url, remedy in (("mqtts://h", "not a file of CA certificates"), ("mqtt://h", "write mqtts://")):
        with pytest.raises(UsageError, match=remedy):
            MqttLink(url, client_id="one", events=print, tls=TlsFiles(tmp_path / "none.pem"))
