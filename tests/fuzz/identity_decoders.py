"""Readers of identities: records, bundles, certificates."""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from fedpatch.coordinator.pki.certificate_authority import Authority
from fedpatch.coordinator.pki.issued_certificates import Entry, Index, decode_index, encode_index
from fedpatch.coordinator.pki.x509 import requested_key
from fedpatch.shared.config.enrolment_bundle import Bundle, decode_bundle, encode_bundle
from fedpatch.shared.config.enrolment_word import (
    CertificateGiven,
    decode_request,
    decode_sealed,
    encode_request,
    keys_of,
    seal_answer,
)
from fedpatch.shared.errors import DataError, StateError, WireError
from fedpatch.shared.masking.revocation import read_revocations
from fedpatch.shared.masking.signed_keys import Authorities
from fedpatch.shared.mqtt.certificate import read_der, read_pem
from tests.fuzz.decoders import Decoder
from tests.support.certificate_requests import certificate_request


def identity_decoders() -> Iterator[Decoder]:
    index = Index(fleet="kitchen", entries=(Entry(serial="1f", part="device", name="pi-1", not_after=9),))
    yield Decoder(
        "record of a CA", lambda data, _: decode_index(data, "it"), (StateError,), (encode_index(index),), "json"
    )
    bundle = Bundle(fleet="kitchen", device="pi-1", broker="mqtts://broker", ca="CA", certificate="C", key="K")
    yield Decoder("bundle", lambda data, _: decode_bundle(data, "it"), (DataError,), (encode_bundle(bundle),), "json")
    yield from _messages_of_enrolment()
    der = _certificate()
    pem = ssl.DER_cert_to_PEM_cert(der).encode()
    yield Decoder("certificate", lambda data, _: read_der(data), (ValueError,), (der,))
    yield Decoder("certificates", lambda data, _: read_pem(data), (ValueError,), (pem,), "text")
    ca, crl = _list()
    authorities = Authorities.of_pem("kitchen", ca)
    yield Decoder(
        "list of revoked certificates", lambda data, _: read_revocations(data, authorities), (WireError,), (crl,)
    )


def _messages_of_enrolment() -> Iterator[Decoder]:
    keys = keys_of("0" * 20)
    answer = CertificateGiven(
        request="0" * 64, fleet="kitchen", device="pi-1", broker="", broker_profile="", ca="CA", certificate="C"
    )
    asked = encode_request(keys, "-----BEGIN CERTIFICATE REQUEST-----")
    yield Decoder("request by a word", lambda data, _: decode_request(data), (DataError,), (asked,), "json")
    sealed = msgspec.json.encode(seal_answer(answer, keys.invitation, keys.answer))
    yield Decoder("answer by a word", lambda data, _: decode_sealed(data), (DataError,), (sealed,), "json")
    pem = certificate_request().encode()
    yield Decoder("certificate request", lambda data, _: requested_key(data), (ValueError,), (pem,), "text")


def _list() -> tuple[bytes, bytes]:
    """Return a CA's certificate as PEM, and its list of revoked certificates in DER."""
    with tempfile.TemporaryDirectory() as place, Authority.create(Path(place), "kitchen", now=1e9) as authority:
        authority.issue("device", "pi-1", now=1e9)
        authority.revoke("device", "pi-1", now=1e9)
        crl = x509.load_pem_x509_crl((Path(place) / "ca.crl").read_bytes())
        return authority.certificate, crl.public_bytes(Encoding.DER)


def _certificate() -> bytes:
    """Return a device's certificate, made by our own CA."""
    with tempfile.TemporaryDirectory() as place, Authority.create(Path(place), "kitchen", now=1e9) as authority:
        pem = authority.issue("device", "pi-1", now=1e9).pair.certificate
    return ssl.PEM_cert_to_DER_cert(pem.decode())
