"""How a connection to a broker is secured: whom to trust, and with which certificate to say who we are.

Which files say whom to trust at a broker, and who we are there.
"""

from __future__ import annotations

import math
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpatch.shared.app.files import OPEN_TO_OTHERS, stamp_of
from fedpatch.shared.errors import UsageError
from fedpatch.shared.mqtt.certificate import MAX_PEM_BYTES, Certificate, read_der, read_pem
from fedpatch.shared.mqtt.url import BrokerUrl


@dataclass(frozen=True)
class TlsFiles:
    """PEM files: the CAs to trust (None: the system's); our own certificate and its key (None: we have none).

    Both may be in one file, so that they change in one rename; then the two paths are the same.
    """

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None

    def paths(self) -> tuple[Path, ...]:
        """Those that there are, each once."""
        return tuple(dict.fromkeys(one for one in (self.ca_file, self.cert_file, self.key_file) if one is not None))


LOOK_EVERY_S = 5.0


def tls_context(broker: BrokerUrl, files: TlsFiles) -> ssl.SSLContext | None:
    """TLS 1.2 or later, the broker's certificate checked, and ours given where we have one; None without TLS.

    UsageError, with the mend, for a file that is of no use, and for a key that others may read.
    """
    if not broker.tls:
        for what, path in (("CA file", files.ca_file), ("certificate", files.cert_file)):
            if path is not None:
                raise UsageError(f"a {what} is of no use with mqtt://{broker}; write mqtts:// to use TLS")
        return None
    try:
        context = ssl.create_default_context(cafile=files.ca_file)
    except OSError as error:
        raise UsageError(
            f"{files.ca_file}: not a file of CA certificates in PEM form ({error.strerror or error})"
        ) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.sslsocket_class = AlertCapturingSocket
    if files.cert_file is not None:
        _load_own(context, files.cert_file, files.key_file or files.cert_file)
    return context


def key_problem(key_file: Path) -> tuple[str, str] | None:
    """Why a key must not be used as it lies there, and the mend; None where it may."""
    try:
        mode = key_file.stat().st_mode & 0o777
    except OSError as error:
        return f"{key_file}: {error.strerror}", "enrol this device (fedpatch-agent enrol FILE), or correct key_file"
    # Whoever can read a key is whoever it belongs to.
    if mode & OPEN_TO_OTHERS:
        return f"{key_file} is open to other users (mode {mode:04o}), who could pass for us", f"chmod 600 {key_file}"
    return None


def certificates_of(path: Path | None) -> list[Certificate]:
    """What is in a PEM file, for telling people; nothing where it cannot be read."""
    try:
        if path is not None:
            with path.open("rb") as file:
                return read_pem(file.read(MAX_PEM_BYTES + 1))
    except (OSError, ValueError):
        pass
    return []


def peer_ends(sock: object) -> float | None:
    """When the certificate expires that the other side showed; None without TLS."""
    if not isinstance(sock, ssl.SSLSocket):
        return None
    try:
        return read_der(sock.getpeercert(binary_form=True) or b"").not_after
    except (OSError, ValueError):
        return None


class Credentials:
    """The files of a connection, read again whenever they have changed: a renewed certificate is taken up so."""

    def __init__(self, broker: BrokerUrl, files: TlsFiles) -> None:
        self.files = files
        self._broker = broker
        self._stamp = self._look()
        self._context = tls_context(broker, files)
        self._looked_at = -math.inf

    def context(self) -> ssl.SSLContext | None:
        """For the next connection. UsageError where the files are of no use now."""
        if (stamp := self._look()) != self._stamp:
            self._context = tls_context(self._broker, self.files)
            self._stamp = stamp
        return self._context

    def renewed(self, now: float) -> bool:
        """Whether the files are others than those of the last connection, and can be used: half a renewal is none.

        Looks every few seconds of `now`, however often it is asked.
        """
        if now < self._looked_at + LOOK_EVERY_S:
            return False
        self._looked_at = now
        if self._look() == self._stamp:
            return False
        try:
            tls_context(self._broker, self.files)
        except UsageError:
            return False
        return True

    def _look(self) -> tuple[tuple[int, ...], ...]:
        return tuple(map(stamp_of, self.files.paths()))  # with the mode: a key may have been closed to others


class AlertCapturingSocket(ssl.SSLSocket):
    """Closes itself when the handshake fails, which paho leaves to the garbage collector, and keeps what the broker says.

    With TLS 1.3 a broker refuses our certificate when the handshake is over on our side; paho drops what it says.
    """

    alert: ssl.SSLError | None = None

    def do_handshake(self, block: bool = False) -> None:
        """As the base class; leaves no open socket behind."""
        try:
            super().do_handshake(block)
        except Exception:
            self.close()
            raise

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """As the base class; an alert is kept."""
        try:
            return super().recv(buflen, flags)
        except ssl.SSLError as error:
            self._keep(error)
            raise

    def send(self, data: Any, flags: int = 0) -> int:
        """As the base class; where the broker has closed the connection, its last words are read."""
        try:
            return super().send(data, flags)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except OSError as error:
            self._keep(error)
            if self.alert is None:
                self._listen_once_more()
            raise

    def _listen_once_more(self) -> None:
        try:
            super().recv(1)
        except (OSError, ValueError) as error:
            self._keep(error)

    def _keep(self, error: Exception) -> None:
        # All else is about the connection: that it waits, that it is gone.
        if isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or str(error)).upper():
            self.alert = self.alert or error


def _load_own(context: ssl.SSLContext, cert_file: Path, key_file: Path) -> None:
    if problem := key_problem(key_file):
        raise UsageError("; ".join(problem))
    try:
        # Without a password of ours OpenSSL would ask for one on the terminal.
        context.load_cert_chain(cert_file, key_file, password=lambda: b"")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            text = (
                f"the key in {key_file} is not that of the certificate in {cert_file}; enrol again, or correct key_file"
            )
            raise UsageError(text) from None
        raise UsageError(
            f"{cert_file} and {key_file}: not a certificate and its key, without a password, in PEM form "
            f"({error.reason or error})"
        ) from None
    except OSError as error:
        raise UsageError(f"{cert_file}: {error.strerror or error}; enrol this device, or correct cert_file") from None
