"""Certificate requests (PKCS#10) for tests."""

from __future__ import annotations

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding


def certificate_request(key: CertificateIssuerPrivateKeyTypes | None = None, name: str = "") -> str:
    """Return a certificate request by a key (None: a new one over P-256) for a name, as PEM."""
    names = [x509.NameAttribute(x509.NameOID.COMMON_NAME, name)] if name else []
    request = x509.CertificateSigningRequestBuilder().subject_name(x509.Name(names))
    return request.sign(key or generate_private_key(SECP256R1()), hashes.SHA256()).public_bytes(Encoding.PEM).decode()
