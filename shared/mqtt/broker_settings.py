"""What both sides are told about the broker: where it is, as whom to connect, and for which fleet."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shared.broker_url import BrokerUrl, parse_broker_url
from shared.errors import UsageError
from shared.settings import NAME, Settings, setting
from shared.tls_files import TlsFiles

CONNECTION = "Connection"


@dataclass(frozen=True, kw_only=True)
class BrokerSettings(Settings):
    """Base of the settings of everything that connects to a broker of its user's."""

    broker: str = setting(
        "mqtt://127.0.0.1:1883",
        group=CONNECTION,
        help="URL of the MQTT broker, mqtts://HOST:PORT; without TLS, on this machine, mqtt://.",
    )
    username: str | None = setting(
        None,
        group=CONNECTION,
        help="User name for the broker; its password comes from password_file or the environment, never from an option.",
    )
    password: str | None = setting(None, group=CONNECTION, secret=True, help="Password for the broker.")
    password_file: Path | None = setting(  # noqa: RUF009  (a path does not change)
        None, group=CONNECTION, help="File that holds the password, which only its owner may read (mode 0600)."
    )
    ca_file: Path | None = setting(  # noqa: RUF009  (a path does not change)
        None, group=CONNECTION, default_means="the system's", help="CA certificate to trust for mqtts://, a PEM file."
    )
    cert_file: Path | None = setting(  # noqa: RUF009  (a path does not change)
        None,
        group=CONNECTION,
        default_means="none",
        help="Our own certificate for a broker that asks for one, a PEM file; it may hold the key too.",
    )
    key_file: Path | None = setting(  # noqa: RUF009  (a path does not change)
        None,
        group=CONNECTION,
        default_means="in cert_file",
        help="Key of cert_file, a PEM file that only its owner may read (mode 0600).",
    )
    insecure: bool = setting(
        False,
        group=CONNECTION,
        help="Allow mqtt:// to another machine: whoever is on the way can read and change everything, passwords too.",
    )
    fleet: str = setting(
        "default",
        group=CONNECTION,
        pattern=NAME,
        help="Fleet to belong to; fleets on one broker do not see each other.",
    )

    @property
    def tls_files(self) -> TlsFiles:
        """Whom to trust, and who we are."""
        return TlsFiles(self.ca_file, self.cert_file, self.key_file)

    def check(self) -> list[tuple[str, ...]]:
        """The URL must be one, a password needs a user name (MQTT 3.1.1, section 3.1.2.9), and a CA needs TLS."""
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
            text = f"mqtt://{url} is another machine, and without TLS everybody on the way can read and change what travels"
            problems.append(
                ("broker", f"{text}; write mqtts://, or allow it with --insecure (insecure = true)", "insecure")
            )
        return problems


def exposure(url: BrokerUrl) -> str:
    """What is to be said at each start of a connection that `insecure` allowed; empty where there is nothing to say."""
    if not url.exposed:
        return ""
    return f"insecure: no TLS to {url}; everybody on the way can read and change what travels, passwords too"
