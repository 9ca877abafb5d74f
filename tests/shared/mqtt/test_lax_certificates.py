"""Certificates without the extensions of RFC 5280, which the strict checks of Python 3.13 refuse."""

from __future__ import annotations

import datetime
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedpatch.shared.mqtt.tls_context import TlsFiles, tls_context
from fedpatch.shared.mqtt.tls_errors import TrustError, trust_error_of
from fedpatch.shared.mqtt.url import parse_broker_url

BROKER = parse_broker_url("mqtts://hub.example")
_NO_USAGE = dict.fromkeys(
    (
        "digital_signature",
        "content_commitment",
        "key_encipherment",
        "data_encipherment",
        "key_agreement",
        "key_cert_sign",
        "crl_sign",
        "encipher_only",
        "decipher_only",
    ),
    False,
)
CONSTRAINTS = (x509.BasicConstraints(ca=True, path_length=None), True)
NO_CA = (x509.BasicConstraints(ca=False, path_length=None), True)
LAX_CONSTRAINTS = (x509.BasicConstraints(ca=True, path_length=None), False)
SIGNS = (x509.KeyUsage(**{**_NO_USAGE, "key_cert_sign": True}), True)
SIGNS_NOTHING = (x509.KeyUsage(**{**_NO_USAGE, "digital_signature": True}), True)

Extensions = tuple[tuple[x509.ExtensionType, bool], ...]


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Contexts as Python 3.13 makes them, on each version of Python."""
    made = ssl.create_default_context

    def strict_context(**arguments: Any) -> ssl.SSLContext:
        context = made(**arguments)
        context.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
        return context

    monkeypatch.setattr(ssl, "create_default_context", strict_context)


def _certificate(
    name: str, key: ec.EllipticCurvePrivateKey, signer: tuple[str, ec.EllipticCurvePrivateKey], extensions: Extensions
) -> bytes:
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder(
            issuer_name=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, signer[0])]),
            subject_name=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]),
        )
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=9))
    )
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(signer[1], hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _made(folder: Path, ca: Extensions, *, names_key_of_ca: bool = True) -> ssl.SSLContext:
    """Make a CA with these extensions in `folder`, and return the context of a broker that it has signed."""
    ca_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    own_name = (x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), False)
    (folder / "ca.crt").write_bytes(_certificate("a CA", ca_key, ("a CA", ca_key), (*ca, own_name)))
    leaf: Extensions = ((x509.SubjectAlternativeName([x509.DNSName(BROKER.host)]), False),)
    if names_key_of_ca:
        leaf = (*leaf, (x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), False))
    pair = folder / "broker.pem"
    pair.write_bytes(
        _certificate(BROKER.host, key, ("a CA", ca_key), leaf)
        + key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair)
    return context


def _problem(broker: ssl.SSLContext, files: TlsFiles) -> TrustError | None:
    """Return the problem of a handshake between a client with these files and the broker; None if it succeeds."""
    context = tls_context(BROKER, files)
    assert context is not None
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(down, up, server_hostname=BROKER.host)
    server = broker.wrap_bio(up, down, server_side=True)
    try:
        for side in (client, server, client):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    except ssl.SSLError as error:
        return trust_error_of(BROKER, files, error)
    return None


_CASES: Mapping[str, tuple[Extensions, bool, str, bool]] = {
    "no key usage": (
        (CONSTRAINTS,),
        True,
        "its CA certificate needs the extension keyUsage=critical,keyCertSign",
        True,
    ),
    "constraints not critical": (
        (LAX_CONSTRAINTS, SIGNS),
        True,
        "its CA certificate needs the extension basicConstraints=critical,CA:TRUE",
        True,
    ),
    "no authority key identifier": (
        (CONSTRAINTS, SIGNS),
        False,
        "its certificate needs the extension authorityKeyIdentifier",
        True,
    ),
    "key usage without signing": (
        (CONSTRAINTS, SIGNS_NOTHING),
        True,
        "and keyUsage=critical,keyCertSign,cRLSign",
        False,
    ),
    "constraints of no CA": ((NO_CA, SIGNS), True, "needs the extension basicConstraints=critical,CA:TRUE", False),
}


@pytest.mark.parametrize("case", _CASES)
def test_refused_certificate_names_the_extension_and_how_to_make_it(tmp_path: Path, case: str):
    ca, names_key_of_ca, words, can_accept = _CASES[case]
    broker = _made(tmp_path, ca, names_key_of_ca=names_key_of_ca)
    files = TlsFiles(tmp_path / "ca.crt")
    found = _problem(broker, files)
    assert found is not None and words in found.problem and "openssl" in found.remedy and found.fault().lasting
    assert ("accept_lax_ca = true" in found.remedy) == can_accept
    accepted = _problem(broker, TlsFiles(files.ca_file, accept_lax_ca=True))
    assert (accepted is None) == can_accept


def test_certificate_with_all_extensions_is_accepted(tmp_path: Path):
    assert _problem(_made(tmp_path, (CONSTRAINTS, SIGNS)), TlsFiles(tmp_path / "ca.crt")) is None
