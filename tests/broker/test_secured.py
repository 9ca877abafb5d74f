"""The shipped configurations: mosquitto accepts them, and they give no rights without an identity or after a revocation."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest
from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from fedpatch.shared.errors import BrokerError
from fedpatch.shared.mqtt.client import Connected, Disconnected
from fedpatch.shared.wire import topics
from tests.support.brokers import HOST, PATIENCE_S, Client, client
from tests.support.checkups import ask, settings_for, verdicts
from tests.support.identities import Certified
from tests.support.paths import ROOT
from tests.support.secured import CONFIGURATIONS, SecuredMosquitto, rules

pytestmark = pytest.mark.broker

END_CONNECTION = ROOT / "ansible" / "roles" / "coordinator" / "files" / "end_connection.py"
FLEET, DEVICES = "home", ["pi-1", "pi-2"]
# Every user may use a barrier to wait for the broker; a message on `read` shows that it has read the rules again.
MARKS = "\npattern readwrite barrier/+\n"
READ = "\npattern readwrite read\n"
ALL = rules(FLEET, DEVICES) + MARKS
LEFT = rules(FLEET, ["pi-1"]) + MARKS + READ
PRODUCTION = ("mosquitto.conf", "mosquitto-passwords.conf")


@pytest.fixture
def certificates(tmp_path: Path) -> Certified:
    return Certified(tmp_path / "ca", FLEET).make(*DEVICES)


@contextmanager
def member(broker: SecuredMosquitto, user: str, *filters: str) -> Iterator[Client]:
    """A client with a certificate, connected and subscribed; its client id is its user name, as the broker requires."""
    url = broker.coordinator_url if user == "coordinator" else broker.url
    with client(url, user, *filters, tls=broker.certificates.files(user)) as one:
        one.settle()
        yield one


@contextmanager
def ghost(certificates: Certified, port: int, user: str, will: tuple[str, bytes]) -> Iterator[socket.socket]:
    """A connection with a last will, for a test that ends it without DISCONNECT."""
    ready = threading.Event()
    one = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=f"ghost-{user}", reconnect_on_failure=False)
    context = ssl.create_default_context(cafile=certificates.ca_file)
    context.load_cert_chain(*certificates.pair(user))
    one.tls_set_context(context)
    one.will_set(*will, qos=1, retain=True)
    one.on_connect = lambda *_: ready.set()
    one.connect(HOST, port)
    one.loop_start()
    try:
        assert ready.wait(PATIENCE_S)
        yield cast(socket.socket, one.socket())
    finally:
        one.loop_stop()


def test_revoked_device_is_shut_out_and_its_state_is_gone(certificates):
    """After a reload of list and rules an open connection cannot write or read, and no client gets its retained state."""
    state, down = topics.device_state(FLEET, "pi-2"), topics.down(FLEET, "pi-2")
    with (
        SecuredMosquitto(certificates, ALL) as broker,
        member(broker, "coordinator", state) as coordinator,
        client(broker.url, "pi-2", down, tls=certificates.files("pi-2")) as gone,
    ):
        gone.settle()
        coordinator.link.subscribe("read")
        gone.link.publish(state, b"here", retain=True)
        assert coordinator.received(state).payload == b"here"
        with client(broker.coordinator_url, "later", state, tls=certificates.files("coordinator")) as later:
            assert later.received(state).retained
        certificates.revoke("pi-2")
        broker.install_certificates()
        broker.write_acl(LEFT)
        broker.reload()
        _until_read(coordinator)
        coordinator.link.publish(down, b"not for you")
        coordinator.settle()
        gone.link.publish(state, b"still here", retain=True)
        gone.settle()
        coordinator.settle()
        assert not any(isinstance(event, Disconnected) for event in gone.seen)
        assert down not in gone.topics and coordinator.topics.count(state) == 1
        with client(broker.coordinator_url, "last", state, "mark", tls=certificates.files("coordinator")) as last:
            last.settle()
            assert state not in last.topics
        broker.restart()
        assert "revoked" in gone.wait(Disconnected, lambda event: "revoked" in event.reason).reason


@pytest.mark.medium
def test_connection_of_a_revoked_device_ends_alone_by_a_connection_with_its_id(certificates, tmp_path):
    """As retire.yml does it after a reload: the device cannot come back, and nobody else is disconnected."""
    (identity := tmp_path / "identity").mkdir()
    shutil.copy(certificates.ca_file, identity)
    for path, name in zip(certificates.pair("coordinator"), ("client.crt", "client.key"), strict=True):
        shutil.copy(path, identity / name)
    with (
        SecuredMosquitto(certificates, ALL) as broker,
        member(broker, "coordinator") as coordinator,
        member(broker, "pi-1") as good,
        member(broker, "pi-2") as gone,
    ):
        coordinator.link.subscribe("read")
        certificates.revoke("pi-2")
        broker.install_certificates()
        broker.write_acl(LEFT)
        broker.reload()
        _until_read(coordinator)
        subprocess.run(
            [sys.executable, END_CONNECTION, broker.coordinator_url, identity, "pi-2"], check=True, timeout=60
        )
        assert "revoked" in gone.wait(Disconnected, lambda event: "revoked" in event.reason).reason
        for one in (good, coordinator):
            one.settle()
            assert not any(isinstance(event, Disconnected) for event in one.seen)


def test_last_will_of_a_revoked_device_is_not_published(certificates):
    with (
        SecuredMosquitto(certificates, ALL) as broker,
        member(broker, "coordinator", "read", state_of("+")) as coordinator,
    ):
        with (
            ghost(certificates, broker.port, "pi-1", (state_of("pi-1"), b"will")) as good,
            ghost(certificates, broker.port, "pi-2", (state_of("pi-2"), b"will")) as gone,
        ):
            broker.write_acl(LEFT)
            broker.reload()
            _until_read(coordinator)
            gone.shutdown(socket.SHUT_RDWR)
            good.shutdown(socket.SHUT_RDWR)
            assert coordinator.received(state_of("pi-1")).payload == b"will"
        coordinator.settle()
        assert state_of("pi-2") not in coordinator.topics


@pytest.mark.parametrize(("user", "tied"), [("pi-1", True), ("coordinator", False)])
def test_doctor_sees_that_client_ids_are_tied(certificates, user, tied):
    """On the devices' listener `doctor` reports the tie and stops; on the coordinator's listener it checks everything."""
    cert_file, key_file = certificates.pair(user)
    files = {"ca_file": certificates.ca_file, "cert_file": cert_file, "key_file": key_file}
    with SecuredMosquitto(certificates, rules(FLEET, DEVICES)) as broker:
        side, url = ("device", broker.url) if tied else ("coordinator", broker.coordinator_url)
        found = verdicts(ask(settings_for(side, url, **files), side))
    assert found["broker_tls"] == found["broker_login"] == "ok"
    assert ("client_ids" in found, "rights_write" in found) == (tied, not tied)
    assert found.get("client_ids", "skip") == "skip" and "fail" not in found.values()


@pytest.mark.parametrize("fault", ["open", "absent", "damaged"])
@pytest.mark.parametrize("side", ["device", "coordinator"])
def test_doctor_with_an_unusable_key_has_a_finding_with_the_remedy_and_goes_on(certificates, tmp_path, side, fault):
    """Its own files are the remedy's subject: the checks before it are shown, and those that need no login."""
    cert_file, key_file = certificates.pair("pi-1")
    key = tmp_path / "own.key"
    if fault != "absent":
        key.write_bytes(key_file.read_bytes() if fault == "open" else b"no key")
        key.chmod(0o644 if fault == "open" else 0o600)
    files = {"ca_file": certificates.ca_file, "cert_file": cert_file, "key_file": key}
    with SecuredMosquitto(certificates, rules(FLEET, DEVICES)) as broker:
        found = ask(settings_for(side, broker.url, **files), side)
    assert found["broker_port"].verdict == "ok"
    login = found["broker_login"]
    assert login.verdict == "fail" and str(key) in login.detail
    assert ("chmod 600" in login.remedy) == (fault == "open"), login


@pytest.mark.parametrize("configuration", PRODUCTION)
def test_shipped_configuration_states_its_limits_and_keeps_over_a_restart(certificates, configuration):
    """Mosquitto accepts the shipped file; a client receives the packet limit; presence survives `systemctl restart`."""
    passwords = {user: user for user in ("coordinator", *DEVICES)} if "passwords" in configuration else None
    named = {"username": "pi-1", "password": "pi-1", "tls": certificates.files()}
    login = named if passwords else {"tls": certificates.files("pi-1")}
    with SecuredMosquitto(certificates, ALL, configuration=configuration, passwords=passwords) as broker:
        with client(broker.url, "any", **login) as device:
            assert device.wait(Connected).max_packet_bytes == 1_048_576
            device.link.publish(state_of("pi-1"), b"here", retain=True)
            device.settle()
        broker.stop()
        broker.start()
        with client(broker.url, "any", state_of("pi-1"), **login) as device:
            assert device.received(state_of("pi-1")).retained
        assert "Warning: File" not in broker.log


def test_passwords_travel_over_tls_only_and_let_in_by_name(certificates):
    words = {user: f"{user}'s own" for user in ("coordinator", *DEVICES)}
    with SecuredMosquitto(certificates, ALL, configuration="mosquitto-passwords.conf", passwords=words) as broker:
        right = {"username": "pi-1", "password": words["pi-1"]}
        trusting = certificates.files()
        for options in ({"tls": trusting}, {"tls": trusting, "username": "pi-1", "password": "guess"}):
            with client(broker.url, "pi-1", **options) as one, pytest.raises(BrokerError, match="user"):
                one.link.wait_connected(PATIENCE_S)
        with client(broker.url.replace("mqtts:", "mqtt:"), "pi-1", **right) as one:
            one.wait(Disconnected)
            assert not any(isinstance(event, Connected) for event in one.seen)
        boss = {"username": "coordinator", "password": words["coordinator"], "tls": trusting}
        with (
            client(
                broker.url, "pi-1", topics.down(FLEET, "pi-1"), topics.down(FLEET, "pi-2"), tls=trusting, **right
            ) as one,
            client(broker.coordinator_url, "boss", state_of("+"), **boss) as coordinator,
        ):
            one.settle()
            coordinator.settle()
            for device in DEVICES:
                coordinator.link.publish(topics.down(FLEET, device), b"to " + device.encode())
                one.link.publish(state_of(device), b"of " + device.encode())
            for party in (one, coordinator, one):  # the messages of each have arrived before the other's are read
                party.settle()
            notified = [topics.down(FLEET, device) in one.topics for device in DEVICES]
            assert notified == [state_of(device) in coordinator.topics for device in DEVICES] == [True, False]


@pytest.mark.parametrize("configuration", PRODUCTION)
def test_every_option_is_explained_where_it_first_stands(configuration):
    known: set[str] = set()
    explained = False
    for line in (CONFIGURATIONS / configuration).read_text("utf-8").splitlines():
        if not line or line.startswith("#"):
            explained = bool(line)
            continue
        option = line.partition(" ")[0]
        assert explained or option in known, f"{configuration}: {option} is not explained"
        known.add(option)
    assert {"allow_anonymous", "acl_file", "max_packet_size", "memory_limit", "tls_version"} <= known
    assert ("require_certificate" in known) is (configuration == "mosquitto.conf")


def state_of(device: str) -> str:
    """The topic of a device's presence; `+` is all of them."""
    return f"fedpatch/1/{FLEET}/dev/{device}/state"


def _until_read(one: Client) -> None:
    """Return once the broker has read its new rules, which allow to write on `read`."""
    for _ in range(1000):
        one.link.publish("read", b"")
        one.settle()
        if "read" in one.topics:
            return
    raise AssertionError("the broker does not read its rules again")
