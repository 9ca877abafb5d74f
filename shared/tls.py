"""Whom to trust as a broker, and how long."""

from __future__ import annotations

import ssl
from pathlib import Path

from shared.broker_url import BrokerUrl
from shared.errors import UsageError


def tls_context(broker: BrokerUrl, ca_file: Path | None) -> ssl.SSLContext | None:
    """How to check the broker's certificate: against `ca_file`, or the system's CAs; None without TLS."""
    if not broker.tls:
        if ca_file is not None:
            raise UsageError(f"a CA file is of no use with mqtt://{broker}; write mqtts:// to use TLS")
        return None
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise UsageError(f"{ca_file}: not a file of CA certificates in PEM form ({error.strerror or error})") from None
    context.sslsocket_class = _TidySocket
    return context


def first_expiry(certificates: Path) -> float | None:
    """When the first certificate of a PEM file expires, in unix seconds; None where the file holds none that can be read."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        context.load_verify_locations(certificates)
    except OSError:  # an SSLError is one, too
        return None
    ends = [one.get("notAfter") for one in context.get_ca_certs()]
    return min((ssl.cert_time_to_seconds(end) for end in ends if isinstance(end, str)), default=None)


class _TidySocket(ssl.SSLSocket):
    """Closes itself when the handshake fails, which paho leaves to the garbage collector."""

    def do_handshake(self, block: bool = False) -> None:
        try:
            super().do_handshake(block)
        except Exception:
            self.close()
            raise
