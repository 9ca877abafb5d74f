"""Enrolment with the operator's one-time word: makes the device's key, asks the CA's machine, and waits for the certificate.

    STATE_DIR/identity/request.pem    key and certificate request, until the certificate is installed

The key is on the disk before the request leaves, since a word is good for one request: after an interruption the same command
asks for the same certificate again. Only an answer that the word authenticates is used.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable
from pathlib import Path

from fedpatch.device_agent.cli.acting_as import acting_as
from fedpatch.device_agent.cli.bundle_installation import DIRECTORY, Enrolled, check_settings, install, prepare
from fedpatch.shared.app.files import refusals_of, write_atomic
from fedpatch.shared.app.formatting import printable
from fedpatch.shared.config.enrolment_bundle import Bundle
from fedpatch.shared.config.enrolment_word import (
    ENDED,
    MAX_ANSWER_BYTES,
    PATH,
    PORT,
    UNKNOWN,
    USED,
    WAITING,
    CertificateGiven,
    WordKeys,
    code_to_compare,
    decode_sealed,
    encode_request,
    keys_of,
    open_answer,
)
from fedpatch.shared.config.listen_address import Address, parse_address
from fedpatch.shared.errors import DataError, StateError, UsageError

REQUEST_NAME = "request.pem"

_PAUSE_S = 5.0
_SILENT_S = 15.0
_BEGIN_OF_REQUEST = "-----BEGIN CERTIFICATE REQUEST-----"
_AGAIN = "ask the fleet's operator for another word (fedpatch device invite)"
_REFUSALS = {
    UNKNOWN: f"no invitation there fits this word: it was mistyped, replaced, or refused; type it again, or {_AGAIN}",
    ENDED: f"the word has ended; {_AGAIN}",
    USED: "another request came first with this word, so somebody else may know it: tell the fleet's operator, who "
    "refuses it (fedpatch device refuse) and makes another word",
}


def server_address(text: str) -> Address:
    """Return the address HOST or HOST:PORT of `fedpatch ca serve`; UsageError for anything else."""
    has_port = ":" in text.rpartition("]")[2]  # an IPv6 address has colons in its brackets
    return parse_address(text if has_port else f"{text}:{PORT}")


def enrol_by_word(
    address: Address, word: str, *, config: Path, state_dir: Path, replace: bool, tell: Callable[[str], None]
) -> Enrolled:
    """Ask for the certificate of the device that the word names, wait for the operator's approval, and install it.

    Args:
        address: Address of `fedpatch ca serve`.
        replace: As for `install`.
        tell: Is called with lines for the device's owner.

    Raises:
        UsageError: The word gives no certificate, or this device has another identity.
        DataError: Somebody without the word answered.
    """
    keys = keys_of(word)
    check_settings(config)  # the approval may take hours
    place = state_dir.absolute() / DIRECTORY
    key, request = _own_request(place)
    tell(f"the code of this request is {code_to_compare(request)}; the operator's list has the same")
    given = _wait(address, keys, request, tell)
    bundle = Bundle(
        fleet=given.fleet,
        device=given.device,
        broker=given.broker,
        broker_profile=given.broker_profile,
        ca=given.ca,
        certificate=given.certificate,
        key=key,
    )
    done = install(bundle, config=config, state_dir=state_dir, replace=replace)
    with refusals_of(place), acting_as(place.parent.stat()):
        (place / REQUEST_NAME).unlink(missing_ok=True)
    return done


def _own_request(place: Path) -> tuple[str, str]:
    """Return the key and the certificate request of this device, as PEM; make them if they are not on the disk."""
    path = place / REQUEST_NAME
    with refusals_of(place):
        owner = prepare(place)
        with acting_as(owner):
            text = path.read_bytes().decode("ascii", "replace") if path.exists() else ""
        if not text:
            text = _make_request()  # as this user, who may be the only one that can read the packages
            with acting_as(owner):
                write_atomic(path, text.encode())
    key, begin, rest = text.partition(_BEGIN_OF_REQUEST)
    if not key or not rest:
        raise StateError(f"{path}: damaged; delete it, and {_AGAIN}")
    return key, begin + rest


def _make_request() -> str:
    """Return a new key over P-256 and a request for its certificate, as PEM. The request has no name: the word has it."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    except ImportError:
        raise UsageError(
            "a certificate request needs cryptography, which is not installed; pip install 'fedpatch[secure]'"
        ) from None

    key = generate_private_key(SECP256R1())
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return (private + request.public_bytes(Encoding.PEM)).decode()


def _wait(address: Address, keys: WordKeys, request: str, tell: Callable[[str], None]) -> CertificateGiven:
    """Repeat the request until it is answered: the operator may take hours, and end the server meanwhile."""
    body, told = encode_request(keys, request), ""
    while True:
        try:
            status, data = _post(address, body)
        except (OSError, UnicodeError, http.client.HTTPException) as error:  # UnicodeError: no host can have this name
            problem = getattr(error, "strerror", None) or str(error)  # with the first line of an answer that is no HTTP
            state = f"{address} does not answer ({printable(problem)}); asking again until it does"
        else:
            if status == http.client.OK:
                return _opened(data, keys, request, address)
            state = _state(status, data, address)
        if state != told:
            tell(state)
            told = state
        time.sleep(_PAUSE_S)


def _opened(data: bytes, keys: WordKeys, request: str, address: Address) -> CertificateGiven:
    try:
        return open_answer(decode_sealed(data), keys, request)
    except DataError as error:
        raise DataError(
            f"{address}: {error}, so nothing was installed; correct the address, or find out who answers there"
        ) from None


def _state(status: int, data: bytes, address: Address) -> str:
    """Return a line about an unanswered request; UsageError where it will never be answered."""
    try:
        state = decode_sealed(data).state
    except DataError:
        state = ""
    if state in _REFUSALS:
        raise UsageError(f"{address}: {_REFUSALS[state]}")
    if state == WAITING:
        return "waiting for the operator's approval"
    return f"{address} cannot take the request now (HTTP status {status}); asking again until it can"


def _post(address: Address, body: bytes) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(address.host, address.port, timeout=_SILENT_S)
    try:
        connection.request("POST", PATH, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read(MAX_ANSWER_BYTES + 1)
    finally:
        connection.close()
