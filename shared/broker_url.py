"""Where a broker is: mqtt://host[:port] or mqtts://host[:port]."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from shared.errors import UsageError

DEFAULT_PORTS = {"mqtt": 1883, "mqtts": 8883}


@dataclass(frozen=True)
class BrokerUrl:
    """A broker's address; `username` is None where the URL names none."""

    host: str
    port: int
    tls: bool
    username: str | None = None

    def __str__(self) -> str:
        """The broker as messages name it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_broker_url(text: str) -> BrokerUrl:
    """The broker that `text` names; UsageError says how to write it properly."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        raise UsageError(f"broker URL {text!r} has no scheme; write mqtt://{text} (or mqtts://{text} for TLS)")
    if scheme not in DEFAULT_PORTS:
        raise UsageError(f"broker URL {_hidden(text)!r}: {scheme}:// is not spoken here; use mqtt:// or mqtts://")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise UsageError(f"broker URL {_hidden(text)!r}: wrong address or port; write {scheme}://host:1883") from None
    if parts.password is not None:
        raise UsageError(f"broker URL {_hidden(text)!r} holds a password, which logs would show; give it separately")
    if not parts.hostname or port == 0 or any(char.isspace() for char in rest):
        raise UsageError(f"broker URL {text!r} names no host and port; write {scheme}://host[:port]")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise UsageError(f"broker URL {text!r}: nothing may follow the port; write {scheme}://{parts.netloc}")
    username = unquote(parts.username) if parts.username else None
    return BrokerUrl(parts.hostname, port or DEFAULT_PORTS[scheme], scheme == "mqtts", username)


def _hidden(text: str) -> str:
    scheme, _, rest = text.partition("://")
    user, separator, address = rest.rpartition("@")
    return f"{scheme}://{user.partition(':')[0]}:...@{address}" if separator and ":" in user else text
