"""Keys of a masked round signed with device certificates, so that no coordinator can make up the members of a group.

A device signs its public keys, its name and the digest of the round's request with the key of its certificate (ECDSA over
P-256, SHA-256). Every other member checks the signature, that the fleet's CA issued the certificate, and that the certificate
names the device. A signature is of no use in another round, with another request or for another device.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import msgpack

from fedpatch.shared.errors import WireError
from fedpatch.shared.mqtt.certificate import Certificate, read_der
from fedpatch.shared.wire.masking_messages import MAX_CERTIFICATE_BYTES, MaskingKeys

if TYPE_CHECKING:
    from fedpatch.shared.masking.revocation import RevocationList

_PURPOSE = "fedpatch signed masking keys 1"
_DEVICE = "device"


@dataclass(frozen=True)
class Authorities:
    """The CAs whose certificates count, and the fleet of the devices.

    Attributes:
        fleet: Name of the fleet.
        certificates: Certificates of the CAs, in DER.

    Example:
        >>> Authorities.of_pem("kitchen", b"not a certificate")
        Traceback (most recent call last):
        fedpatch.shared.errors.WireError: the CA file has no certificate that can be read
    """

    fleet: str
    certificates: tuple[bytes, ...]

    @classmethod
    def of_pem(cls, fleet: str, pem: bytes) -> Authorities:
        """Return the CAs of a PEM file. Raises WireError where it has none."""
        from cryptography import x509
        from cryptography.hazmat.primitives.serialization import Encoding

        try:
            found = [one.public_bytes(Encoding.DER) for one in x509.load_pem_x509_certificates(pem)]
            authorities = tuple(der for der in found if read_der(der).is_ca)
        except _unreadable():
            authorities = ()
        if not authorities:
            raise WireError("the CA file has no certificate that can be read")
        return cls(fleet, authorities)


def sign_keys(device: str, keys: MaskingKeys, request: bytes, *, certificate: bytes, private_key: bytes) -> MaskingKeys:
    """Return the keys of a device with its certificate and its signature.

    Args:
        keys: Its public keys of the round.
        request: `request_digest` of the round's request.
        certificate: Its certificate as PEM; the first one of several.
        private_key: The key of the certificate as PEM, without password.

    Raises:
        WireError: The certificate or its key cannot be used: damaged, too long, or not over P-256.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, SECP256R1, EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

    try:
        der = x509.load_pem_x509_certificate(certificate).public_bytes(Encoding.DER)
        key = load_pem_private_key(private_key, None)
    except _unreadable() as error:
        raise WireError(f"the certificate of {device} or its key cannot be read: {error}") from None
    if not isinstance(key, EllipticCurvePrivateKey) or not isinstance(key.curve, SECP256R1):
        raise WireError(f"the certificate of {device} is not over P-256, so it cannot sign keys")
    if len(der) > MAX_CERTIFICATE_BYTES:
        raise WireError(f"the certificate of {device} has {len(der)} bytes; at most {MAX_CERTIFICATE_BYTES} fit")
    return replace(keys, certificate=der, signature=key.sign(_signed(device, keys, request), ECDSA(SHA256())))


def check_signed_keys(
    device: str,
    keys: MaskingKeys,
    request: bytes,
    authorities: Authorities,
    now: float | None = None,
    revoked: RevocationList | None = None,
) -> None:
    """Check that a device of the fleet has signed its keys for this round.

    Args:
        keys: Its public keys, with certificate and signature.
        request: `request_digest` of the round's request.
        now: Unix time in seconds, at which the certificate must be valid; None: at any time.
        revoked: The list of revoked certificates; its CA must have issued the certificate. None: there is no list.

    Raises:
        WireError: The keys are not those of the device; the message names the reason.
    """
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePublicKey
    from cryptography.hazmat.primitives.hashes import SHA256

    if not keys.certificate or not keys.signature:
        raise WireError(f"the keys of {device} are not signed")
    try:
        about = read_der(keys.certificate)
        certificate = x509.load_der_x509_certificate(keys.certificate)
        public = certificate.public_key()
    except _unreadable() as error:
        raise WireError(f"the certificate of {device} cannot be read: {error}") from None
    if why := _for_another(about, device, authorities.fleet, now):
        raise WireError(f"the certificate of {device} {why}")
    if not any(is_issued_by(certificate, authority) for authority in authorities.certificates):
        raise WireError(f"the certificate of {device} was not issued by the CA of this fleet")
    if revoked is not None:
        revoked.require_not_revoked(device, certificate)
    if why := _for_a_server(certificate):
        raise WireError(f"the certificate of {device} {why}")
    try:
        if not isinstance(public, EllipticCurvePublicKey):
            raise InvalidSignature
        public.verify(keys.signature, _signed(device, keys, request), ECDSA(SHA256()))
    except InvalidSignature:
        raise WireError(f"the signature of {device} is not one of these keys in this round") from None


def sign_statement(text: bytes, private_key: bytes) -> bytes:
    """Return the signature of a statement by the key of a certificate, as PEM without password. WireError if it cannot sign."""
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(private_key, None)
    except _unreadable() as error:
        raise WireError(f"the key of this device cannot be read: {error}") from None
    if not isinstance(key, EllipticCurvePrivateKey):
        raise WireError("the key of this device is not over P-256, so it cannot sign")
    return key.sign(text, ECDSA(SHA256()))


def is_signed_by(certificate: bytes, text: bytes, signature: bytes) -> bool:
    """Return whether a signature of a statement is by the key of a certificate.

    Args:
        certificate: In DER; it is not checked again.
        signature: ECDSA with SHA-256, DER.
    """
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePublicKey
    from cryptography.hazmat.primitives.hashes import SHA256

    try:
        public = x509.load_der_x509_certificate(certificate).public_key()
        if not isinstance(public, EllipticCurvePublicKey):
            return False
        public.verify(signature, text, ECDSA(SHA256()))
    except InvalidSignature:
        return False
    except _unreadable():
        return False
    return True


def _unreadable() -> tuple[type[Exception], ...]:
    """Return the errors that `cryptography` raises for a certificate or a key that it cannot read."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.x509 import InvalidVersion

    return ValueError, TypeError, UnsupportedAlgorithm, InvalidVersion


def _signed(device: str, keys: MaskingKeys, request: bytes) -> bytes:
    packed: bytes = msgpack.packb([_PURPOSE, request, device, keys.share, keys.mask])
    return packed


def _for_another(about: Certificate, device: str, fleet: str, now: float | None) -> str:
    """Return why a certificate is not a valid one of the device; "" if it is."""
    holder = about.holder
    if holder is not None and (holder.fleet, holder.part) != (fleet, _DEVICE):
        return f"is one of a {holder.part} of fleet {holder.fleet!r}, not of a device of fleet {fleet!r}"
    if (name := about.subject if holder is None else holder.name) != device:
        return f"is one of {name!r}"
    if about.is_ca:
        return "is one of a CA"
    if now is not None and (standing := about.standing(now)) != "good":
        return f"is {standing}"
    return ""


def _for_a_server(certificate: object) -> str:
    """Return why a certificate is not for clients; "" if it is. The broker's names hosts, so `_for_another` accepts it."""
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID

    assert isinstance(certificate, x509.Certificate)
    try:
        purposes = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return ""
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType):
        return "has extensions that cannot be read"
    allowed = (ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE)
    return "" if any(one in purposes for one in allowed) else "is one of a server"


def is_issued_by(certificate: object, authority: bytes) -> bool:
    """Return whether the CA with this certificate, in DER, has signed a certificate."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

    assert isinstance(certificate, x509.Certificate)
    try:
        certificate.verify_directly_issued_by(x509.load_der_x509_certificate(authority))
    except InvalidSignature:
        return False
    except _unreadable():
        return False
    return True
