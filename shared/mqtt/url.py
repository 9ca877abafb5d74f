"""Broker URLs: mqtts://host[:port], or mqtt://host[:port] without TLS. Without a scheme, mqtts:// is assumed."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from urllib.parse import SplitResult, unquote, urlsplit

from fedpatch.shared.config.listen_address import is_loopback
from fedpatch.shared.errors import UsageError

DEFAULT_PORTS = {"mqtt": 1883, "mqtts": 8883}
# A scheme without `://`, as in mqtt:/host, mqtt:host or mqtt//host; but `mqtt` and `mqtt:1883` are a host of this name.
_TORN_SCHEME = re.compile(r"(mqtts?)(?::/*(?!\d*/?$)|:?/+(?=.))/*(?P<rest>.*)", re.IGNORECASE)


def split_url(url: str) -> SplitResult:
    """Return the parts of a URL, with a valid port. Raises ValueError for any other text."""
    parts = urlsplit(url)
    _ = parts.hostname, parts.port  # reading them may raise
    return parts


def is_place(url: str, parts: SplitResult) -> bool:
    """Return whether a URL names no user and has printable ASCII characters only, without spaces.

    Example:
        >>> [is_place(url, split_url(url)) for url in ("https://cdn.example/a", "https://me@cdn.example/a")]
        [True, False]
    """
    return "@" not in parts.netloc and url.isascii() and url.isprintable() and " " not in url


@dataclass(frozen=True)
class BrokerUrl:
    """A broker's address.

    Attributes:
        host: Host name or IP address.
        port: TCP port.
        tls: Whether the scheme is mqtts.
        username: User name in the URL, if any.
        scheme_given: False if `mqtts://` was assumed.

    Example:
        >>> broker = parse_broker_url("mqtts://pi@broker.lan")
        >>> str(broker), broker.username
        ('broker.lan:8883', 'pi')
    """

    host: str
    port: int
    tls: bool
    username: str | None = None
    scheme_given: bool = field(default=True, compare=False)

    @property
    def loopback(self) -> bool:
        """True if the host as written is this machine: `localhost`, 127.0.0.0/8 or ::1.

        No name is resolved, because a hostile name server could redirect the connection to another machine.
        """
        return is_loopback(self.host)

    @property
    def exposed(self) -> bool:
        """True if messages leave this machine in plain text."""
        return not self.tls and not self.loopback

    @property
    def scheme_hint(self) -> str:
        """Hint for a failed connection if the URL has no scheme; else empty."""
        if self.scheme_given:
            return ""
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == DEFAULT_PORTS["mqtts"] else f":{self.port}"
        return f"the URL names no scheme, so TLS was assumed; for a broker without TLS write mqtt://{host}{port}"

    def __str__(self) -> str:
        """Host and port, as messages show them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_broker_url(text: str) -> BrokerUrl:
    """Parse a broker URL; TLS is assumed where it has no scheme. Raises UsageError, which shows the right form."""
    scheme_given = "://" in text
    if not scheme_given:
        _refuse_torn_scheme(text)
        text = f"mqtts://{text}"
    scheme, _, rest = text.partition("://")
    if scheme not in DEFAULT_PORTS:
        raise UsageError(f"broker URL {_hidden(text)!r}: scheme {scheme}:// is not supported; use mqtt:// or mqtts://")
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        if _is_bare_ipv6(rest):
            port = DEFAULT_PORTS[scheme]
            address = rest.removesuffix(f":{port}")  # rather the port than the last part of an address
            right = f"{scheme}://[{address if _is_bare_ipv6(address) else rest}]:{port}"
            raise UsageError(f"broker URL {text!r}: an address of IPv6 goes in brackets: write {right}") from None
        raise UsageError(
            f"broker URL {_hidden(text)!r}: wrong address or port; write {scheme}://host:{DEFAULT_PORTS[scheme]}"
        ) from None
    if parts.password is not None:
        raise UsageError(
            f"broker URL {_hidden(text)!r} holds a password, which logs would show; put it into a file and name that with "
            "--password-file (password_file)"
        )
    if any(char.isspace() for char in rest):
        raise UsageError(f"broker URL {text!r}: a space or a line end is in it; write {scheme}://host[:port]")
    if not parts.hostname or port == 0:
        raise UsageError(f"broker URL {text!r} names no host and port; write {scheme}://host[:port]")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise UsageError(f"broker URL {text!r}: nothing may follow the port; write {scheme}://{parts.netloc}")
    username = unquote(parts.username) if parts.username else None
    # RFC 6874 writes the % of fe80::1%eth0 as %25.
    host = re.sub("^([0-9a-f]*:[0-9a-f:.]*)%25(?=.)", r"\1%", parts.hostname)
    return BrokerUrl(host, port or DEFAULT_PORTS[scheme], scheme == "mqtts", username, scheme_given)


def _refuse_torn_scheme(text: str) -> None:
    if torn := _TORN_SCHEME.fullmatch(text):
        # Before an @ there may be a password.
        right = f"{torn[1].lower()}://{torn['rest'].rpartition('@')[2] or 'host'}"
        raise UsageError(f"broker URL: it has no :// after its scheme; write {right}")


def _is_bare_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False


def _hidden(text: str) -> str:
    scheme, colon, rest = text.partition("://") if "://" in text else ("", "", text)
    user, separator, address = rest.rpartition("@")
    return f"{scheme}{colon}{user.partition(':')[0]}:...@{address}" if separator and ":" in user else text
