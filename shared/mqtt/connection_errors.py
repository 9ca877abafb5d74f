"""Faults of a connection to the broker, as sentences for people: what happened, and the remedy."""

from __future__ import annotations

import errno
import ipaddress
import socket
import ssl
from dataclasses import dataclass
from typing import Protocol

from fedpatch.shared.mqtt.url import BrokerUrl

SAME_NAME = "another client has our name"
TEST_LARGE_PACKETS = (
    "if small messages pass and large ones do not, packets of full size are lost on the way (path MTU): "
    "`ping -M do -s 1400 {host}` must be answered; else lower the interface's MTU (ip link set DEVICE mtu 1280), "
    "or set net.ipv4.tcp_mtu_probing=1 on both sides"
)
USE_SMALLER_CHUNKS = "use smaller chunks (fedpatch run --chunk-kib)"

_UPDATE_TLS = "TLS 1.2 or later is needed: update the broker, or allow it there (tls_version)"
_AGREE = (
    "it is a port with TLS, but both sides have no cipher or key in common: see the broker's log and its `ciphers`, give it "
    "the defaults, and a certificate with a key of RSA 2048 or P-256 (fedpatch ca broker)"
)
# By a part of OpenSSL's reason, of a server that speaks TLS.
_TLS_REMEDIES = {
    "ALERT_PROTOCOL_VERSION": _UPDATE_TLS,
    "UNSUPPORTED_PROTOCOL": _UPDATE_TLS,
    "WRONG_SSL_VERSION": _UPDATE_TLS,
    "UNRECOGNIZED_NAME": "the server there has no certificate for this name: write the broker's name in its URL",
    "HANDSHAKE_FAILURE": _AGREE,
    "INSUFFICIENT_SECURITY": _AGREE,
    "KEY_TOO_SMALL": _AGREE,
    "SIGALG": _AGREE,
    "WRONG_CURVE": _AGREE,
    "LEGACY_RENEGOTIATION": _UPDATE_TLS,
}

_GIVE_IT = "give the password by --password-file, or in FEDPATCH_PASSWORD (an agent: FEDPATCH_AGENT_PASSWORD)"
_UNSUPPORTED_VERSION, _BAD_CLIENT_ID, _BAD_PASSWORD, _NOT_AUTHORIZED, _BANNED = 0x84, 0x85, 0x86, 0x87, 0x8A
_NO_ROOM = {0x89, 0x97, 0x9F}  # server busy, quota exceeded, connection rate exceeded
_ELSEWHERE = {0x9C, 0x9D}  # use another server, server moved
_RAISE_LIMITS = "raise its limits of clients (mosquitto: max_connections, and LimitNOFILE of its unit)"
_KEEPALIVE_TIMEOUT, _TAKEN_OVER, _PACKET_TOO_LARGE, _RETAINS_NOTHING = 0x8D, 0x8E, 0x95, 0x9A


@dataclass(frozen=True)
class ConnectionFault:
    """Why a connection failed or ended.

    Attributes:
        reason: Sentence for people.
        lasting: Whether a retry cannot help.
        wrong_version: Whether the broker refused the MQTT version.
        unanswered: Whether the broker did not answer CONNECT.
        retains_nothing: Whether the broker refused a retained last will.
        good_from: Unix time from which the connection would work, where this machine's clock is behind.
        renewal: Whether the link ended the connection itself, to use a renewed certificate.
        remedy: The remedy at the end of `reason`, where a certificate was refused.
    """

    reason: str
    lasting: bool = False
    wrong_version: bool = False
    unanswered: bool = False
    retains_nothing: bool = False
    good_from: float | None = None
    renewal: bool = False
    remedy: str = ""


class Reason(Protocol):
    """An MQTT 5 reason code; paho translates the return codes of 3.1.1 to these."""

    @property
    def value(self) -> int:
        """The code; 128 and above are failures."""


def unreachable(broker: BrokerUrl, error: Exception) -> ConnectionFault:
    """Return the fault for an `error` while connecting."""
    hint = f" {broker.scheme_hint}" if broker.scheme_hint else ""
    if isinstance(error, ConnectionRefusedError):
        return ConnectionFault(f"connection refused by {broker}; is a broker running there?{hint}")
    if isinstance(error, socket.gaierror | UnicodeError):
        return ConnectionFault(f"the name {broker.host!r} cannot be resolved; {name_remedy(broker, error)}")
    if isinstance(error, ssl.SSLError):
        remedy = tls_remedy(broker, error) or f"is this its TLS port?{hint}"
        return ConnectionFault(f"no TLS with {broker} ({getattr(error, 'reason', None) or error}); {remedy}")
    if _is_silent_handshake(error):
        remedy = f"it may be overloaded, or {tls_remedy(broker, error)}"
        return ConnectionFault(f"no TLS with {broker}: it takes the connection, and is silent then; {remedy}")
    if isinstance(error, TimeoutError):
        return ConnectionFault(f"no answer from {broker}; check the address and the firewall")
    if isinstance(error, ConnectionError):
        return _unanswered(broker)
    if needs_interface(broker, error):
        return ConnectionFault(f"cannot reach {broker}: {NAME_INTERFACE}")
    detail = error.strerror if isinstance(error, OSError) else None
    return ConnectionFault(f"cannot reach {broker}: {detail or error}; {way_remedy(error)}")


def _is_silent_handshake(error: Exception) -> bool:
    # A certificate does not fit into one packet, unlike all messages before it.
    return isinstance(error, TimeoutError) and "handshake" in str(error)


def tls_remedy(broker: BrokerUrl, error: Exception) -> str:
    """Return the remedy for a failed handshake with a server that speaks TLS; "" for one that may not."""
    if _is_silent_handshake(error):
        return TEST_LARGE_PACKETS.format(host=broker.host)
    reason = getattr(error, "reason", None) or ""
    return next((remedy for part, remedy in _TLS_REMEDIES.items() if part in reason), "")


def way_remedy(error: Exception) -> str:
    """Return the remedy for an error of the way to a broker."""
    return _REACH_REMEDIES.get(getattr(error, "errno", None) or 0, "check the broker URL and the network (ip route)")


def name_remedy(broker: BrokerUrl, error: Exception | None = None) -> str:
    """Return the remedy for a broker's name that has no address, by the resolver's error if there is one."""
    if "%" in broker.host:
        return f"this machine has no interface {broker.host.rpartition('%')[2]!r}: write one of `ip link`"
    if broker.host.lower().endswith(".local"):
        return "names in .local need libnss-mdns here and avahi-daemon on the broker's host; or write its address"
    if getattr(error, "errno", None) == socket.EAI_AGAIN:
        return "no name server answers: check this machine's network (ip route) and /etc/resolv.conf"
    return f"check the broker URL; `getent hosts {broker.host}` must print an address, or give the address itself"


_BLOCKED = "a firewall of this machine forbids it, or the unit of the service (RestrictAddressFamilies, IPAddressDeny)"
_IS_IT_ON = "is that machine on, and in this network?"
_NO_MEMORY = "end other programs: this machine has no memory left for a connection"
_REACH_REMEDIES = {
    errno.EHOSTUNREACH: _IS_IT_ON,
    errno.EHOSTDOWN: _IS_IT_ON,
    errno.ENETDOWN: "switch the network interface on (ip link)",
    errno.ENOMEM: _NO_MEMORY,
    errno.ENOBUFS: _NO_MEMORY,
    errno.ENFILE: "end programs that have many files open, or raise the limit of open files (sysctl fs.file-max)",
    errno.ENETUNREACH: "this machine has no route there: check its network (ip route)",
    errno.EADDRNOTAVAIL: "this machine has no address of that kind: write the broker's IPv4 address or its name",
    errno.EAFNOSUPPORT: "IPv6 is off here, or the unit of the service forbids it: write the broker's IPv4 address",
    errno.EACCES: _BLOCKED,
    errno.EPERM: _BLOCKED,
    errno.EMFILE: "raise the limit of open files of this process (ulimit -n, LimitNOFILE)",
}
NAME_INTERFACE = (
    "a link-local address needs its interface; write mqtts://[fe80::1%eth0]:8883, or a name such as broker.local"
)


def needs_interface(broker: BrokerUrl, error: BaseException | None) -> bool:
    """Return whether a connection failed because the broker's address is link-local (fe80::/10) and names no interface."""
    try:
        address = ipaddress.ip_address(broker.host)
    except ValueError:
        return False
    return (
        isinstance(error, OSError)
        and error.errno in (errno.EINVAL, errno.ENODEV, errno.ENETUNREACH)
        and isinstance(address, ipaddress.IPv6Address)
        and address.is_link_local
        and not address.scope_id
    )


def refused(broker: BrokerUrl, username: str | None, reason: Reason, *, with_password: bool) -> ConnectionFault:
    """Return the fault for a CONNACK that refuses the connection.

    Args:
        reason: Reason code of the CONNACK.

    Returns:
        The fault.
    """
    code = reason.value
    if code == _UNSUPPORTED_VERSION:
        return ConnectionFault(
            f"{broker} speaks neither MQTT 5 nor 3.1.1; use a broker that does, such as mosquitto 2", wrong_version=True
        )
    if code in (_BAD_PASSWORD, _NOT_AUTHORIZED):
        if username is None:
            name = "give the name with --username (username), and "
            return ConnectionFault(f"{broker} asks for a user name and a password; {name}{_GIVE_IT}", lasting=True)
        if not with_password:
            return ConnectionFault(f"{broker} refused user {username!r} without a password; {_GIVE_IT}", lasting=True)
        return ConnectionFault(
            f"{broker} refused user {username!r}; check the user name and the password", lasting=True
        )
    if code == _BAD_CLIENT_ID:
        return ConnectionFault(
            f"{broker} refused our client id; let it take those that begin with `fedpatch.`", lasting=True
        )
    if code == _BANNED:
        return ConnectionFault(f"{broker} has banned this client; ask the broker's operator", lasting=True)
    if code in _NO_ROOM:
        return ConnectionFault(
            f"{broker} has no room for another client ({str(reason).lower()}); try later, or {_RAISE_LIMITS}"
        )
    if code in _ELSEWHERE:
        return ConnectionFault(f"{broker} refused the connection: {str(reason).lower()}; write that server's address")
    if code == _RETAINS_NOTHING:
        return ConnectionFault(f"{broker} retains no messages, not even a last will", retains_nothing=True)
    return ConnectionFault(f"{broker} refused the connection: {str(reason).lower()}; see its log")


def lost(broker: BrokerUrl, reason: Reason, by_broker: bool, accepted: bool) -> ConnectionFault:
    """Return the fault for a connection that ended.

    Args:
        reason: Reason code of the broker's DISCONNECT, or paho's own.
        by_broker: Whether the broker sent a DISCONNECT.
        accepted: Whether the broker had accepted the connection.

    Returns:
        The fault.
    """
    code = reason.value
    if not by_broker:
        if not accepted:
            return _unanswered(broker)
        silence = code == _KEEPALIVE_TIMEOUT
        if not silence:
            return lost_silently(broker)
        return ConnectionFault(f"{broker} has been silent for too long; {TEST_LARGE_PACKETS.format(host=broker.host)}")
    if code == _TAKEN_OVER:
        return ConnectionFault(f"{broker} closed the connection: {SAME_NAME}; give every device its own")
    if code == _PACKET_TOO_LARGE:
        return ConnectionFault(f"{broker} closed the connection: a message was too large; {USE_SMALLER_CHUNKS}")
    return ConnectionFault(f"{broker} closed the connection: {str(reason).lower()}")


def silent(broker: BrokerUrl) -> ConnectionFault:
    """Return the fault for a CONNECT without an answer; some 3.1.1 brokers do not answer one of MQTT 5."""
    hint = f" {broker.scheme_hint}" if broker.scheme_hint else ""
    return ConnectionFault(f"{broker} does not answer; is it an MQTT broker?{hint}", unanswered=True)


def _unanswered(broker: BrokerUrl) -> ConnectionFault:
    """Return the fault for a closed connection: no MQTT broker, an old one, or one that expects TLS."""
    with_tls = "? " + (broker.scheme_hint or "Is this its port with TLS? For the other, write mqtt://")
    hint = with_tls if broker.tls else ", and is this its port without TLS? For the other, write mqtts://"
    room = "with room for another client (mosquitto: max_connections)"
    return ConnectionFault(
        f"{broker} closed the connection without an answer; is it an MQTT broker {room}{hint}", unanswered=True
    )


def unacknowledged(broker: BrokerUrl) -> ConnectionFault:
    """Return the fault for a connection on which the broker acknowledges a message not in time, or nothing at all."""
    return ConnectionFault(
        f"{broker} did not acknowledge a message in time, so the link is made anew; "
        f"{TEST_LARGE_PACKETS.format(host=broker.host)}"
    )


def renewed(broker: BrokerUrl) -> ConnectionFault:
    """Return the fault for a connection that the link ends in order to use a renewed certificate."""
    return ConnectionFault(f"our certificate was renewed, so the connection to {broker} is made anew", renewal=True)


def lost_silently(broker: BrokerUrl) -> ConnectionFault:
    """Return the fault for a connection that ended without a stated reason."""
    return ConnectionFault(f"the connection to {broker} was lost")
