"""TLS of a broker connection: the files of CA, certificate and key, and the context made of them."""

from __future__ import annotations

import math
import os
import shlex
import ssl
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpatch.shared.app.files import remedy_to_read, stamp_of
from fedpatch.shared.errors import UsageError
from fedpatch.shared.mqtt.certificate import MAX_PEM_BYTES, Certificate, read_der, read_pem
from fedpatch.shared.mqtt.key_file import ENROL, key_problem
from fedpatch.shared.mqtt.url import BrokerUrl


@dataclass(frozen=True)
class TlsFiles:
    """PEM files of a connection.

    Attributes:
        ca_file: Trusted CAs; None: the system's.
        cert_file: Own certificate; None: there is none.
        key_file: Key of the certificate; None: in `cert_file`. A single file for both can be replaced by one rename.
        accept_lax_ca: Whether a CA certificate may lack extensions that RFC 5280 requires; Python 3.13 checks them.
    """

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    accept_lax_ca: bool = False

    def paths(self) -> tuple[Path, ...]:
        """Return the paths that are set, each once."""
        paths = (self.ca_file, self.cert_file, self.key_file)
        return tuple(dict.fromkeys(path for path in paths if path is not None))


LOOK_EVERY_S = 5.0


def tls_context(broker: BrokerUrl, files: TlsFiles) -> ssl.SSLContext | None:
    """Return a context for TLS 1.2 or later that checks the broker's certificate; None for a broker without TLS.

    It presents the own certificate, if there is one. Raises UsageError for an unusable file, and for a key that others may
    read.
    """
    if not broker.tls:
        for kind, path in (("CA file", files.ca_file), ("certificate", files.cert_file)):
            if path is not None:
                raise UsageError(f"a {kind} is of no use with mqtt://{broker}; write mqtts:// to use TLS")
        return None
    try:
        context = ssl.create_default_context(cafile=files.ca_file)
    except OSError as error:
        raise UsageError(_ca_problem(files.ca_file, error)) from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if files.accept_lax_ca:
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.sslsocket_class = AlertCapturingSocket
    if files.cert_file is not None:
        load_own(context, files.cert_file, files.key_file or files.cert_file)
    return context


def _ca_problem(path: Path | None, error: OSError) -> str:
    """Return why a CA file cannot be loaded, and the remedy."""
    remedy = "correct --ca-file (ca_file): it names the certificate of the CA that signed the broker's"
    with suppress(OSError):
        if path is not None and path.read_bytes()[:2] == b"\x30\x82":  # DER: a sequence with a length of two bytes
            convert = f"openssl x509 -inform DER -in {shlex.quote(str(path))} -out ca.crt"
            remedy = f"it is in DER form: make a PEM file of it ({convert})"
    why = getattr(error, "reason", None) or error.strerror or error
    if path is not None and isinstance(error, PermissionError):
        return f"{path}: cannot be read: {why}; {remedy_to_read(error, path, remedy)}"
    return f"{path}: not a file of CA certificates in PEM form ({why}); {remedy}"


def load_own(context: ssl.SSLContext, cert_file: Path, key_file: Path, remedy: str = ENROL) -> None:
    """Load the own certificate and its key into a context.

    Args:
        cert_file: PEM file of the certificate.
        key_file: PEM file of the key, which has no password.
        remedy: The remedy for files that are unusable.

    Raises:
        UsageError: A file is unusable, or others may read the key.

    Example:
        >>> context = ssl.create_default_context()
        >>> load_own(context, Path("device.crt"), Path("device.key"))  # doctest: +SKIP
    """
    if problem := key_problem(key_file, remedy):
        raise UsageError("; ".join(problem))
    try:
        # Without a password callback OpenSSL would ask for one on the terminal.
        context.load_cert_chain(cert_file, key_file, password=lambda: b"")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            text = f"the key in {key_file} is not that of the certificate in {cert_file}; {remedy}"
        else:
            text = (
                f"{cert_file} and {key_file}: not a certificate and its key, without a password, in PEM form "
                f"({error.reason or error}); {remedy}"
            )
        raise UsageError(text) from None
    except OSError as error:
        # OpenSSL names no file.
        path = next(
            (one for one in (cert_file, key_file) if not os.access(one, os.R_OK, effective_ids=True)), cert_file
        )
        raise UsageError(f"{path}: {error.strerror or error}; {remedy_to_read(error, path, remedy)}") from None


def certificates_of(path: Path | None) -> list[Certificate]:
    """Return the certificates of a PEM file, for messages; none if the file cannot be read."""
    try:
        if path is not None:
            with path.open("rb") as file:
                return read_pem(file.read(MAX_PEM_BYTES + 1))
    except (OSError, ValueError):
        pass
    return []


def peer_ends(sock: object) -> float | None:
    """Return the unix time at which the peer's certificate expires; None without TLS."""
    if not isinstance(sock, ssl.SSLSocket):
        return None
    try:
        return read_der(sock.getpeercert(binary_form=True) or b"").not_after
    except (OSError, ValueError):
        return None


class Credentials:
    """TLS files of a connection. They are read again when they have changed, which picks up a renewed certificate."""

    def __init__(self, broker: BrokerUrl, files: TlsFiles) -> None:
        self.files = files
        self._broker = broker
        self._stamp = self._look()
        self._context = tls_context(broker, files)
        self._looked_at = -math.inf

    def context(self) -> ssl.SSLContext | None:
        """Return the context for the next connection. Raises UsageError if the files are unusable now."""
        if (stamp := self._look()) != self._stamp:
            self._context = tls_context(self._broker, self.files)
            self._stamp = stamp
        return self._context

    def renewed(self, now: float) -> bool:
        """Return whether the files have changed since the last connection and are usable: an incomplete renewal does not count.

        It reads the files at most every LOOK_EVERY_S seconds of `now`.
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
        return tuple(map(stamp_of, self.files.paths()))  # includes the mode: a corrected mode of the key is a change


class AlertCapturingSocket(ssl.SSLSocket):
    """TLS socket that closes itself when the handshake fails, and keeps the broker's TLS alert.

    paho leaves the closing to the garbage collector, and drops the alert. With TLS 1.3 a broker refuses a client's certificate
    by an alert after the handshake is over on the client's side.
    """

    alert: ssl.SSLError | None = None

    def do_handshake(self, block: bool = False) -> None:
        """Do as the base class, and close the socket if it fails."""
        try:
            super().do_handshake(block)
        except Exception:
            self.close()
            raise

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """Do as the base class, and keep an alert."""
        try:
            return super().recv(buflen, flags)
        except ssl.SSLError as error:
            self._keep(error)
            raise

    def send(self, data: Any, flags: int = 0) -> int:
        """Do as the base class, and read a pending alert if the broker has closed the connection."""
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
        # Other errors are about the state of the connection.
        if isinstance(error, ssl.SSLError) and "ALERT" in (error.reason or str(error)).upper():
            self.alert = self.alert or error
