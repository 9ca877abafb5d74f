"""What both sides are told about the broker: where it is, as whom to connect, and for which fleet."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from shared.broker_url import BrokerUrl, parse_broker_url
from shared.errors import UsageError
from shared.settings import NAME, Settings, setting

CONNECTION = "Connection"


@dataclass(frozen=True, kw_only=True)
class BrokerSettings(Settings):
    """Base of the settings of everything that connects to a broker of its user's."""

    broker: str = setting(
        "mqtt://127.0.0.1:1883",
        group=CONNECTION,
        help="URL of the MQTT broker, mqtts://HOST:PORT; without TLS, on this machine, mqtt://.",
    )
    username: str | None = setting(None, group=CONNECTION, help="User name for the broker.")
    password: str | None = setting(None, group=CONNECTION, secret=True, help="Password for the broker.")
    ca_file: Path | None = setting(  # noqa: RUF009  (a path does not change)
        None, group=CONNECTION, default_means="the system's", help="CA certificate to trust for mqtts://, a PEM file."
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

    def check(self) -> list[tuple[str, ...]]:
        """The URL must be one, a password needs a user name (MQTT 3.1.1, section 3.1.2.9), and a CA needs TLS."""
        problems = super().check()
        try:
            url = parse_broker_url(self.broker)
        except UsageError as error:
            return [*problems, ("broker", str(error))]
        if self.password is not None and self.username is None and url.username is None:
            problems.append(("password", "set without a user name; set username too", "username", "broker"))
        if self.ca_file is not None and not url.tls:
            problems.append(("ca_file", f"of no use with mqtt://{url}; write mqtts:// to use TLS", "broker"))
        elif url.exposed and not self.insecure:
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
