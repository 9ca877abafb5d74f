"""Access rules of a clustered broker, made from the topic table, on a real ejabberd with TLS and passwords."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from fedpatch.coordinator.cli.broker import ejabberd_rules
from fedpatch.shared.errors import BrokerError
from fedpatch.shared.mqtt.client import Received
from fedpatch.shared.mqtt.tls_context import TlsFiles
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.topics import TOPICS
from tests.broker.ejabberd import ASK, Ejabberd
from tests.support.brokers import PATIENCE_S, Client, client
from tests.support.identities import Certified

pytestmark = pytest.mark.broker

OWNER, OTHER, COORDINATOR, WATCHER, UNLISTED = "pi-1", "pi-2", "coordinator", "ann", "guest"
USERS = (OWNER, OTHER, COORDINATOR, WATCHER, UNLISTED)
PARTIES = {OWNER: "device", OTHER: "device", COORDINATOR: "coordinator", WATCHER: "watcher", UNLISTED: ""}
EXAMPLES = {
    row.name: row.pattern.format(fleet="home", device=OWNER, digest="0" * 64, transfer="0" * 16, index=0)
    for row in TOPICS
}

_CONFIG = """\
hosts: [localhost]
loglevel: warning
certfiles: [{{directory}}/broker.pem]
listen:
  - port: {{port}}
    ip: "{{host}}"
    module: mod_mqtt
    backlog: 128
    tls: true
auth_method: external
extauth_program: "{{directory}}/ask"
acme:
  auto: false
{rules}"""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certified:
    """Certificates of the broker; members have passwords."""
    return Certified(tmp_path_factory.mktemp("ca")).make()


@pytest.fixture(scope="module")
def broker(certificates: Certified) -> Iterator[Ejabberd]:
    """A broker with the rules of a fleet, and one more topic for the waiting client."""
    text = ejabberd_rules("home", "localhost", [OWNER, OTHER], watchers=[WATCHER])
    for option in ("access_publish", "access_subscribe"):
        text = text.replace(f"    {option}:\n", f'    {option}:\n      "barrier/%u": all\n')
    made = Ejabberd(_CONFIG.format(rules=text))
    of_broker = certificates.directory / "broker"
    pem = (of_broker / "broker.crt").read_bytes() + (of_broker / "broker.key").read_bytes()
    (made.directory / "broker.pem").write_bytes(pem)
    ask = made.directory / "ask"
    ask.write_text(ASK.format(python=shutil.which("python3") or sys.executable))
    ask.chmod(0o755)
    with made:
        yield made


def _login(certificates: Certified, user: str, password: str = "") -> dict[str, object]:
    return {
        "username": f"{user}@localhost",
        "password": password or user,
        "tls": certificates.files(),
        "reconnect_delay_s": (0.05, 0.2),
    }


@pytest.mark.medium
def test_broker_delivers_exactly_the_messages_of_the_topic_table(broker, certificates):
    """Each user subscribes to every topic by name and to all by wildcard, and writes on every topic."""
    url = broker.url.replace("mqtt:", "mqtts:")
    with ExitStack() as stack:
        members: dict[str, Client] = {
            user: stack.enter_context(client(url, user, "#", *EXAMPLES.values(), **_login(certificates, user)))
            for user in USERS
        }
        for member in members.values():
            member.settle()
        for user, member in members.items():
            for name, topic in EXAMPLES.items():
                member.link.publish(topic, f"{user} {name}".encode())
            member.settle()
        for member in members.values():
            member.settle()
    came = {
        (reader, *event.payload.decode().split())
        for reader, member in members.items()
        for event in member.seen
        if isinstance(event, Received) and event.topic in EXAMPLES.values()
    }
    assert came == _expected()


def _expected() -> set[tuple[str, str, str]]:
    """Return every (reader, writer, topic); of the devices only the owner may use a topic with a device in its name."""

    def are(party: str, row: topics.Topic) -> set[str]:
        named = "{device}" in row.pattern and party == "device"
        return {OWNER} if named else {user for user in USERS if PARTIES[user] == party}

    return {
        (reader, writer, row.name)
        for row in TOPICS
        for writer in are(row.writer, row)
        for party in (*row.readers, *row.also_read_by)
        for reader in are(party, row)
    }


@pytest.mark.medium
def test_nobody_gets_in_without_a_password_or_in_plain_text(broker, certificates):
    url = broker.url.replace("mqtt:", "mqtts:")
    with client(url, OWNER, **_login(certificates, OWNER, "guess")) as one, pytest.raises(BrokerError):
        one.link.wait_connected(PATIENCE_S)
    plain = {**_login(certificates, OWNER), "tls": TlsFiles()}
    with client(broker.url, OWNER, **plain) as one, pytest.raises(BrokerError):
        one.link.wait_connected(3.0)


def test_a_fleet_without_devices_has_rules_for_nobody():
    text = ejabberd_rules("home", "broker.lan", [])
    assert 'fedpatch_device:\n    user: ["nobody@nowhere.invalid"]' in text and '"coordinator@broker.lan"' in text
    used = {line.rpartition(": ")[2] for line in text.splitlines() if line.startswith("      ")}
    defined = {line.strip(" :") for line in text.partition("access_rules:")[2].splitlines() if line.endswith(":")}
    assert used <= defined
