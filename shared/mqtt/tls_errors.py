"""TLS errors as sentences for people: which certificate failed, its dates, and the remedy.

The TLS library reports the failed check but not the certificate. If the CA in the own file is within its dates, the broker's
certificate is the cause; it is then fetched from the broker for its dates.
"""

from __future__ import annotations

import math
import re
import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fedpatch.shared.app.clock import is_synchronised
from fedpatch.shared.app.formatting import minute
from fedpatch.shared.mqtt.certificate import Certificate, read_der
from fedpatch.shared.mqtt.connection_errors import ConnectionFault
from fedpatch.shared.mqtt.tls_context import TlsFiles, certificates_of
from fedpatch.shared.mqtt.url import BrokerUrl

ASK_TIMEOUT_S = 4.0
RENEW = "fedpatch device rotate, then fedpatch-agent enrol; for a coordinator: fedpatch ca coordinator"

# Numbers of OpenSSL (X509_V_ERR_*), as SSLCertVerificationError.verify_code gives them.
_SIGNATURE, _NOT_YET_VALID, _EXPIRED, _REVOKED, _PURPOSE = 7, 9, 10, 23, 26
_UNKNOWN_CA = (18, 19, 20, 21, _SIGNATURE)
_NO_ISSUER = (20, 21)  # the chain ends below a CA: it is not in the file, or the broker sends only its own certificate
_OTHER_NAME = (62, 64)
_WEAK = (66, 67, 68)  # a key, or a signature, that is too short or of an old kind
_FOR_SIGNING = "keyUsage=critical,keyCertSign,cRLSign"
# The extension at fault, whether it is the CA's, and whether accept_lax_ca accepts it: OpenSSL checks some in any case.
_EXTENSIONS: Mapping[int, tuple[str, bool, bool]] = {
    24: ("basicConstraints=critical,CA:TRUE", True, False),
    32: (_FOR_SIGNING, True, False),
    79: (f"basicConstraints=critical,CA:TRUE, and {_FOR_SIGNING}", True, False),
    82: ("basicConstraints=critical,CA:TRUE", True, True),
    85: ("authorityKeyIdentifier=keyid", False, True),
    86: ("subjectKeyIdentifier=hash", True, True),
    87: ("subjectAltName=DNS:{host}", False, True),
    88: ("subjectAltName=critical,DNS:{host}", False, True),
    89: ("basicConstraints=critical,CA:TRUE", True, True),
    90: ("authorityKeyIdentifier=keyid (not critical)", False, True),
    91: ("subjectKeyIdentifier=hash (not critical)", True, True),
    92: (_FOR_SIGNING, True, True),
}
# Other checks of Python 3.13 only: lengths of paths, empty names, extensions in a certificate of version 1.
_STRICT = (80, 81, 83, 84, 93)
_ACCEPT = "; until then, accept_lax_ca = true accepts it"
_MAKE_CA = (
    "make the CA and the broker's certificate anew with `fedpatch ca init` and `fedpatch ca broker`, or by "
    "`openssl req -x509 -newkey rsa:2048 -nodes -days 3650 -subj /CN=myca -keyout ca.key -out ca.crt "
    "-addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign,cRLSign`"
)
_BEHIND = (
    "set the clock (sudo timedatectl set-ntp true, or a time server that can be reached); it goes on once that is done"
)
_AHEAD = (
    "a time server has set the clock here, so the machine that made it was ahead: set its clock, and make the certificate anew "
    "(fedpatch ca broker; a CA: fedpatch ca init)"
)
_MAKE_CERTIFICATE = "sign the broker's certificate anew (openssl x509 -req -extfile FILE, with the extension in FILE)"


@dataclass(frozen=True)
class TrustError:
    """A TLS problem and its remedy, separately as `doctor` prints them.

    `good_from` is the unix time from which the certificate is valid, where setting the clock may be enough.
    """

    problem: str
    remedy: str
    good_from: float | None = None

    def fault(self) -> ConnectionFault:
        """Return the fault for a link, which retries only if a correct clock may be enough."""
        return ConnectionFault(
            f"{self.problem}; {self.remedy}",
            lasting=self.good_from is None,
            good_from=self.good_from,
            remedy=self.remedy,
        )


def fault_of(broker: BrokerUrl, files: TlsFiles, error: BaseException | None) -> ConnectionFault | None:
    """Return the fault for an error of the TLS library.

    Returns:
        The fault, or None if the error is not about certificates.
    """
    found = trust_error_of(broker, files, error)
    return None if found is None else found.fault()


def trust_error_of(broker: BrokerUrl, files: TlsFiles, error: BaseException | None) -> TrustError | None:
    """Return the problem for an error of the TLS library.

    Returns:
        Problem and remedy, or None if the error is not about certificates.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return distrusted(broker, files, error)
    return refused_by_broker(broker, files, error) if isinstance(error, ssl.SSLError) else None


def distrusted(broker: BrokerUrl, files: TlsFiles, error: ssl.SSLCertVerificationError) -> TrustError:
    """Return the problem for a broker's certificate that failed the check. May connect to the broker for some seconds.

    Returns:
        Problem and remedy.
    """
    code = error.verify_code
    if code in (_NOT_YET_VALID, _EXPIRED):
        return _at_a_wrong_time(broker, files, code)
    problem = f"{broker} cannot be trusted: {error.verify_message}"
    if code in _OTHER_NAME:
        remedy = (
            f"write a name of its certificate in the broker URL, or make one with {broker.host} among its names "
            "(subjectAltName: a CN does not count)"
        )
        return TrustError(f"{broker} cannot be trusted: its certificate is not for the host name {broker.host}", remedy)
    if code in _UNKNOWN_CA:
        known = f"{files.ca_file} holds another CA" if files.ca_file else "the system does not know its CA"
        remedy = f"{known}; give --ca-file the PEM file of the CA that signed the broker's certificate"
        if code in _NO_ISSUER:
            remedy += "; of a CA with intermediates, the broker's certfile needs the whole chain (fullchain.pem)"
        return TrustError(f"{broker} cannot be trusted: its certificate is of an unknown CA", remedy)
    if code == _REVOKED:
        return TrustError(f"{broker} cannot be trusted: its certificate was revoked", "renew it (fedpatch ca broker)")
    if code == _PURPOSE:
        remedy = "give the broker a server's certificate (fedpatch ca broker)"
        return TrustError(f"{broker} cannot be trusted: its certificate is a client's, not a server's", remedy)
    if code in _EXTENSIONS:
        return _lax(broker, problem, code)
    if code in _WEAK:
        return TrustError(problem, f"{_MAKE_CA}; keys of RSA have at least 2048 bits, and signatures SHA-256")
    show = f"openssl s_client -connect {broker} -showcerts"
    accept = _ACCEPT if code in _STRICT else ""
    return TrustError(problem, f"see its certificates (`{show}`), and make them anew (fedpatch ca broker){accept}")


def _lax(broker: BrokerUrl, problem: str, code: int) -> TrustError:
    """Return the problem for a certificate whose extensions are not those of RFC 5280; Python 3.13 checks more of them."""
    extension, is_ca, can_accept = _EXTENSIONS[code]
    whose = "its CA certificate" if is_ca else "its certificate"
    accept = _ACCEPT if can_accept else ""
    return TrustError(
        f"{problem}: {whose} needs the extension {extension.format(host=broker.host)}",
        f"{_MAKE_CA if is_ca else _MAKE_CERTIFICATE}{accept}",
    )


def _at_a_wrong_time(broker: BrokerUrl, files: TlsFiles, code: int) -> TrustError:
    now = time.time()
    state = "not yet valid" if code == _NOT_YET_VALID else "expired"
    cas = [ca for ca in certificates_of(files.ca_file) if ca.standing(now) == state]
    certificate = cas[0] if cas else _presented(broker)
    what = f"the CA {cas[0].subject!r} in {files.ca_file}" if cas else f"the certificate of the broker {broker}"
    clock = f"the clock here says {minute(now)}"
    if state == "expired":
        since = f" since {minute(certificate.not_after)}" if certificate is not None else ""
        remedy = (
            "renew the CA (fedpatch ca renew) and give everybody its new ca.crt"
            if cas
            else "renew it (fedpatch ca broker)"
        )
        return TrustError(
            f"{what} has expired{since}; {clock}", f"{remedy}; where it is not old, set the clock (timedatectl)"
        )
    synchronised = is_synchronised()
    if synchronised is False:
        clock += " and is not synchronised with any time server"
    begins = f" before {minute(certificate.not_before)}" if certificate is not None else ""
    remedy = _AHEAD if synchronised else _BEHIND
    good_from = certificate.not_before if certificate is not None else math.inf
    return TrustError(f"{what} is not yet valid{begins}; {clock}", remedy, good_from=good_from)


def _presented(broker: BrokerUrl) -> Certificate | None:
    """Fetch the broker's certificate without trusting it; None if that fails."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with (
            socket.create_connection((broker.host, broker.port), timeout=ASK_TIMEOUT_S) as plain,
            context.wrap_socket(plain, server_hostname=broker.host) as secured,
        ):
            return read_der(secured.getpeercert(binary_form=True) or b"")
    except (OSError, ValueError):
        return None


def refused_by_broker(broker: BrokerUrl, files: TlsFiles, alert: ssl.SSLError) -> TrustError | None:
    """Return the problem for an alert (RFC 8446, section 6.2) by which the broker refuses the own certificate.

    Returns:
        Problem and remedy, or None if the alert is not about certificates.
    """
    now = time.time()
    word = _alert_name(alert)
    own = next(iter(certificates_of(files.cert_file)), None)
    if own is None:
        if word in ("CERTIFICATE_REQUIRED", "HANDSHAKE_FAILURE", "BAD_CERTIFICATE"):
            remedy = "enrol this device (fedpatch-agent enrol FILE), or give cert_file and key_file"
            if word == "HANDSHAKE_FAILURE":  # with TLS 1.2 also a broker that has no cipher in common with us
                remedy += ", or give the broker the default `ciphers`, if it asks for none"
            return TrustError(f"{broker} asks for a certificate, and we have none", remedy)
        return None
    ours = f"our certificate for {own.subject!r} ({files.cert_file})"
    if word == "CERTIFICATE_EXPIRED":
        return _says_expired(broker, files, own, ours, now)
    if word == "CERTIFICATE_REVOKED":
        remedy = "ask the fleet's operator; a device that may come back gets a new one (fedpatch device add)"
        return TrustError(f"{broker} refused {ours}: it was revoked", remedy)
    if word in ("UNKNOWN_CA", "DECRYPT_ERROR"):
        remedy = "enrol with a bundle of this broker's fleet, or give the broker that CA (cafile)"
        text = f"the broker does not know its CA, {own.issuer!r}: is it a certificate for another fleet?"
        return TrustError(f"{broker} refused {ours}: {text}", remedy)
    if word in ("BAD_CERTIFICATE", "UNSUPPORTED_CERTIFICATE", "CERTIFICATE_UNKNOWN", "ACCESS_DENIED"):
        if own.standing(now) == "not yet valid":
            return TrustError(
                f"{broker} refused {ours}: it is not yet valid before {minute(own.not_before)}",
                "set the clocks of this machine, of the broker and of the CA (timedatectl)",
                good_from=own.not_before,
            )
        return TrustError(f"{broker} refused {ours}", "look into the broker's log, and at the broker's clock")
    return None


def _says_expired(broker: BrokerUrl, files: TlsFiles, own: Certificate, ours: str, now: float) -> TrustError:
    if own.standing(now) == "expired":
        return TrustError(f"{broker} refused {ours}: it has expired on {minute(own.not_after)}", f"renew it ({RENEW})")
    expired = next((ca for ca in certificates_of(files.ca_file) if ca.standing(now) == "expired"), None)
    if expired is not None:
        return TrustError(
            f"{broker} refused {ours}: its CA {expired.subject!r} has expired on {minute(expired.not_after)}",
            "renew the CA (fedpatch ca renew) and give everybody its new ca.crt, the broker too",
        )
    return TrustError(
        f"{broker} refused {ours} as expired; by the clock here it is good until {minute(own.not_after)}",
        "set the broker's clock, or give it a new CA certificate and revocation list (fedpatch ca crl)",
    )


def _alert_name(alert: ssl.SSLError) -> str:
    """Return the alert's name, as `CERTIFICATE_EXPIRED` for OpenSSL's SSLV3_ALERT_CERTIFICATE_EXPIRED or TLS_ALERT_..."""
    text = re.sub(r"[^A-Z0-9]+", "_", str(alert.reason or alert).upper())
    match = re.search(r"ALERT_([A-Z_]+?)_?(?:_SSL_C_[0-9]+_?)?$", text)
    return match[1] if match else ""


def expiry_of(path: Path | None) -> float | None:
    """Return the unix time at which the first certificate of a PEM file expires; None if none can be read."""
    return min((certificate.not_after for certificate in certificates_of(path)), default=None)
