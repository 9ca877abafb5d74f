"""Settings of the broker connection, and the password file.

A password never comes from the command line, where other users could see it. It comes from the environment or from a file
that only its owner can read.
"""

# ruff: noqa: RUF009  (what `_connection` returns does not change)

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypedDict

from fedpatch.shared.config.fields import NAME, Settings, setting
from fedpatch.shared.config.secret_file import read_secret
from fedpatch.shared.errors import UsageError
from fedpatch.shared.mqtt.broker_profile import NO_PROFILE, PROFILES, UNLIMITED, BrokerProfile
from fedpatch.shared.mqtt.tls_context import TlsFiles
from fedpatch.shared.mqtt.url import BrokerUrl, parse_broker_url

CONNECTION = "Connection"
_connection = partial(setting, group=CONNECTION)


@dataclass(frozen=True, kw_only=True)
class BrokerSettings(Settings):
    """Base class of the settings of each program that connects to the user's broker."""

    broker: str = _connection(
        "mqtt://127.0.0.1:1883", help="URL of the broker, mqtts://HOST:PORT; mqtt:// (no TLS) only on this machine."
    )
    username: str | None = _connection(None, help="User name for the broker.")
    password: str | None = _connection(None, secret=True, help="Password for the broker.")
    password_file: Path | None = _connection(None, help="File with the password, mode 0600.")
    ca_file: Path | None = _connection(None, default_means="the system's", help="Trusted CA certificate, PEM.")
    cert_file: Path | None = _connection(
        None, default_means="none", help="Own certificate, PEM; it may contain the key."
    )
    key_file: Path | None = _connection(None, default_means="in cert_file", help="Key of cert_file, PEM, mode 0600.")
    accept_lax_ca: bool = _connection(
        False, help="Accept a CA certificate without the extensions of RFC 5280, which Python 3.13 requires."
    )
    insecure: bool = _connection(
        False, help="Allow mqtt:// to another machine: the network can then read and change everything."
    )
    fleet: str = _connection("default", pattern=NAME, help="Name of the fleet.")

    broker_profile: str = _connection(
        NO_PROFILE,
        choices=(NO_PROFILE, *PROFILES),
        help="Limits of a hosted broker: AWS IoT Core or Azure Event Grid.",
    )

    @property
    def profile(self) -> BrokerProfile:
        """The limits that the connection keeps."""
        return PROFILES.get(self.broker_profile, UNLIMITED)

    @property
    def tls_files(self) -> TlsFiles:
        """The files of CA certificates, own certificate and key."""
        return TlsFiles(self.ca_file, self.cert_file, self.key_file, self.accept_lax_ca)

    def check(self) -> list[tuple[str, ...]]:
        """Return the problems of the settings, such as a password without user name (MQTT 3.1.1, section 3.1.2.9)."""
        problems = super().check()
        try:
            url = parse_broker_url(self.broker)
        except UsageError as error:
            return [*problems, ("broker", str(error))]
        given = [name for name in ("password", "password_file") if getattr(self, name) is not None]
        if given and self.username is None and url.username is None:
            problems.append((given[0], "set without a user name; set username too", "username", "broker"))
        if len(given) > 1:
            problems.append(("password_file", "set beside a password; keep one of them", "password"))
        for name in ("ca_file", "cert_file"):
            if getattr(self, name) is not None and not url.tls:
                problems.append((name, f"of no use with mqtt://{url}; write mqtts:// to use TLS", "broker"))
        if self.key_file is not None and self.cert_file is None:
            problems.append(("key_file", "set without a certificate; set cert_file too", "cert_file"))
        if url.exposed and not self.insecure and self.ca_file is None and self.cert_file is None:
            text = f"mqtt://{url} is another machine; without TLS everybody on the network path can read and change messages"
            problems.append(
                ("broker", f"{text}; write mqtts://, or allow it with --insecure (insecure = true)", "insecure")
            )
        return problems


def exposure(url: BrokerUrl) -> str:
    """Return the warning to log at each start of a connection that `insecure` allowed; empty where none is due."""
    if not url.exposed:
        return ""
    return f"insecure: no TLS to {url}; everybody on the network path can read and change messages and passwords"


def password_of(settings: BrokerSettings) -> str | None:
    """Return the password from the settings or from the file that they name; None where they have neither.

    Raises UsageError for a file that is unusable or that others may read. The message never has the file's content.
    """
    if settings.password_file is None:
        return settings.password
    return read_password(settings.password_file)


class LinkOptions(TypedDict):
    """Arguments of `MqttLink` that follow from settings alone."""

    username: str | None
    password: str | None
    tls: TlsFiles
    profile: BrokerProfile


def link_options(settings: BrokerSettings) -> LinkOptions:
    """Return the credentials and limits of a connection, as arguments of `MqttLink`. Raises UsageError as `password_of`."""
    return LinkOptions(
        username=settings.username, password=password_of(settings), tls=settings.tls_files, profile=settings.profile
    )


def read_password(path: Path) -> str:
    """Return the password in the file `path`: one line of UTF-8, without its end. Raises UsageError as `password_of`."""
    remedy = f"put the password there on one line: install -m 0600 /dev/stdin {path}"
    return read_secret(path, "password_file", "password", remedy)
