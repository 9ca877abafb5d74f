"""Rights to write and read at the shipped broker: every topic and user, in both directions, judged by delivered messages.

The expected rights follow from the table of topics, so a new row is covered at once.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from paho.mqtt import client as mqtt
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.reasoncodes import ReasonCode

from fedpatch.shared.wire.topics import BROKER_COUNTS, TOPICS, Party, Topic, transfer_id
from tests.attacks import raw
from tests.support.brokers import HOST, PATIENCE_S
from tests.support.identities import Certified
from tests.support.secured import SecuredMosquitto, rules

pytestmark = pytest.mark.broker

FLEET, DIGEST = "home", "0123456789abcdef" * 4
OWNER, OTHER, COORDINATOR, WATCHER = "pi-1", "pi-2", "coordinator", "ann"
PARTIES: dict[str, Party] = {OWNER: "device", OTHER: "device", COORDINATOR: "coordinator", WATCHER: "watcher"}
# The user has a certificate of the CA, but no line in the rules.
UNLISTED = "guest"
# The user has lines in the rules, but a revoked certificate.
REVOKED = "gone"
NO_CERTIFICATE, OTHER_CA = "nobody", "forger"
# Reads and writes everything, so that a test can see which messages the broker delivered. No other user has such a line.
AUDITOR = "auditor"
OUTSIDE = {
    "another fleet's": "fedpatch/1/attic/coord",
    "another version's": "fedpatch/2/home/coord",
    "below a topic": "fedpatch/1/home/dev/pi-1/up/more",
    "nobody's": "anything",
}
Cell = tuple[str, str, str]
_WELCOME, _PING, _PONG = b"\x20\x02\x00\x00", b"\xc0\x00", b"\xd0\x00"


def _topic(row: Topic) -> str:
    return row.pattern.format(fleet=FLEET, device=OWNER, digest=DIGEST, transfer=transfer_id(DIGEST), index=3)


EXAMPLES = {row.name: _topic(row) for row in TOPICS} | OUTSIDE
KEPT = {row.name for row in TOPICS if row.retain}


def _expected() -> set[Cell]:
    """Return the rights in the table; of the devices only the owner may use a topic with a device in its name."""
    cells: set[Cell] = set()
    for row in TOPICS:
        for who, party in PARTIES.items():
            theirs = party != "device" or "{device}" not in row.pattern or who == OWNER
            cells |= {(who, row.name, "write")} if theirs and row.writer == party else set()
            cells |= {(who, row.name, "read")} if theirs and row.may_read(party) else set()
    return cells


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certified:
    """Certificates of the fleet, one of them revoked."""
    made = Certified(tmp_path_factory.mktemp("ca"), FLEET)
    made.make(OWNER, OTHER, REVOKED, UNLISTED, watchers=[WATCHER, AUDITOR])
    made.revoke(REVOKED)
    return made


@pytest.fixture(scope="module")
def forged(tmp_path_factory: pytest.TempPathFactory) -> Certified:
    """Another CA under the name of the fleet's CA, with a certificate for the same device."""
    return Certified(tmp_path_factory.mktemp("forged"), FLEET).make(OWNER)


ACL = rules(FLEET, [OWNER, OTHER, REVOKED], [WATCHER])
_AUDIT = f"\nuser {AUDITOR}\ntopic readwrite #\n\npattern read mark/%u\n"


class Member:
    """A client without our code, with a certificate; `came` has every (topic, payload) that it received."""

    def __init__(self, broker: SecuredMosquitto, user: str, version: MQTTProtocolVersion) -> None:
        port = broker.coordinator_port if user in (COORDINATOR, AUDITOR) else broker.port
        self.user, self.came = user, set[tuple[str, bytes]]()
        self._marks: dict[bytes, threading.Event] = {}
        self._ready = threading.Event()
        self._client = mqtt.Client(CallbackAPIVersion.VERSION2, client_id=f"some-{user}", protocol=version)
        self._client.tls_set_context(_context(broker.certificates, user))
        self._client.on_message = lambda _client, _data, message: self._take(message.topic, bytes(message.payload))
        self._client.on_subscribe = lambda _client, _data, _mid, reasons, _properties: self._answered(reasons)
        self._client.connect(HOST, port)
        self._client.loop_start()

    def subscribe(self) -> None:
        """Subscribe to every topic by name, to all by wildcards, and to marks; the broker grants even forbidden filters."""
        wild = ["#", "fedpatch/#", "fedpatch/+/+/+/+/+", f"fedpatch/1/{FLEET}/#", "$SYS/#"]
        self._client.subscribe([(one, 1) for one in (*EXAMPLES.values(), *wild, f"mark/{self.user}")])
        assert self._ready.wait(PATIENCE_S)

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """Publish, and return once the broker has acknowledged the message; it also acknowledges refused messages."""
        sent = self._client.publish(topic, payload, qos=1, retain=retain)
        sent.wait_for_publish(PATIENCE_S)
        assert sent.is_published()

    def wait_for(self, mark: bytes) -> None:
        """Return once the mark has arrived: then all earlier messages for this client have arrived too."""
        assert self._marks.setdefault(mark, threading.Event()).wait(PATIENCE_S), f"{self.user} got {self.came}"

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def _answered(self, reasons: list[ReasonCode]) -> None:
        assert not any(one.is_failure for one in reasons)
        self._ready.set()

    def _take(self, topic: str, payload: bytes) -> None:
        self.came.add((topic, payload))
        if topic.startswith("mark/"):
            self._marks.setdefault(payload, threading.Event()).set()


def _context(certificates: Certified, user: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=certificates.ca_file)
    if user is not None:
        context.load_cert_chain(*certificates.pair(user))
    return context


def matrix(broker: SecuredMosquitto, version: MQTTProtocolVersion) -> set[Cell]:
    """Return every (user, topic, read or write) that the broker allowed, for topics in the table and outside it."""
    users = (OWNER, OTHER, COORDINATOR, WATCHER, UNLISTED, AUDITOR)
    with ExitStack() as stack, ThreadPoolExecutor(len(users)) as pool:
        joined = dict(zip(users, pool.map(lambda user: Member(broker, user, version), users), strict=True))
        for member in joined.values():
            stack.callback(member.close)
        auditor = joined.pop(AUDITOR)
        auditor.subscribe()
        for name in KEPT:
            auditor.publish(EXAMPLES[name], b"kept", retain=True)

        def act(member: Member) -> None:
            member.subscribe()
            for name, topic in EXAMPLES.items():
                member.publish(topic, f"{member.user} {name}".encode())

        list(pool.map(act, joined.values()))
        for topic in EXAMPLES.values():
            auditor.publish(topic, b"live")
        for member in (*joined.values(), auditor):
            auditor.publish(f"mark/{member.user}", b"end")
            member.wait_for(b"end")
        for name in KEPT:
            auditor.publish(EXAMPLES[name], b"", retain=True)
        read = {
            (user, name, "read")
            for user, member in joined.items()
            for name, topic in EXAMPLES.items()
            if _came_whole(member, name, topic)
        }
        written = {(user, name, "write") for user in joined for name in EXAMPLES if _arrived(auditor, user, name)}
        system = {(user, topic, "read") for user, one in joined.items() for topic, _ in one.came if topic[0] == "$"}
        system -= {(COORDINATOR, topic, "read") for topic in BROKER_COUNTS}  # they come once in 10 s
    return read | written | system


def _came_whole(member: Member, name: str, topic: str) -> bool:
    """Return whether the member received the messages of a topic: both the retained and the live one, or neither."""
    came = {payload for payload in (b"kept", b"live") if (topic, payload) in member.came}
    assert came in (set(), {b"live"} | ({b"kept"} if name in KEPT else set())), (member.user, name, came)
    return bool(came)


def _arrived(auditor: Member, user: str, name: str) -> bool:
    return (EXAMPLES[name], f"{user} {name}".encode()) in auditor.came


@pytest.fixture(scope="module")
def broker(certificates: Certified) -> Iterator[SecuredMosquitto]:
    """The shipped broker, and an auditor."""
    with SecuredMosquitto(certificates, ACL + _AUDIT) as running:
        yield running


@pytest.mark.parametrize("version", [MQTTProtocolVersion.MQTTv5, MQTTProtocolVersion.MQTTv311])
def test_members_have_exactly_the_rights_of_the_topic_table(broker, version):
    """In both versions of MQTT: no member can write outside the table, or receives the broker's own topics."""
    assert matrix(broker, version) == _expected()


@pytest.mark.parametrize(
    ("line", "opened"),
    [
        (f"user {OTHER}\ntopic read fedpatch/1/{FLEET}/dev/+/dn\n", {(OTHER, "down", "read")}),
        (f"user {WATCHER}\ntopic write fedpatch/1/{FLEET}/coord\n", {(WATCHER, "coordinator_state", "write")}),
        (f"pattern read fedpatch/1/{FLEET}/blob/+/+\n", {(who, "model_chunk", "read") for who in (*PARTIES, UNLISTED)}),
    ],
)
def test_rule_that_is_too_wide_is_found(certificates, line, opened):
    with SecuredMosquitto(certificates, f"{ACL}{_AUDIT}\n{line}") as open_broker:
        assert matrix(open_broker, MQTTProtocolVersion.MQTTv5) - _expected() == opened - _expected()


def _speak(port: int, context: ssl.SSLContext, client_id: str) -> bytes:
    """Connect, write on every topic and ping, all at once without waiting for an answer; return the broker's answer."""
    with socket.create_connection((HOST, port), PATIENCE_S) as plain:
        try:
            with context.wrap_socket(plain, server_hostname=HOST) as secured:
                secured.sendall(raw.hello(client_id.encode()))
                for topic in EXAMPLES.values():
                    secured.sendall(raw.publish(topic.encode(), client_id.encode()))
                secured.sendall(_PING)
                return _read(secured)
        except OSError:  # also a TLS alert
            return b""


def _read(secured: ssl.SSLSocket) -> bytes:
    """Return all bytes up to the end or the answer to a ping: the broker has then processed everything sent before."""
    answer = b""
    while not answer.endswith(_PONG) and (part := secured.recv(16)):
        answer += part
    return answer


def _contexts(certificates: Certified, forged: Certified) -> dict[str, ssl.SSLContext]:
    forger = ssl.create_default_context(cafile=certificates.ca_file)
    forger.load_cert_chain(*forged.pair(OWNER))
    return {REVOKED: _context(certificates, REVOKED), NO_CERTIFICATE: _context(certificates, None), OTHER_CA: forger}


def test_client_without_a_valid_certificate_delivers_nothing(broker, certificates, forged):
    """Revoked, without a certificate, or with one of another CA: no listener accepts the client or delivers its messages."""
    auditor = Member(broker, AUDITOR, MQTTProtocolVersion.MQTTv5)
    try:
        auditor.subscribe()
        for name, context in _contexts(certificates, forged).items():
            for port in (broker.port, broker.coordinator_port):
                assert _speak(port, context, name) == b"", name
        honest = _speak(broker.port, _context(certificates, OWNER), "honest")
        assert honest == _WELCOME + _PONG  # so the packets are valid
        auditor.publish(f"mark/{AUDITOR}", b"end")
        auditor.wait_for(b"end")
        senders = {payload for _, payload in auditor.came}
    finally:
        auditor.close()
    assert b"honest" in senders
    assert senders.isdisjoint({REVOKED.encode(), NO_CERTIFICATE.encode(), OTHER_CA.encode()})


def test_tls_older_than_1_2_is_refused(broker, certificates):
    """Ciphers without authenticated encryption are refused too, although they fit the broker's key."""
    old = _context(certificates, OWNER)
    old.set_ciphers("DEFAULT@SECLEVEL=0")
    with pytest.warns(DeprecationWarning):
        old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    weak = _context(certificates, OWNER)
    weak.maximum_version = ssl.TLSVersion.TLSv1_2
    weak.set_ciphers("ECDHE-ECDSA-AES128-SHA256")
    assert [_speak(broker.port, one, "old") for one in (old, weak)] == [b"", b""]


def test_client_id_of_another_device_does_not_disconnect_it(broker, certificates):
    """Whatever id a device sends, the broker uses the id of its certificate: the other device stays connected."""
    with ExitStack() as stack:
        victim = Member(broker, OTHER, MQTTProtocolVersion.MQTTv5)
        stack.callback(victim.close)
        victim.subscribe()
        assert _speak(broker.port, _context(certificates, OWNER), f"some-{OTHER}") == _WELCOME + _PONG
        assert _speak(broker.port, _context(certificates, OWNER), OTHER) == _WELCOME + _PONG
        auditor = Member(broker, AUDITOR, MQTTProtocolVersion.MQTTv5)
        stack.callback(auditor.close)
        auditor.publish(f"mark/{OTHER}", b"still there")
        victim.wait_for(b"still there")
    assert f"Client {OTHER} already connected" not in broker.log
    assert f"as {OWNER} (" in broker.log
