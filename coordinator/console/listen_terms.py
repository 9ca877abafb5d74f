"""The terms of a console: address, TLS and token, and the checks before it listens."""

from __future__ import annotations

import secrets
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from fedpatch.coordinator.console.logins import LEAST_TOKEN
from fedpatch.shared.app.files import refusals_of, write_atomic
from fedpatch.shared.config.listen_address import Address, is_loopback
from fedpatch.shared.config.secret_file import read_secret
from fedpatch.shared.errors import UsageError
from fedpatch.shared.mqtt.tls_context import load_own

DEFAULT_LISTEN = "127.0.0.1:8465"
TOKEN_FILE = "console-token"  # nosec B105 - the name of a file
_MAX_TOKEN_BYTES = 1024


@dataclass(frozen=True, kw_only=True)
class ConsoleTerms:
    """Address and access rules of a console.

    Attributes:
        listen: Address to listen on.
        actions: Whether the operator can act.
        token_file: File with the operator's token, mode 0600.
        tls_cert: Certificate of the console, PEM.
        tls_key: Its key, PEM; None if the certificate's file has it.
        client_ca: CA of the browsers' certificates, PEM; a browser without a certificate gets no answer.
        names: Further hosts under which the console is reached.
        begin: Files of settings of runs that the operator may begin.
    """

    listen: Address
    actions: bool = False
    token_file: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    client_ca: Path | None = None
    names: tuple[str, ...] = ()
    begin: tuple[Path, ...] = ()

    @property
    def local(self) -> bool:
        """True if only this machine can reach the console."""
        return is_loopback(self.listen.host)

    @property
    def read_needs_login(self) -> bool:
        """True if reading needs the token: from another machine without a certificate."""
        return not self.local and self.client_ca is None

    @property
    def hosts(self) -> frozenset[str]:
        """Lower-case hosts that a request may name."""
        here = {"localhost", "127.0.0.1", "::1"} if self.local else {socket.gethostname().lower()}
        return frozenset({*here, self.listen.host.lower(), *(name.lower() for name in self.names)})

    def check(self) -> None:
        """Raise UsageError for terms under which others could read or act."""
        where = f"--listen {self.listen} is reached from other machines"
        local = f"listen on {DEFAULT_LISTEN} (`ssh -L` reaches it from elsewhere)"
        if not self.local and self.tls_cert is None:
            raise UsageError(f"{where}, which needs TLS; give --tls-cert and --tls-key, or {local}")
        if not self.local and self.token_file is None and self.client_ca is None:
            raise UsageError(f"{where}, which needs a login; give --token-file or --client-ca, or {local}")
        if self.tls_cert is None and (self.tls_key is not None or self.client_ca is not None):
            given = "--tls-key" if self.tls_key is not None else "--client-ca"
            raise UsageError(f"{given} is of no use without TLS; give --tls-cert too")
        if self.begin and not self.actions:
            raise UsageError("--begin is of no use without a login; give --actions too")

    def ssl_context(self) -> ssl.SSLContext | None:
        """Return the context of TLS; None without. Raises UsageError for files that are unusable."""
        if self.tls_cert is None:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        key, remedy = self.tls_key or self.tls_cert, "correct --tls-cert and --tls-key, which name PEM files"
        load_own(context, self.tls_cert, key, remedy)
        if self.client_ca is not None:
            try:
                context.load_verify_locations(self.client_ca)
            except OSError as error:
                why = getattr(error, "reason", None) or error.strerror or error
                raise UsageError(f"--client-ca {self.client_ca}: {why}; name a PEM file of CA certificates") from None
            context.verify_mode = ssl.CERT_REQUIRED
        return context


def token_of(terms: ConsoleTerms, state_dir: Path | None) -> tuple[str | None, Path | None]:
    """Return the operator's token and its file; if a token is needed and not given, make one in the state directory.

    Raises:
        UsageError: The file is unusable, others may read it, or the token is too short.
        StateError: A new token cannot be written.
    """
    if terms.token_file is not None:
        return _read_token(terms.token_file), terms.token_file
    if not terms.actions:
        return None, None
    if state_dir is None or not state_dir.is_dir():
        raise UsageError("--actions needs the state directory of a coordinator; name it with --state-dir")
    path = state_dir / TOKEN_FILE
    if not path.exists():
        with refusals_of(path):
            write_atomic(path, f"{secrets.token_urlsafe(24)}\n".encode())
    return _read_token(path), path


def _read_token(path: Path) -> str:
    remedy = f"make one: openssl rand -hex 24 | install -m 0600 /dev/stdin {path}"
    token = read_secret(path, "token file", "token", remedy, _MAX_TOKEN_BYTES).strip()
    if not token.isprintable() or not token.isascii() or len(token) < LEAST_TOKEN:
        raise UsageError(f"token file {path}: holds no line of {LEAST_TOKEN} or more ASCII characters; {remedy}")
    return token
