"""MQTT 3.1.1 without a library, for client actions that no library allows."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator

PATIENCE_S = 60.0


def packet(kind: int, body: bytes, flags: int = 0) -> bytes:
    """A whole packet with its remaining length; `kind` is the upper four bits of the first byte."""
    return bytes([kind << 4 | flags]) + length(len(body)) + body


def length(size: int) -> bytes:
    """The variable byte integer of MQTT."""
    encoded = b""
    while True:
        size, digit = divmod(size, 128)
        encoded += bytes([digit | (0x80 if size else 0)])
        if not size:
            return encoded


def text(value: bytes) -> bytes:
    """Two bytes of length, then the bytes, unchecked."""
    return struct.pack(">H", len(value)) + value


def hello(client_id: bytes, *, protocol: bytes = b"MQTT", level: int = 4, flags: int = 2, keepalive: int = 60) -> bytes:
    return packet(1, text(protocol) + bytes([level, flags]) + struct.pack(">H", keepalive) + text(client_id))


def publish(topic: bytes, payload: bytes, *, flags: int = 0, mid: int = 0) -> bytes:
    """PUBLISH; `flags` are the bits of DUP, QoS and RETAIN in the first byte."""
    return packet(3, text(topic) + (struct.pack(">H", mid) if flags & 6 else b"") + payload, flags)


def subscribe(topic: bytes, *, qos: int = 1, flags: int = 2) -> bytes:
    return packet(8, struct.pack(">H", 1) + text(topic) + bytes([qos]), flags)


@contextlib.contextmanager
def opened(port: int) -> Iterator[socket.socket]:
    """A connection to the broker, before its first packet."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as connection:
        yield connection


@contextlib.contextmanager
def welcomed(port: int, client_id: str) -> Iterator[socket.socket]:
    """A connection that the broker has accepted."""
    with opened(port) as connection:
        connection.sendall(hello(client_id.encode()))
        answer = connection.recv(4)
        assert answer[:1] == b"\x20", f"no CONNACK: {answer!r}"
        assert answer[3:] == b"\x00", f"refused: {answer!r}"
        yield connection


def is_shown_the_door(connection: socket.socket) -> bool:
    """Return whether the broker ends the connection, regardless of earlier messages."""
    connection.settimeout(PATIENCE_S)
    try:
        while connection.recv(4096):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True


def flood(port: int, client_id: str, packets: list[bytes]) -> None:
    """Send all `packets` as fast as the broker reads them; return when it has read the last."""
    with welcomed(port, client_id) as connection:
        for start in range(0, len(packets), 500):
            connection.sendall(b"".join(packets[start : start + 500]))
        connection.sendall(b"\xc0\x00")  # the broker answers a ping after it has read all earlier packets
        connection.settimeout(PATIENCE_S)
        answer = connection.recv(2)
        assert answer == b"\xd0\x00", f"no answer to a ping: {answer!r}"
