"""Address that a server listens on: HOST:PORT."""

from __future__ import annotations

from dataclasses import dataclass

from fedpatch.shared.errors import UsageError


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
