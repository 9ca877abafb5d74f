"""Enrolment with a one-time word: the word, the keys that it gives, and the two messages that these keys authenticate.

    device to CA    CertificateAsked    the word's invitation, and a certificate request (PKCS#10) with the device's public key
    CA to device    CertificateGiven    the device's name, its fleet and broker, the CA's certificate and the device's own

A word has 100 random bits, so recorded messages do not help to find it. Nothing in the messages is secret: they need no
encryption. Without the word no message can be made or changed, so neither side needs to know the other one before.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from dataclasses import dataclass
from typing import Annotated, TypeVar

import msgspec

from fedpatch.shared.config.fields import Name
from fedpatch.shared.errors import DataError, UsageError

PORT = 8885
"""Port of `fedpatch ca serve`."""
PATH = "/enrol"
MAX_REQUEST_BYTES = 16 * 1024
MAX_ANSWER_BYTES = 256 * 1024

ENDED, USED, UNKNOWN = "ended", "used", "unknown"
"""States of a request that gets no certificate; `waiting` is the state before the operator's decision."""
WAITING, ISSUED = "waiting", "issued"

_FORMAT = 1
_LETTERS = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: no letter looks like another one
_LOOK_ALIKE = str.maketrans("ilo", "110", "- ")
_WORD_LETTERS, _GROUP = 20, 4
_T = TypeVar("_T")

_Hex = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
_Pem = Annotated[str, msgspec.Meta(max_length=64 * 1024)]
_Text = Annotated[str, msgspec.Meta(max_length=500)]
InvitationName = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{16}\Z")]


@dataclass(frozen=True)
class WordKeys:
    """Values derived from a word: the public name of its invitation, and the keys of both messages."""

    invitation: str
    request: bytes
    answer: bytes


@dataclass(frozen=True, kw_only=True)
class CertificateAsked:
    """A device's message. `request` is PKCS#10 as PEM, `mac` authenticates it."""

    version: int = _FORMAT
    invitation: InvitationName
    request: Annotated[str, msgspec.Meta(max_length=8 * 1024)]
    mac: _Hex


@dataclass(frozen=True, kw_only=True)
class CertificateGiven:
    """The CA's answer to the request whose digest is `request`; the rest is as in a bundle."""

    request: _Hex
    fleet: Name
    device: Name
    broker: _Text
    broker_profile: _Text
    ca: _Pem
    certificate: _Pem


@dataclass(frozen=True, kw_only=True)
class SealedAnswer:
    """A `CertificateGiven` as JSON, with the MAC that authenticates it; without both where there is none."""

    state: Annotated[str, msgspec.Meta(max_length=20)]
    answer: Annotated[str, msgspec.Meta(max_length=MAX_ANSWER_BYTES)] = ""
    mac: Annotated[str, msgspec.Meta(max_length=64)] = ""


def new_word() -> str:
    """Return a new word of 100 random bits, such as `7k3m-9qxt-...`."""
    letters = "".join(secrets.choice(_LETTERS) for _ in range(_WORD_LETTERS))
    return "-".join(letters[at : at + _GROUP] for at in range(0, _WORD_LETTERS, _GROUP))


def keys_of(word: str) -> WordKeys:
    """Return the values derived from a word, also if it was typed in capitals or without its dashes; UsageError for no word."""
    letters = word.strip().lower().translate(_LOOK_ALIKE)
    if len(letters) != _WORD_LETTERS or not set(letters) <= set(_LETTERS):
        raise UsageError(
            f"this is no word of `fedpatch device invite`: it has {_WORD_LETTERS} letters and digits, in groups of {_GROUP}"
        )

    def derived(label: str) -> bytes:
        return hmac.digest(letters.encode(), f"fedpatch enrolment {_FORMAT} {label}".encode(), "sha256")

    return WordKeys(derived("invitation").hex()[:16], derived("request"), derived("answer"))


def encode_request(keys: WordKeys, request: str) -> bytes:
    """Return the device's message with a certificate request, as PEM."""
    mac = _mac(keys.request, keys.invitation, request)
    return json.dumps(
        msgspec.to_builtins(CertificateAsked(invitation=keys.invitation, request=request, mac=mac))
    ).encode()


def decode_request(data: bytes) -> CertificateAsked:
    """Return the message in `data`, which nothing authenticates yet; DataError where it is none."""
    found = _decoded(data, CertificateAsked, MAX_REQUEST_BYTES, "a request for a certificate")
    if found.version != _FORMAT:
        raise DataError(f"a request for a certificate of version {found.version}; this fedpatch knows {_FORMAT}")
    return found


def is_authentic(asked: CertificateAsked, key: bytes) -> bool:
    """Return whether a request was made with the word whose request key is `key`."""
    return hmac.compare_digest(asked.mac, _mac(key, asked.invitation, asked.request))


def seal_answer(given: CertificateGiven, invitation: str, key: bytes) -> SealedAnswer:
    """Return the answer with its MAC.

    Args:
        invitation: Name of the word's invitation.
        key: The word's answer key.
    """
    answer = json.dumps(msgspec.to_builtins(given))
    return SealedAnswer(state=ISSUED, answer=answer, mac=_mac(key, invitation, answer))


def decode_sealed(data: bytes) -> SealedAnswer:
    """Return the server's reply, which nothing authenticates yet; DataError where it is none."""
    return _decoded(data, SealedAnswer, MAX_ANSWER_BYTES, "an answer of `fedpatch ca serve`")


def open_answer(sealed: SealedAnswer, keys: WordKeys, request: str) -> CertificateGiven:
    """Return the CA's answer.

    Args:
        request: The certificate request that was sent, as PEM.

    Raises:
        DataError: Somebody without the word made or changed it, or it answers another request.
    """
    if not hmac.compare_digest(sealed.mac.encode(), _mac(keys.answer, keys.invitation, sealed.answer).encode()):
        raise DataError("somebody who does not know the word made or changed the answer")
    given = _decoded(sealed.answer.encode(), CertificateGiven, MAX_ANSWER_BYTES, "an answer to a certificate request")
    if given.request != digest_of(request):
        raise DataError("the answer is for another request")
    return given


def digest_of(request: str) -> str:
    """Return the SHA-256 of a certificate request, hexadecimal."""
    return hashlib.sha256(request.encode()).hexdigest()


def code_to_compare(request: str) -> str:
    """Return the beginning of the digest, which the device and the operator's list show, such as `5f0c-91d2-e6a4-77b3`."""
    digest = digest_of(request)
    return "-".join(digest[at : at + 4] for at in range(0, 16, 4))


def _mac(key: bytes, invitation: str, text: str) -> str:
    return hmac.digest(key, f"{invitation}\n{text}".encode(), "sha256").hex()  # an invitation's name has no newline


def _decoded(data: bytes, kind: type[_T], most: int, what: str) -> _T:
    if len(data) > most:
        raise DataError(f"larger than {what}")
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise DataError(f"damaged, or not {what}") from None
