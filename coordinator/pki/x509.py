"""Creates certificates and revocation lists (RFC 5280) with ECDSA over P-256.

The subject has the name at the broker (CN), the fleet (O) and the part (OU). A certificate starts an hour in the past, because
of slow clocks, and ends no later than its CA.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedpatch.shared.errors import UsageError

try:
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric.ec import (
        SECP256R1,
        EllipticCurvePrivateKey,
        EllipticCurvePublicKey,
        generate_private_key,
    )
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ModuleNotFoundError as error:
    raise UsageError(
        f"certificates need the package {error.name}, which is not installed; pip install 'fedpatch[coordinator]'"
    ) from error

_BACKDATED_S = 3600
_SHA256 = hashes.SHA256()


@dataclass(frozen=True)
class Subject:
    """The holder of a certificate: fleet (O), part (OU) and name at the broker (CN)."""

    fleet: str
    part: str
    name: str


@dataclass(frozen=True)
class Period:
    """Validity of a certificate, in unix seconds."""

    not_before: int
    not_after: int


@dataclass(frozen=True)
class Pair:
    """A certificate and its key as PEM; the key is PKCS#8 without password."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True)
class Issuer:
    """A CA's certificate and key."""

    certificate: x509.Certificate
    key: EllipticCurvePrivateKey

    @property
    def ends(self) -> int:
        """When the CA's certificate expires, in unix seconds."""
        return int(self.certificate.not_valid_after_utc.timestamp())

    def pem(self) -> bytes:
        """The certificate as PEM."""
        return _pem(self.certificate)


def backdated(now: float) -> int:
    """Return the beginning of the validity of a certificate or a list that is made now, for devices whose clock is behind.

    Args:
        now: Unix time in seconds. The clock of a machine without a battery may begin in 1970.
    """
    return max(0, int(now) - _BACKDATED_S)


def new_key() -> bytes:
    """Create a key over P-256, as PEM."""
    key = generate_private_key(SECP256R1())
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def check_key(pem: bytes) -> None:
    """Raise ValueError where this is no private key over an elliptic curve, as PEM without a password."""
    _key(pem)


def public_key_of(pem: bytes) -> EllipticCurvePublicKey:
    """Return the public key of a private one, as `check_key` accepts it; ValueError for any other."""
    return _key(pem).public_key()


def requested_key(pem: bytes) -> EllipticCurvePublicKey:
    """Return the public key of a certificate request (PKCS#10, PEM). Names and extensions in it count for nothing.

    Raises:
        ValueError: It is damaged, its signature is not by that key, or the key is not over P-256.
    """
    try:
        request = x509.load_pem_x509_csr(pem)
        key = request.public_key()
        signed = request.is_signature_valid
    except (UnsupportedAlgorithm, TypeError, x509.InvalidVersion) as error:
        raise ValueError(str(error)) from error
    if not isinstance(key, EllipticCurvePublicKey) or not isinstance(key.curve, SECP256R1):
        raise ValueError("its key is not one over P-256")
    if not signed:
        raise ValueError("its signature is not by its key")
    return key


def new_serial() -> int:
    """Return a serial number of 159 random bits (RFC 5280, 4.1.2.2)."""
    return x509.random_serial_number()


def make_ca(fleet: str, key: bytes, serial: int, period: Period) -> bytes:
    """Create the self-signed certificate of a CA. It may sign certificates and lists, and no further CA.

    Args:
        key: The CA's private key, PEM.

    Returns:
        The certificate, PEM.
    """
    private = _key(key)
    name = _name(Subject(fleet, "ca", f"fedpatch CA of {fleet}"))
    builder = _builder(name, name, private.public_key(), serial, period)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    return _pem(builder.sign(private, _SHA256))


def make_leaf(
    issuer: Issuer,
    subject: Subject,
    key: EllipticCurvePublicKey,
    serial: int,
    period: Period,
    names: Sequence[str] = (),
) -> bytes:
    """Create a certificate.

    Args:
        key: The public key of the holder.
        serial: A serial number that the CA has not used.
        period: Validity; it is cut at the end of the CA's.
        names: Host names and addresses of a server. Empty for a client, whose name is the URI fedpatch://FLEET/PART/NAME:
            a device id need not be a host name.

    Returns:
        The certificate, as PEM.
    """
    ends = min(period.not_after, issuer.ends)
    builder = _builder(_name(subject), issuer.certificate.subject, key, serial, Period(period.not_before, ends))
    purpose = ExtendedKeyUsageOID.SERVER_AUTH if names else ExtendedKeyUsageOID.CLIENT_AUTH
    uri = f"fedpatch://{subject.fleet}/{subject.part}/{subject.name}"
    alternatives = [_server_name(one) for one in names] or [x509.UniformResourceIdentifier(uri)]
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
    builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
    known_as = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.key.public_key())
    builder = builder.add_extension(known_as, critical=False)
    return _pem(builder.sign(issuer.key, _SHA256))


def make_crl(issuer: Issuer, number: int, now: int, revoked: Iterable[tuple[int, int]]) -> bytes:
    """Create the revocation list as PEM.

    It is valid as long as the CA: with an expired list a broker accepts no client.

    Args:
        number: Number of the list; each list has a higher one.
        now: Unix time, in seconds.
        revoked: Pairs of serial number and time of revocation.
    """
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(issuer.certificate.subject)
        .last_update(_moment(backdated(now)))
        .next_update(_moment(max(issuer.ends, now)))
        .add_extension(x509.CRLNumber(number), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.key.public_key()), critical=False)
    )
    for serial, when in revoked:
        one = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(_moment(when)).build()
        builder = builder.add_revoked_certificate(one)
    return builder.sign(issuer.key, _SHA256).public_bytes(serialization.Encoding.PEM)


def read_crl(pem: bytes) -> tuple[int, int]:
    """Return the number of a revocation list and its expiry in unix seconds; ValueError if it cannot be read."""
    found = x509.load_pem_x509_crl(pem)
    try:
        number = found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
    except x509.ExtensionNotFound as error:
        raise ValueError("a revocation list without a number") from error
    if found.next_update_utc is None:
        raise ValueError("a revocation list without an end")
    return number, int(found.next_update_utc.timestamp())


def read_issuer(certificate: bytes, key: bytes) -> Issuer:
    """Read a CA from PEM; ValueError where it is damaged or the key does not match."""
    issuer = Issuer(x509.load_pem_x509_certificate(certificate), _key(key))
    if issuer.certificate.public_key() != issuer.key.public_key():
        raise ValueError("the key is not that of the certificate")
    return issuer


def names_of(certificate: bytes) -> list[str]:
    """Host names and addresses in a server certificate; ValueError where it is damaged."""
    try:
        found = x509.load_pem_x509_certificate(certificate).extensions
        names = found.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]


def check_server_names(names: Iterable[str]) -> frozenset[str]:
    """Return the names in the form of `names_of`; UsageError for a name that no certificate can hold."""
    return frozenset(str(_server_name(name).value) for name in names)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: EllipticCurvePublicKey, serial: int, period: Period
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).serial_number(serial)
    builder = builder.not_valid_before(_moment(period.not_before)).not_valid_after(_moment(period.not_after))
    known_as = x509.SubjectKeyIdentifier.from_public_key(key)
    return builder.public_key(key).add_extension(known_as, critical=False)


def _name(subject: Subject) -> x509.Name:
    parts = (
        (NameOID.ORGANIZATION_NAME, subject.fleet),
        (NameOID.ORGANIZATIONAL_UNIT_NAME, subject.part),
        (NameOID.COMMON_NAME, subject.name),
    )
    return x509.Name([x509.NameAttribute(kind, value) for kind, value in parts])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _server_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    labels = name.removeprefix("*.").split(".")
    if len(name) > 253 or not all(0 < len(one) <= 63 and one.replace("-", "a").isalnum() for one in labels):
        raise UsageError(f"{name!r} is neither a host name nor an address; write it as in the broker's URL")
    if not name.isascii():
        raise UsageError(f"{name!r} is not ASCII; write the host name as the DNS has it (xn--...)")
    return x509.DNSName(name)


def _key(pem: bytes) -> EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (TypeError, UnsupportedAlgorithm) as error:
        raise ValueError(str(error)) from error
    if not isinstance(key, EllipticCurvePrivateKey):
        raise ValueError("the key is not one over an elliptic curve")
    return key


def _moment(unix_s: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(unix_s, datetime.UTC)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
