"""What both sides are told about the broker: where it is, as whom to connect, and for which fleet.

The password for a broker, where it lies in a file: on no command line, and in no environment that others could see.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from fedpatch.shared.app.files import OPEN_TO_OTHERS
from fedpatch.shared.config.fields import NAME, Settings, setting
from fedpatch.shared.errors import UsageError
from fedpatch.shared.mqtt.tls_context import TlsFiles
from fedpatch.shared.mqtt.url import BrokerUrl, parse_broker_url

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


MAX_BYTES = 4096

# Whoever can read a password can be whoever it belongs to.
# systemd lets its service in by an ACL, whose mask shows as the rights of a group that nobody is in.
_SHOWN_BY_SYSTEMD = 0o040


def password_of(settings: BrokerSettings) -> str | None:
    """The password that the settings hold or name a file for; None where they do neither.

    UsageError, with the mend and never with what is in it, for a file that cannot be used or that others may read.
    """
    if settings.password_file is None:
        return settings.password
    return read_password(settings.password_file)


def read_password(path: Path) -> str:
    """What is in `path`, one line of UTF-8, without the end of the line."""
    remedy = "put the password there on one line: install -m 0600 /dev/stdin " + str(path)
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode & 0o777
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"password_file {path}: {error.strerror or error}; {remedy}") from None
    if mode & _allowed_to_nobody(path):
        raise UsageError(
            f"password_file {path} is open to other users (mode {mode:04o}); chmod 600 {path}, and choose another password"
        )
    try:
        text = data.decode("utf-8").removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError:
        raise UsageError(f"password_file {path}: is not UTF-8 text; {remedy}") from None
    if not text or len(data) > MAX_BYTES or any(char in text for char in "\n\r\0"):
        raise UsageError(f"password_file {path}: holds no password on one line; {remedy}")
    return text


def _allowed_to_nobody(path: Path) -> int:
    given = os.environ.get("CREDENTIALS_DIRECTORY")
    of_systemd = given is not None and path.absolute().parent == Path(given)
    return OPEN_TO_OTHERS & ~_SHOWN_BY_SYSTEMD if of_systemd else OPEN_TO_OTHERS
