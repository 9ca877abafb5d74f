"""Reads what a certificate says (X.509: RFC 5280; DER: X.690), so that a device can tell it without further packages.

Nothing is verified here: that is the work of the TLS library. Only what people are told is read: for whom, by whom, from
when until when.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

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
    """Whom a certificate that fedpatch made is for."""

    fleet: str
    part: str
    name: str


@dataclass(frozen=True)
class Certificate:
    """What one says. Times are unix seconds; `holder` is None where fedpatch did not make it; names are its CN, else all."""

    subject: str
    issuer: str
    serial: int
    not_before: float
    not_after: float
    is_ca: bool
    holder: CertificateOwner | None
    sha256: str

    def standing(self, now: float) -> str:
        """Whether it is good at a time: "good", "expired" or "not yet valid"."""
        if now < self.not_before:
            return "not yet valid"
        return "expired" if now > self.not_after else "good"


def read_pem(data: bytes) -> list[Certificate]:
    """All certificates of a PEM file, in its order; ValueError where it holds none, or one that is damaged."""
    if len(data) > MAX_PEM_BYTES:
        raise ValueError(f"more than {MAX_PEM_BYTES} bytes")
    found: list[Certificate] = []
    for block in _BLOCK.finditer(data):
        if len(found) == MAX_CERTIFICATES:
            raise ValueError(f"more than {MAX_CERTIFICATES} certificates")
        try:
            der = base64.b64decode(b"".join(block[1].split()), validate=True)
        except binascii.Error as error:
            raise ValueError(f"damaged: {error}") from None
        found.append(read_der(der))
    if not found:
        raise ValueError("no certificate in it")
    return found


def read_der(der: bytes) -> Certificate:
    """One certificate; ValueError where it is damaged."""
    body = _children(_one(_one(der, _SEQUENCE), _SEQUENCE, first=True))
    fields = [one for one in body if one[0] != _VERSION]
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
    for tag, one in _children(_one(data, _SEQUENCE)):
        parts = _children(one)
        if tag == _SEQUENCE and len(parts) > 1 and parts[0][0] == _OID and parts[-1][0] == _OCTETS:
            yield parts[0][1], parts[-1][1]


def _is_ca(data: bytes) -> bool:
    return bool(data) and any(tag == _BOOLEAN and value != b"\0" for tag, value in _children(_one(data, _SEQUENCE)))


def _holder(data: bytes) -> CertificateOwner | None:
    for tag, value in _children(_one(data, _SEQUENCE)) if data else ():
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
                parts[_NAMES[both[0][1]]] = "".join(char if char.isprintable() else "?" for char in text)
    return parts.get("CN") or ", ".join(f"{key}={value}" for key, value in parts.items()) or "no name"


def _moment(tag: int, value: bytes) -> float:
    text = value.decode("ascii", "replace")
    if tag == _UTC_TIME:  # two digits of the year: 1950 to 2049 (RFC 5280, 4.1.2.5.1)
        text = ("19" if text[:2] >= "50" else "20") + text
    if tag not in (_UTC_TIME, _TIME) or not re.fullmatch(r"[0-9]{14}Z", text):
        raise ValueError("damaged: its dates")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def _one(data: bytes, tag: int, *, first: bool = False) -> bytes:
    """What the only element of `data` holds, or its `first`, which must have that tag."""
    found = _children(data)
    if not found or found[0][0] != tag or (len(found) > 1 and not first):
        raise ValueError("damaged: not the parts of a certificate")
    return found[0][1]


def _children(data: bytes) -> list[tuple[int, bytes]]:
    """The elements that follow each other in `data`: tag and contents. Tags of one byte, definite lengths, as in DER."""
    found: list[tuple[int, bytes]] = []
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
        found.append((tag, data[at : at + length]))
        at += length
    return found
