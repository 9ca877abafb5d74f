"""The CA's list of revoked certificates (RFC 5280, section 5), which travels in a strict work request.

The list is signed with the CA's key, which is not on the coordinator's machine: a coordinator can send an old list or none, but
not a false one. So a device keeps the list with the highest number that it has seen, and refuses older ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedpatch.shared.errors import WireError
from fedpatch.shared.masking.signed_keys import Authorities, is_issued_by
from fedpatch.shared.wire.masking_messages import MAX_REVOCATIONS_BYTES

if TYPE_CHECKING:
    from cryptography import x509

_REMEDY = "make a new one with `fedpatch ca crl` where the CA's key is, and copy ca.crl to the coordinator"


@dataclass(frozen=True)
class RevocationList:
    """A list whose signature was checked.

    Attributes:
        der: The list in DER.
        number: Its number; a later list of the CA has a higher one.
        ends: When it must be replaced (`nextUpdate`), in unix seconds.
        serials: Serial numbers of the revoked certificates.
        authority: Certificate of the CA that signed it, in DER.
    """

    der: bytes
    number: int
    ends: float
    serials: frozenset[int]
    authority: bytes

    @property
    def authority_key(self) -> bytes:
        """The public key of the CA, which stays where its certificate is renewed: numbers of one key can be compared."""
        from cryptography import x509
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        public = x509.load_der_x509_certificate(self.authority).public_key()
        return public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)

    def require_current(self, now: float) -> None:
        """Raise WireError once the list has ended; `now` is in unix seconds."""
        if now > self.ends:
            raise WireError(f"revocation list {self.number} has ended; {_REMEDY}")

    def require_not_revoked(self, device: str, certificate: x509.Certificate) -> None:
        """Raise WireError for a revoked certificate of a member, and for one of another CA, of which the list says nothing."""
        if not is_issued_by(certificate, self.authority):
            raise WireError(f"the certificate of {device} is not of the CA of the revocation list")
        if certificate.serial_number in self.serials:
            raise WireError(f"the certificate of {device} is revoked")


def read_revocations(der: bytes, authorities: Authorities) -> RevocationList:
    """Read a list of a CA of the fleet.

    Args:
        der: The list in DER, from the network.
        authorities: The CAs whose lists count.

    Raises:
        WireError: The list is damaged, too long, of another CA, not the whole list, or has an unknown critical extension.
    """
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm

    if len(der) > MAX_REVOCATIONS_BYTES:
        raise WireError(f"a revocation list of {len(der)} bytes; at most {MAX_REVOCATIONS_BYTES} travel in a request")
    try:
        found = x509.load_der_x509_crl(der)
        number = _number(found)
        if found.next_update_utc is None:
            raise WireError("the revocation list has no end (nextUpdate)")
        serials = frozenset(one.serial_number for one in found if not _unknown(one.extensions))
        authority = next((one for one in authorities.certificates if _signed(found, one)), b"")
        if len(serials) < len(found):
            raise WireError("an entry of the revocation list has an extension that fedpatch does not know")
        ends = found.next_update_utc.timestamp()
    except (
        ValueError,
        TypeError,
        UnsupportedAlgorithm,
        x509.DuplicateExtension,
        x509.InvalidVersion,
        OverflowError,
    ) as error:
        raise WireError(f"the revocation list cannot be read: {error}") from None
    if not authority:
        raise WireError("the revocation list is not of the CA of this fleet")
    return RevocationList(der, number, ends, serials, authority)


def _number(found: x509.CertificateRevocationList) -> int:
    """Return the number of a whole list; WireError for a delta list, a partial one, or one without a number."""
    from cryptography import x509

    refused = {
        x509.DeltaCRLIndicator.oid: "has only the changes since another list (delta CRL)",
        x509.IssuingDistributionPoint.oid: "has only a part of the revoked certificates (issuing distribution point)",
    }
    number: int | None = None
    for one in found.extensions:
        if why := refused.get(one.oid, "has a critical extension that fedpatch does not know" if one.critical else ""):
            raise WireError(f"the revocation list {why}; {_REMEDY}")
        if isinstance(one.value, x509.CRLNumber):
            number = one.value.crl_number
    if number is None:
        raise WireError(f"the revocation list has no number; {_REMEDY}")
    return number


def _unknown(extensions: x509.Extensions) -> bool:
    return any(one.critical for one in extensions)


def _signed(found: x509.CertificateRevocationList, authority: bytes) -> bool:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

    certificate = x509.load_der_x509_certificate(authority)
    public = certificate.public_key()
    # Checks of an EC key need no further choice; fedpatch's CAs have one.
    if found.issuer != certificate.subject or not isinstance(public, EllipticCurvePublicKey):
        return False
    return found.is_signature_valid(public)
