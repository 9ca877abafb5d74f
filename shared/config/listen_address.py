"""Address that a server listens on: HOST:PORT, and whether a host is this machine."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from fedpatch.shared.errors import UsageError

_LOOPBACK_6 = ipaddress.ip_address("::1")


@dataclass(frozen=True)
class Address:
    """An address to listen on; port 0 takes a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        """As URLs write it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Return the address that `text` names; UsageError describes the form."""
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise UsageError(f"{text!r} is no HOST:PORT; an IPv6 address goes in brackets, as in [::1]:9464")
    if not host or any(char.isspace() or char == "/" for char in host) or not (port.isascii() and port.isdecimal()):
        raise UsageError(f"{text!r} is no HOST:PORT; write for example 127.0.0.1:9464")
    if len(port) > 5 or int(port) > 65_535:
        raise UsageError(f"{text!r}: there is no port {port}; the greatest is 65535")
    return Address(host, int(port))


def is_loopback(host: str) -> bool:
    """Return whether a host as written is this machine: `localhost`, 127.0.0.0/8 or ::1; no name is resolved.

    Example:
        >>> [is_loopback(host) for host in ("LOCALHOST", "127.9.9.9", "::1", "192.0.2.1", "localhost.evil.example")]
        [True, True, True, False, False]
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host.lower() == "localhost"
    return address.is_loopback if address.version == 4 else address == _LOOPBACK_6
