"""Keys that devices sign with their certificates: which keys count as signed, and that a coordinator cannot forge them."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.shared.errors import WireError
from fedpatch.shared.masking.agreement import Sets, check_codes, codes_for, statement
from fedpatch.shared.masking.group_context import MaskingGroup
from fedpatch.shared.masking.signed_keys import Authorities, check_signed_keys, sign_keys, sign_statement
from fedpatch.shared.wire.codec import MAX_MESSAGE_BYTES, encode
from fedpatch.shared.wire.masking_messages import GroupMember, MaskingKeys, Roster
from fedpatch.shared.wire.messages import Envelope
from tests.support.identities import DAY_S, Certified

KEYS = MaskingKeys(b"\x01" * 32, b"\x02" * 32)
REQUEST, OTHER_REQUEST = b"\x03" * 32, b"\x04" * 32


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Certified:
    """Two devices and a watcher with certificates."""
    return Certified(tmp_path_factory.mktemp("ca"), "kitchen").make("pi-1", "pi-2", watchers=["anna"])


def authorities(fleet: Certified) -> Authorities:
    return Authorities.of_pem("kitchen", fleet.ca_file.read_bytes())


def signed(fleet: Certified, holder: str = "pi-1", device: str = "pi-1", request: bytes = REQUEST) -> MaskingKeys:
    """Keys of a device, signed with the certificate of `holder`."""
    certificate, key = (path.read_bytes() for path in fleet.pair(holder))
    return sign_keys(device, KEYS, request, certificate=certificate, private_key=key)


def refusal(keys: MaskingKeys, trusted: Authorities, device: str = "pi-1", now: float | None = None) -> str:
    with pytest.raises(WireError) as refused:
        check_signed_keys(device, keys, REQUEST, trusted, now)
    return str(refused.value)


def test_keys_of_a_device_of_the_fleet_are_signed(fleet):
    check_signed_keys("pi-1", signed(fleet), REQUEST, authorities(fleet))


def test_unsigned_keys_are_refused(fleet):
    assert "not signed" in refusal(KEYS, authorities(fleet))
    assert "not signed" in refusal(replace(signed(fleet), signature=b""), authorities(fleet))


@pytest.mark.parametrize("changed", [{"share": b"\x09" * 32}, {"mask": b"\x09" * 32}, {"signature": b"\x30\x00"}])
def test_other_keys_than_the_signed_ones_are_refused(fleet, changed):
    assert "not one of these keys" in refusal(replace(signed(fleet), **changed), authorities(fleet))


def test_signature_of_another_round_is_refused(fleet):
    """A replay: the request's digest names run, round and all terms."""
    assert "in this round" in refusal(signed(fleet, request=OTHER_REQUEST), authorities(fleet))


@pytest.mark.parametrize(("holder", "device"), [("pi-2", "pi-1"), ("pi-2", "pi-2")])
def test_certificate_of_another_device_is_refused(fleet, holder, device):
    assert "is one of 'pi-2'" in refusal(signed(fleet, holder, device), authorities(fleet))


@pytest.mark.parametrize("holder", ["anna", "coordinator"])
def test_certificate_of_a_member_that_is_no_device_is_refused(fleet, holder):
    """The coordinator has a certificate too; otherwise it could pose as all members of a group."""
    keys = signed(fleet, holder, holder)
    assert "not of a device of fleet 'kitchen'" in refusal(keys, authorities(fleet), holder)


def test_certificate_of_the_broker_is_refused(fleet):
    """It names hosts and no member, so a device could have its common name."""
    pair = (fleet.directory / "broker" / f"broker.{kind}" for kind in ("crt", "key"))
    certificate, key = (path.read_bytes() for path in pair)
    keys = sign_keys("broker", KEYS, REQUEST, certificate=certificate, private_key=key)
    assert "is one of a server" in refusal(keys, authorities(fleet), "broker")


def test_certificate_with_two_equal_extensions_is_refused(fleet):
    """Every member can send a certificate of its own making, which must not end the coordinator."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "pi-1")])
    now = datetime.now(UTC)
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
    made = made.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
    first, second = (x509.UnrecognizedExtension(x509.ObjectIdentifier(f"1.2.3.{last}"), b"") for last in (4, 5))
    whole = made.add_extension(first, critical=False).add_extension(second, critical=False).sign(key, SHA256())
    twice = whole.public_bytes(Encoding.DER).replace(b"\x2a\x03\x05", b"\x2a\x03\x04")
    assert twice.count(b"\x2a\x03\x04") == 2
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    keys = replace(
        sign_keys("pi-1", KEYS, REQUEST, certificate=whole.public_bytes(Encoding.PEM), private_key=private),
        certificate=twice,
    )
    assert "pi-1" in refusal(keys, authorities(fleet))


def test_certificate_of_another_ca_is_refused(fleet, tmp_path):
    other = Certified(tmp_path / "ca", "kitchen").make("pi-1")
    assert "not issued by the CA of this fleet" in refusal(signed(other), authorities(fleet))


def test_certificate_of_another_fleet_is_refused(tmp_path):
    """Also if one CA serves both fleets."""
    garden = Certified(tmp_path / "ca", "garden").make("pi-1")
    assert "fleet 'garden'" in refusal(signed(garden), authorities(garden))


def test_certificate_of_a_ca_with_the_name_of_a_device_is_refused(fleet):
    """A CA under the fleet's CA could issue certificates of any number of members."""
    issuer = x509.load_pem_x509_certificate(fleet.ca_file.read_bytes())
    issuer_key = load_pem_private_key((fleet.directory / "ca.key").read_bytes(), None)
    assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
    device, key = (
        x509.load_pem_x509_certificate(fleet.pair("pi-1")[0].read_bytes()),
        ec.generate_private_key(ec.SECP256R1()),
    )
    builder = x509.CertificateBuilder(issuer.subject, device.subject, key.public_key(), 7)
    builder = builder.not_valid_before(device.not_valid_before_utc).not_valid_after(device.not_valid_after_utc)
    for extension in device.extensions:
        if extension.oid != x509.BasicConstraints.oid:
            builder = builder.add_extension(extension.value, extension.critical)
    authority = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    certificate = authority.sign(issuer_key, SHA256()).public_bytes(Encoding.PEM)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    keys = sign_keys("pi-1", KEYS, REQUEST, certificate=certificate, private_key=private)
    assert "is one of a CA" in refusal(keys, authorities(fleet))


@pytest.mark.parametrize(("days", "word"), [(60, "expired"), (-60, "not yet valid")])
def test_certificate_outside_its_dates_is_refused(fleet, days, word):
    assert word in refusal(signed(fleet), authorities(fleet), now=time.time() + days * DAY_S)
    check_signed_keys("pi-1", signed(fleet), REQUEST, authorities(fleet))


@pytest.mark.parametrize("certificate", [b"\x30", b"\x30\x03\x02\x01\x01", bytes(100)])
def test_damaged_certificate_is_refused(fleet, certificate):
    assert "cannot be read" in refusal(replace(signed(fleet), certificate=certificate), authorities(fleet))


@pytest.mark.parametrize(
    ("part", "other"),
    [
        (bytes.fromhex("2a8648ce3d030107"), bytes.fromhex("2a8648ce3d030108")),
        (bytes.fromhex("2a8648ce3d0201"), bytes.fromhex("2a8648ce3d0209")),
        (bytes.fromhex("a003020102"), bytes.fromhex("a003020109")),
    ],
    ids=["unknown curve", "unknown kind of key", "unknown version"],
)
def test_certificate_with_an_unknown_algorithm_or_version_is_refused(fleet, part, other):
    keys = signed(fleet)
    assert part in keys.certificate
    changed = replace(keys, certificate=keys.certificate.replace(part, other))
    assert "cannot be read" in refusal(changed, authorities(fleet))


@given(st.lists(st.tuples(st.integers(0, 2**16), st.integers(1, 255)), min_size=1, max_size=3))
def test_keys_with_a_changed_certificate_are_refused_with_an_error_of_the_protocol(fleet, changes):
    """Every member can send a certificate of its own making, which must not end the coordinator."""
    keys = signed(fleet)
    certificate = bytearray(keys.certificate)
    for place, change in changes:
        certificate[place % len(certificate)] ^= change
    if bytes(certificate) != keys.certificate:
        refusal(replace(keys, certificate=bytes(certificate)), authorities(fleet))


def test_file_without_a_ca_is_refused(fleet):
    for pem in (b"", b"no certificate", fleet.pair("pi-1")[0].read_bytes()):
        with pytest.raises(WireError, match="no certificate"):
            Authorities.of_pem("kitchen", pem)


def test_key_that_cannot_sign_is_refused(fleet):
    key = rsa.generate_private_key(65537, 1024).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    certificate = fleet.pair("pi-1")[0].read_bytes()
    with pytest.raises(WireError, match="not over P-256"):
        sign_keys("pi-1", KEYS, REQUEST, certificate=certificate, private_key=key)
    with pytest.raises(WireError, match="cannot be read"):
        sign_keys("pi-1", KEYS, REQUEST, certificate=certificate, private_key=b"")


def test_certificate_that_does_not_fit_into_a_message_is_refused():
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "o" * 60) for _ in range(9)])
    begin, end = (datetime.now(UTC) + timedelta(days=days) for days in (-1, 1))
    certificate = x509.CertificateBuilder(name, name, key.public_key(), 1, begin, end).sign(key, SHA256())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    with pytest.raises(WireError, match=f"pi-1 has {len(certificate.public_bytes(Encoding.DER))} bytes"):
        sign_keys("pi-1", KEYS, REQUEST, certificate=certificate.public_bytes(Encoding.PEM), private_key=private)


def test_signed_roster_of_64_devices_with_the_longest_names_fits_into_a_message(tmp_path: Path):
    fleet = Certified(tmp_path / "ca", "k" * 32).make("d" * 32)
    certificate, key = (path.read_bytes() for path in fleet.pair("d" * 32))
    keys = sign_keys("d" * 32, KEYS, REQUEST, certificate=certificate, private_key=key)
    members = tuple(GroupMember(f"{number:02}{'d' * 30}", keys) for number in range(64))
    assert len(encode(Envelope(Roster(0, 43, members), task="t" * 60, run="r" * 60))) < MAX_MESSAGE_BYTES


def signed_sets(fleet: Certified, member: int, sets: Sets) -> bytes:
    _, key = fleet.pair(f"pi-{member + 1}")
    return sign_statement(statement(group_of(fleet), member, sets), key.read_bytes())


def group_of(fleet: Certified) -> MaskingGroup:
    members = tuple(GroupMember(name, signed(fleet, name, name)) for name in ("pi-1", "pi-2"))
    return MaskingGroup.of_roster(REQUEST, Roster(0, 2, members))


def test_signature_of_a_member_over_the_sets_of_its_group_counts_for_each_receiver(fleet):
    group, sets = group_of(fleet), Sets(b"\x03", b"\x03")
    found = {member: (signed_sets(fleet, member, sets),) for member in (0, 1)}
    for member, codes in found.items():
        check_codes(group, member, sets, codes, strict=True)
    for receiver in (0, 1):
        assert codes_for(found.__getitem__, [1], receiver, 2, strict=True) == (b"", found[1][0])


@pytest.mark.parametrize(
    ("signer", "sets", "count"),
    [
        (1, Sets(b"\x03", b"\x03"), 1),
        (0, Sets(b"\x03"), 1),
        (0, Sets(b"\x03", b"\x03"), 2),
        (0, Sets(b"\x03", b"\x03"), 0),
    ],
    ids=["of another member", "over other sets", "twice", "none"],
)
def test_codes_other_than_one_signature_of_the_member_over_the_sets_are_refused(fleet, signer, sets, count):
    codes = (signed_sets(fleet, signer, sets),) * count
    with pytest.raises(WireError, match="pi-1 has not signed"):
        check_codes(group_of(fleet), 0, Sets(b"\x03", b"\x03"), codes, strict=True)
