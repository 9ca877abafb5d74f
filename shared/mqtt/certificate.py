"""Parser of certificates (X.509: RFC 5280; DER: X.690), so that a device needs no further package to describe one.

It verifies nothing: the TLS library does that. It reads the fields that messages show: subject, issuer, dates.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from fedpatch.shared.app.formatting import printable

MAX_PEM_BYTES = 1024 * 1024
MAX_CERTIFICATES = 1000

_BLOCK = re.compile(rb"-----BEGIN CERTIFICATE-----([A-Za-z0-9+/=\s]*)-----END CERTIFICATE-----")
_SEQUENCE, _INTEGER, _OID, _BOOLEAN, _OCTETS = 0x30, 0x02, 0x06, 0x01, 0x04
_UTC_TIME, _TIME = 0x17, 0x18
_VERSION, _EXTENSIONS, _URI = 0xA0, 0xA3, 0x86
_NAMES = {b"\x55\x04\x03": "CN", b"\x55\x04\x0a": "O", b"\x55\x04\x0b": "OU"}
_BASIC_CONSTRAINTS, _ALTERNATIVE_NAMES = b"\x55\x1d\x13", b"\x55\x1d\x11"
_OURS = re.compile(r"fedpatch://([^/]+)/([^/]+)/([^/]+)")


@dataclass(frozen=True)
class CertificateOwner:
    """Owner of a certificate that fedpatch made: fleet, part (coordinator, device, broker) and name."""

    fleet: str
    part: str
    name: str


@dataclass(frozen=True)
class Certificate:
    """Fields of a certificate.

    Attributes:
        subject: Common name, or else the whole name.
        issuer: The same of the CA.
        serial: Serial number.
        not_before: Start of validity, unix seconds.
        not_after: End of validity, unix seconds.
        is_ca: Whether it is a CA's.
        holder: Its owner; None if fedpatch did not make the certificate.
        sha256: SHA-256 of the DER form, hexadecimal.
    """

    subject: str
    issuer: str
    serial: int
    not_before: float
    not_after: float
    is_ca: bool
    holder: CertificateOwner | None
    sha256: str

    def standing(self, now: float) -> str:
        """Return the validity at the time `now` (unix seconds): "good", "expired" or "not yet valid"."""
        if now < self.not_before:
            return "not yet valid"
        return "expired" if now > self.not_after else "good"


def read_pem(data: bytes) -> list[Certificate]:
    """Return all certificates of a PEM file, in its order. Raises ValueError if there is none, or one is damaged."""
    if len(data) > MAX_PEM_BYTES:
        raise ValueError(f"more than {MAX_PEM_BYTES} bytes")
    certificates: list[Certificate] = []
    for block in _BLOCK.finditer(data):
        if len(certificates) == MAX_CERTIFICATES:
            raise ValueError(f"more than {MAX_CERTIFICATES} certificates")
        try:
            der = base64.b64decode(b"".join(block[1].split()), validate=True)
        except binascii.Error as error:
            raise ValueError(f"damaged: {error}") from None
        certificates.append(read_der(der))
    if not certificates:
        raise ValueError("no certificate in it")
    return certificates


def read_der(der: bytes) -> Certificate:
    """Return the certificate in DER form. Raises ValueError if it is damaged."""
    body = _children(_only_child(_only_child(der, _SEQUENCE), _SEQUENCE, first=True))
    fields = [field for field in body if field[0] != _VERSION]
    if len(fields) < 6 or [tag for tag, _ in fields[:6]] != [_INTEGER, *[_SEQUENCE] * 5]:
        raise ValueError("damaged: not the fields of a certificate")
    serial, _algorithm, issuer, validity, subject, _key = (value for _, value in fields[:6])
    moments = [_moment(tag, value) for tag, value in _children(validity)]
    if len(moments) != 2:
        raise ValueError("damaged: its dates")
    extensions = dict(_extensions(next((value for tag, value in fields[6:] if tag == _EXTENSIONS), b"")))
    return Certificate(
        subject=_name(subject),
        issuer=_name(issuer),
        serial=int.from_bytes(serial, "big"),
        not_before=moments[0],
        not_after=moments[1],
        is_ca=_is_ca(extensions.get(_BASIC_CONSTRAINTS, b"")),
        holder=_holder(extensions.get(_ALTERNATIVE_NAMES, b"")),
        sha256=hashlib.sha256(der).hexdigest(),
    )


def _extensions(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    if not data:
        return
    for tag, extension in _children(_only_child(data, _SEQUENCE)):
        parts = _children(extension)
        if tag == _SEQUENCE and len(parts) > 1 and parts[0][0] == _OID and parts[-1][0] == _OCTETS:
            yield parts[0][1], parts[-1][1]


def _is_ca(data: bytes) -> bool:
    return bool(data) and any(
        tag == _BOOLEAN and value != b"\0" for tag, value in _children(_only_child(data, _SEQUENCE))
    )


def _holder(data: bytes) -> CertificateOwner | None:
    for tag, value in _children(_only_child(data, _SEQUENCE)) if data else ():
        if tag == _URI and (ours := _OURS.fullmatch(value.decode("ascii", "replace"))):
            return CertificateOwner(*ours.groups())
    return None


def _name(data: bytes) -> str:
    """A distinguished name in short: the CN where there is one."""
    parts: dict[str, str] = {}
    for _tag, group in _children(data):
        for _tag2, pair in _children(group):
            both = _children(pair)
            if len(both) == 2 and both[0][1] in _NAMES:
                text = both[1][1].decode("utf-8", "replace")
                parts[_NAMES[both[0][1]]] = printable(text)
    return parts.get("CN") or ", ".join(f"{key}={value}" for key, value in parts.items()) or "no name"


def _moment(tag: int, value: bytes) -> float:
    text = value.decode("ascii", "replace")
    if tag == _UTC_TIME:  # two digits of the year: 1950 to 2049 (RFC 5280, 4.1.2.5.1)
        text = ("19" if text[:2] >= "50" else "20") + text
    if tag not in (_UTC_TIME, _TIME) or not re.fullmatch(r"[0-9]{14}Z", text):
        raise ValueError("damaged: its dates")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _only_child(data: bytes, tag: int, *, first: bool = False) -> bytes:
    """Return the content of the only element of `data`, or of its `first`; the element must have this tag."""
    children = _children(data)
    if not children or children[0][0] != tag or (len(children) > 1 and not first):
        raise ValueError("damaged: not the parts of a certificate")
    return children[0][1]


def _children(data: bytes) -> list[tuple[int, bytes]]:
    """Return the consecutive elements of `data`: tag and content. Tags have one byte, lengths are definite, as in DER."""
    children: list[tuple[int, bytes]] = []
    at = 0
    while at < len(data):
        if at + 2 > len(data):
            raise ValueError("damaged: it ends too early")
        tag, length = data[at], data[at + 1]
        at += 2
        if length & 0x80:
            size = length & 0x7F
            if not 0 < size <= 4 or at + size > len(data):
                raise ValueError("damaged: a length")
            length = int.from_bytes(data[at : at + size], "big")
            at += size
        if at + length > len(data):
            raise ValueError("damaged: it ends too early")
        children.append((tag, data[at : at + length]))
        at += length
    return children
