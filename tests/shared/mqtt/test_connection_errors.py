"""Why a connection failed: each cause has a sentence that names the broker and a remedy."""

from __future__ import annotations

import errno
import os
import socket
import ssl

import pytest
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.reasoncodes import ReasonCode

from fedpatch.shared.mqtt.connection_errors import lost, refused, unacknowledged, unreachable
from fedpatch.shared.mqtt.url import BrokerUrl, parse_broker_url

BROKER = BrokerUrl("broker.lan", 1883, False)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionRefusedError(), "connection refused by broker.lan:1883; is a broker running there?"),
        (ConnectionResetError(), "closed the connection without an answer"),
        (ConnectionResetError(), "with room for another client (mosquitto: max_connections"),
        (socket.gaierror(-2, "unknown"), "'broker.lan' cannot be resolved; check the broker URL"),
        (TimeoutError(), "no answer from broker.lan:1883; check the address and the firewall"),
        (
            TimeoutError("_ssl.c:989: The handshake operation timed out"),
            "packets of full size are lost on the way (path MTU)",
        ),
        (ssl.SSLError("odd"), "is this its TLS port?"),
        (OSError(113, "No route to host"), "cannot reach broker.lan:1883: No route to host; is that machine on"),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), "check its network (ip route)"),
        (OSError(errno.EAFNOSUPPORT, "Address family not supported"), "IPv6 is off here"),
        (OSError(errno.EPERM, "Operation not permitted"), "a firewall of this machine forbids it"),
        (OSError(errno.EMFILE, "Too many open files"), "raise the limit of open files"),
        (OSError(errno.EIO, "odd"), "check the broker URL and the network"),
    ],
)
def test_an_unreachable_broker_has_a_sentence(error, words):
    fault = unreachable(BROKER, error)
    assert words in fault.reason
    assert not fault.lasting


def test_name_in_local_without_an_address_has_the_package_as_remedy():
    unknown = socket.gaierror(-2, "unknown")
    assert "libnss-mdns" in unreachable(BrokerUrl("hub.local", 1883, False), unknown).reason
    assert "libnss-mdns" not in unreachable(BROKER, unknown).reason


@pytest.mark.parametrize(
    ("word", "remedy"),
    [
        ("TLSV1_ALERT_PROTOCOL_VERSION", "TLS 1.2 or later is needed: update the broker"),
        ("UNSUPPORTED_PROTOCOL", "TLS 1.2 or later is needed: update the broker"),
        ("SSLV3_ALERT_HANDSHAKE_FAILURE", "both sides have no cipher or key in common"),
        ("DH_KEY_TOO_SMALL", "both sides have no cipher or key in common"),
        ("TLSV1_UNRECOGNIZED_NAME", "has no certificate for this name"),
    ],
)
def test_broker_that_speaks_tls_otherwise_is_not_taken_for_a_port_without_tls(word: str, remedy: str):
    error = ssl.SSLError(1, word)
    error.reason = word
    reason = unreachable(parse_broker_url("mqtts://hub.example"), error).reason
    assert remedy in reason and "is this its TLS port" not in reason


@pytest.mark.parametrize("error", [ConnectionRefusedError(), ConnectionResetError(), ssl.SSLError("odd")])
@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("broker.lan", "for a broker without TLS write mqtt://broker.lan"),
        ("broker.lan:1883", "for a broker without TLS write mqtt://broker.lan:1883"),
        ("mqtts://broker.lan", None),
    ],
)
def test_url_without_scheme_is_named_as_the_cause(error, url, hint):
    """Without a scheme TLS was assumed; with mqtts:// the user has asked for it."""
    reason = unreachable(parse_broker_url(url), error).reason
    assert reason.endswith(hint) if hint else "scheme" not in reason


@pytest.mark.parametrize(
    ("code", "words", "lasting"),
    [
        (0x84, "speaks neither MQTT 5 nor 3.1.1; use a broker that does", False),
        (0x85, "refused our client id; let it take those that begin with `fedpatch.`", True),
        (0x86, "refused user 'pi-1'; check the user name and the password", True),
        (0x87, "refused user 'pi-1'; check the user name and the password", True),
        (0x88, "refused the connection: server unavailable; see its log", False),
        (0x8A, "has banned this client", True),
        (0x9D, "server moved; write that server's address", False),
    ],
)
def test_refusal_has_a_remedy_and_whether_to_retry(code, words, lasting):
    fault = refused(BROKER, "pi-1", ReasonCode(PacketTypes.CONNACK, identifier=code), with_password=True)
    assert words in fault.reason
    assert fault.lasting is lasting


@pytest.mark.parametrize("code", [0x86, 0x87])
def test_refusal_without_credentials_names_their_options(code):
    reason = ReasonCode(PacketTypes.CONNACK, identifier=code)
    nameless = refused(BROKER, None, reason, with_password=False).reason
    assert "asks for a user name and a password; give the name with --username" in nameless
    assert "--password-file" in nameless
    without = refused(BROKER, "pi-1", reason, with_password=False).reason
    assert (
        "refused user 'pi-1' without a password; give the password by --password-file, or in FEDPATCH_PASSWORD"
        in without
    )


def test_a_port_that_hangs_up_may_be_the_one_with_tls():
    """A TLS port closes the connection on a CONNECT in plain text, and mosquitto's port without TLS on a handshake."""
    hung_up = ConnectionResetError()
    assert "write mqtts://" in unreachable(BROKER, hung_up).reason
    assert unreachable(BrokerUrl("broker.lan", 8883, True), hung_up).reason.endswith("write mqtt://")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0x8E, "another client has our name; give every device its own"),
        (0x95, "a message was too large; use smaller chunks"),
        (0x8B, "closed the connection: server shutting down"),
    ],
)
def test_a_broker_that_closes_the_connection_is_quoted(code, words):
    assert words in lost(BROKER, ReasonCode(PacketTypes.DISCONNECT, identifier=code), True, True).reason


def test_a_connection_closed_before_any_answer_may_be_for_its_version():
    """Old brokers close the connection on a version of MQTT that they do not support."""
    reason = ReasonCode(PacketTypes.DISCONNECT, identifier=0x80)
    assert lost(BROKER, reason, False, False).unanswered
    assert not lost(BROKER, reason, False, True).unanswered


@pytest.mark.parametrize("name", ["Server busy", "Quota exceeded", "Connection rate exceeded"])
def test_broker_without_room_for_another_client_has_a_sentence_with_the_limit_to_raise(name):
    fault = refused(BROKER, None, ReasonCode(PacketTypes.CONNACK, name), with_password=False)
    assert f"broker.lan:1883 has no room for another client ({name.lower()})" in fault.reason
    assert "max_connections" in fault.reason
    assert not fault.lasting


@pytest.mark.parametrize(
    ("host", "number", "named"),
    [
        ("fe80::1", errno.EINVAL, True),
        ("fe80::1%eth0", errno.EINVAL, False),
        ("192.168.1.2", errno.EINVAL, False),
        ("fe80::1", errno.EHOSTUNREACH, False),
        ("broker.local", errno.EINVAL, False),
    ],
)
def test_link_local_address_without_interface_has_the_right_form_as_remedy(host: str, number: int, named: bool):
    url = BrokerUrl(host, 8883, True, None, True)
    reason = unreachable(url, OSError(number, os.strerror(number))).reason
    assert ("write mqtts://[fe80::1%eth0]:8883" in reason) == named


@pytest.mark.parametrize(
    ("host", "number", "remedy"),
    [
        ("broker.lan", socket.EAI_NONAME, "`getent hosts broker.lan` must print an address"),
        ("broker.lan", socket.EAI_AGAIN, "no name server answers: check this machine's network (ip route)"),
        ("broker.local", socket.EAI_AGAIN, "names in .local need libnss-mdns"),
        ("fe80::1%eth7", socket.EAI_NONAME, "this machine has no interface 'eth7': write one of `ip link`"),
    ],
)
def test_name_without_an_address_has_the_remedy_of_its_kind(host: str, number: int, remedy: str):
    url = BrokerUrl(host, 8883, True, None, True)
    assert remedy in unreachable(url, socket.gaierror(number, "no address")).reason


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENETDOWN, "switch the network interface on (ip link)"),
        (errno.EHOSTDOWN, "is that machine on, and in this network?"),
        (errno.ENFILE, "raise the limit of open files"),
        (errno.ENOMEM, "end other programs: this machine has no memory left"),
        (errno.ENOBUFS, "end other programs: this machine has no memory left"),
    ],
)
def test_error_of_this_machine_is_not_called_one_of_the_url(number: int, remedy: str):
    reason = unreachable(BROKER, OSError(number, os.strerror(number))).reason
    assert remedy in reason and "broker URL" not in reason


def test_silence_and_a_missing_acknowledgement_name_the_test_of_the_path_mtu():
    """Smaller chunks would not help: the least chunk is larger than a packet."""
    url = parse_broker_url("mqtts://hub.example")
    silence = ReasonCode(PacketTypes.DISCONNECT, identifier=0x8D)
    for fault in (lost(url, silence, by_broker=False, accepted=True), unacknowledged(url)):
        assert "path MTU" in fault.reason and "ping -M do -s 1400 hub.example" in fault.reason
        assert "chunk" not in fault.reason
