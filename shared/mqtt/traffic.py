"""Bytes that a connection has moved, as the kernel counts them: with TLS, keepalive and acknowledgements of MQTT."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from typing import Any

# struct tcp_info of linux/tcp.h: tcpi_bytes_acked and tcpi_bytes_received, since Linux 4.1.
_COUNTS = struct.Struct("QQ")
_OFFSET = 120
_LENGTH = _OFFSET + _COUNTS.size


@dataclass(frozen=True)
class Traffic:
    """Bytes in TCP segments, without repetitions."""

    sent_bytes: int = 0
    received_bytes: int = 0

    def plus(self, other: Traffic) -> Traffic:
        """Sum of both."""
        return Traffic(self.sent_bytes + other.sent_bytes, self.received_bytes + other.received_bytes)

    def since(self, earlier: Traffic) -> Traffic:
        """Traffic after an earlier count of the same connections."""
        return Traffic(self.sent_bytes - earlier.sent_bytes, self.received_bytes - earlier.received_bytes)

    @property
    def total_bytes(self) -> int:
        """Bytes both ways."""
        return self.sent_bytes + self.received_bytes


def traffic_of(connection: Any) -> Traffic:
    """Return what a TCP connection has moved so far; nothing where the kernel does not count, or the connection is closed."""
    tcp = getattr(connection, "_socket", connection)  # paho wraps the socket of a WebSocket
    try:
        info = tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _LENGTH)
    except (OSError, AttributeError):
        return Traffic()
    return Traffic(*_COUNTS.unpack_from(info, _OFFSET)) if len(info) == _LENGTH else Traffic()
