"""What both sides are told about the broker: where it is, as whom to connect, and for which fleet."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shared.broker_url import parse_broker_url
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
        help="URL of the MQTT broker, mqtt://HOST:PORT or, with TLS, mqtts://.",
    )
    username: str | None = setting(None, group=CONNECTION, help="User name for the broker.")
    password: str | None = setting(None, group=CONNECTION, secret=True, help="Password for the broker.")
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
        if self.password is not None and self.username is None and url.username is None:
            problems.append(("password", "set without a user name; set username too", "username", "broker"))
        for name in ("ca_file", "cert_file"):
            if getattr(self, name) is not None and not url.tls:
                problems.append((name, f"of no use with mqtt://{url}; write mqtts:// to use TLS", "broker"))
        if self.key_file is not None and self.cert_file is None:
            problems.append(("key_file", "set without a certificate; set cert_file too", "cert_file"))
        return problems
