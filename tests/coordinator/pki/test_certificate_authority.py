"""The CA of a fleet: certificates, revocations, and refused requests."""

from __future__ import annotations

import base64
import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from fedpatch.coordinator.pki.certificate_authority import BROKER, COORDINATOR, DAY_S, DEVICE, WATCHER, Authority
from fedpatch.coordinator.pki.issued_certificates import read_index
from fedpatch.coordinator.pki.x509 import names_of, new_key
from fedpatch.shared.errors import StateError, StateUnreadable, UsageError
from tests.support.certificate_requests import certificate_request
from tests.support.failing_reads import FailingReads, reads

__all__ = ["reads"]
NOW = 1_800_000_000


@pytest.fixture
def authority(tmp_path: Path):
    with Authority.create(tmp_path / "ca", "kitchen", now=NOW) as made:
        yield made


def certificate(pem: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem)


def crl(authority: Authority) -> set[int]:
    """Return the serial numbers that brokers refuse."""
    found = x509.load_pem_x509_crl((authority.directory / "ca.crl").read_bytes())
    return {one.serial_number for one in found}


def test_client_certificate_has_names_purpose_and_validity(authority: Authority):
    issued = authority.issue(DEVICE, "pi-1", now=NOW, days=30)
    found = certificate(issued.pair.certificate)
    assert found.subject.rfc4514_string() == "CN=pi-1,OU=device,O=kitchen"
    assert found.not_valid_after_utc.timestamp() == NOW + 30 * DAY_S
    extensions = found.extensions
    assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    purpose = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert [one.dotted_string for one in purpose] == ["1.3.6.1.5.5.7.3.2"]
    assert extensions.get_extension_for_class(x509.KeyUsage).value.digital_signature
    names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [one.value for one in names] == ["fedpatch://kitchen/device/pi-1"]
    found.verify_directly_issued_by(certificate(authority.certificate))


def test_broker_certificate_has_host_names_and_addresses(authority: Authority):
    found = certificate(authority.issue(BROKER, "broker", now=NOW, names=["broker.lan", "::1"]).pair.certificate)
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["broker.lan"]
    assert [str(one) for one in names.get_values_for_type(x509.IPAddress)] == ["::1"]
    with pytest.raises(UsageError, match="'bro ker' is neither a host name nor an address"):
        authority.issue(BROKER, "broker", now=NOW, names=["bro ker"])
    with pytest.raises(UsageError, match=r"'bröker.lan' is not ASCII; write the host name as the DNS has it"):
        authority.issue(BROKER, "broker", now=NOW, names=["bröker.lan"])
    assert names_of(authority.certificate) == []


def test_openssl_loads_the_files_of_the_coordinator(authority: Authority):
    authority.issue(COORDINATOR, "coordinator", now=NOW)
    place = authority.place(COORDINATOR, "coordinator")
    context = ssl.create_default_context(cafile=authority.directory / "ca.crt")
    context.load_cert_chain(place / "client.crt", place / "client.key")
    assert (place / "client.key").stat().st_mode & 0o777 == 0o600
    assert (authority.directory / "ca.key").stat().st_mode & 0o777 == 0o600


def test_ca_made_in_the_first_hour_of_1970_can_be_opened(tmp_path: Path):
    """The clock of a machine without a battery begins there."""
    with Authority.create(tmp_path / "ca", "kitchen", now=600.0) as authority:
        authority.issue(DEVICE, "pi-1", now=600.0)
    with Authority.open(tmp_path / "ca", now=600.0) as again:
        assert again.fleet == "kitchen"


def test_ca_does_not_keep_the_key_of_a_device(authority: Authority):
    issued = authority.issue(DEVICE, "pi-1", now=NOW)
    assert b"PRIVATE KEY" in issued.pair.key
    assert sorted(one.name for one in authority.place(DEVICE, "pi-1").iterdir()) == ["client.crt"]


def test_certificate_by_request_has_the_requested_key_and_the_name_that_the_ca_gives(authority: Authority):
    key = ec.generate_private_key(ec.SECP256R1())
    found = certificate(
        authority.certify(DEVICE, "pi-1", certificate_request(key, name="pi-2").encode(), now=NOW, days=30),
    )
    assert found.public_key() == key.public_key()
    assert found.subject.rfc4514_string() == "CN=pi-1,OU=device,O=kitchen"
    assert found.not_valid_after_utc.timestamp() == NOW + 30 * DAY_S
    found.verify_directly_issued_by(certificate(authority.certificate))
    assert authority.index.names(DEVICE) == ["pi-1"]
    assert sorted(one.name for one in authority.place(DEVICE, "pi-1").iterdir()) == ["client.crt"]


def test_request_with_another_kind_of_key_or_a_damaged_signature_is_refused_and_records_nothing(authority: Authority):
    der = bytearray(x509.load_pem_x509_csr(certificate_request().encode()).public_bytes(serialization.Encoding.DER))
    der[-1] ^= 1
    changed = (
        b"-----BEGIN CERTIFICATE REQUEST-----\n" + base64.encodebytes(der) + b"-----END CERTIFICATE REQUEST-----\n"
    )
    refused = {
        "its key is not one over P-256": certificate_request(ec.generate_private_key(ec.SECP384R1())).encode(),
        "its signature is not by its key": changed,
        "PEM": authority.certificate,
    }
    for problem, request in refused.items():
        with pytest.raises(ValueError, match=problem):
            authority.certify(DEVICE, "pi-1", request, now=NOW)
    assert authority.index.entries == ()


def test_name_of_another_part_is_refused(authority: Authority):
    with pytest.raises(UsageError, match="'coordinator' is the name of a coordinator at the broker"):
        authority.issue(DEVICE, "coordinator", now=NOW)
    authority.issue(DEVICE, "pi-1", now=NOW)
    with pytest.raises(UsageError, match="'pi-1' is the name of a device"):
        authority.issue(WATCHER, "pi-1", now=NOW)
    with pytest.raises(UsageError, match=r"device name .+ is not possible"):
        authority.issue(DEVICE, "Pi 1", now=NOW)


def test_revoke_takes_all_certificates_of_a_device(authority: Authority):
    serials = [int(authority.issue(DEVICE, "pi-1", now=NOW).entry.serial, 16) for _ in range(2)]
    other = authority.issue(DEVICE, "pi-2", now=NOW)
    assert len(authority.revoke(DEVICE, "pi-1", now=NOW + 5, reason="stolen")) == 2
    assert crl(authority) == set(serials)
    assert authority.index.revoked_devices() == {"pi-1"}
    assert authority.revoke(DEVICE, "pi-1", now=NOW + 9) == ()
    assert authority.index.current(DEVICE, "pi-2") == other.entry
    authority.issue(DEVICE, "pi-1", now=NOW + 10)
    assert authority.index.revoked_devices() == frozenset()
    assert crl(authority) == set(serials)


def test_revoke_of_an_unknown_name_is_refused(authority: Authority):
    authority.issue(DEVICE, "pi-1", now=NOW)
    with pytest.raises(UsageError, match=r"no device 'pi-2' was ever given .*known: pi-1"):
        authority.revoke(DEVICE, "pi-2", now=NOW)


def test_open_writes_a_missing_revocation_list(authority: Authority):
    issued = authority.issue(DEVICE, "pi-1", now=NOW)
    before = (authority.directory / "ca.crl").read_bytes()
    authority.revoke(DEVICE, "pi-1", now=NOW)
    (authority.directory / "ca.crl").write_bytes(before)
    authority.close()
    with Authority.open(authority.directory, now=NOW) as again:
        assert crl(again) == {int(issued.entry.serial, 16)}


def test_revocation_list_that_cannot_be_read_now_is_not_replaced(authority: Authority, reads: FailingReads):
    """It may be newer than the record, and know revocations that the record lacks."""
    revoked, record = authority.directory / "ca.crl", authority.directory / "index.json"
    authority.issue(DEVICE, "pi-1", now=NOW)
    older = record.read_bytes()
    authority.revoke(DEVICE, "pi-1", now=NOW)
    authority.close()
    record.write_bytes(older)
    before = revoked.read_bytes()
    reads.fail(revoked)
    with pytest.raises(StateUnreadable, match=r"ca\.crl: cannot be read now: Input/output error"):
        Authority.open(authority.directory, now=NOW)
    reads.recover()
    assert revoked.read_bytes() == before


def test_older_record_than_the_revocation_list_is_refused_so_that_no_revocation_is_lost(authority: Authority):
    record, revoked = authority.directory / "index.json", authority.directory / "ca.crl"
    first = authority.issue(DEVICE, "pi-1", now=NOW).entry
    second = authority.issue(DEVICE, "pi-2", now=NOW).entry
    older = record.read_bytes()
    authority.revoke(DEVICE, "pi-1", now=NOW)
    authority.close()
    record.write_bytes(older)
    with pytest.raises(StateError, match=r"index\.json: is an older copy than ca\.crl.*revoke again"):
        Authority.open(authority.directory, now=NOW)
    assert crl(authority) == {int(first.serial, 16)}
    revoked.unlink()
    with Authority.open(authority.directory, now=NOW) as again:
        for device in ("pi-1", "pi-2"):
            again.revoke(DEVICE, device, now=NOW)
        assert crl(again) == {int(one.serial, 16) for one in (first, second)}


def test_open_replaces_a_foreign_revocation_list(authority: Authority):
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    times = [datetime.fromtimestamp(NOW + days * DAY_S, UTC) for days in (0, 9999)]
    builder = x509.CertificateRevocationListBuilder().issuer_name(issuer.subject)
    builder = builder.last_update(times[0]).next_update(times[1])
    foreign = builder.sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    for text in (foreign.public_bytes(serialization.Encoding.PEM), b"no list"):
        (authority.directory / "ca.crl").write_bytes(text)
        authority.close()
        with Authority.open(authority.directory, now=NOW):
            found = x509.load_pem_x509_crl((authority.directory / "ca.crl").read_bytes())
            assert found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number >= 0


def pem(key: ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey, password: bytes = b"") -> bytes:
    """Return a private key as PKCS 8, encrypted with the password if there is one."""
    lock = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, lock)


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (new_key(), "the key is not that of the certificate"),
        (b"no key", "are no CA"),
        (pem(ec.generate_private_key(ec.SECP256R1()), b"secret"), "[Pp]assword"),
        (pem(ed25519.Ed25519PrivateKey.generate()), "not one over an elliptic curve"),
    ],
    ids=["another", "none", "locked", "other kind"],
)
def test_open_with_a_wrong_key_is_refused(authority: Authority, key: bytes, words: str):
    authority.close()
    (authority.directory / "ca.key").write_bytes(key)
    with pytest.raises(StateError, match=f"{words}.*put them back from a backup"):
        Authority.open(authority.directory, now=NOW)


def test_create_never_replaces_a_ca(authority: Authority):
    first = authority.certificate
    authority.close()
    with Authority.create(authority.directory, "kitchen", now=NOW + 99) as again:
        assert again.certificate == first
    with pytest.raises(UsageError, match="is the CA of fleet 'kitchen', not of 'garden'"):
        Authority.create(authority.directory, "garden", now=NOW)
    (authority.directory / "index.json").unlink()
    with pytest.raises(StateError, match=r"has a CA but no index\.json"):
        Authority.create(authority.directory, "kitchen", now=NOW)
    with pytest.raises(UsageError, match="no CA there; make one with `fedpatch ca init`"):
        Authority.open(authority.directory, now=NOW)


def test_second_command_on_a_ca_is_refused(authority: Authority):
    with pytest.raises(UsageError, match="another command is changing this CA"):
        Authority.open(authority.directory, now=NOW)


def test_ca_key_that_others_can_read_is_refused(authority: Authority):
    authority.close()
    (authority.directory / "ca.key").chmod(0o640)
    with pytest.raises(UsageError, match=r"chmod 600 .*ca\.key"):
        Authority.open(authority.directory, now=NOW)


def test_certificates_end_with_their_ca(tmp_path: Path):
    with Authority.create(tmp_path, "kitchen", now=NOW, days=10) as authority:
        issued = authority.issue(DEVICE, "pi-1", now=NOW, days=30)
        assert issued.entry.not_after == authority.ends == NOW + 10 * DAY_S
        with pytest.raises(UsageError, match="has expired; renew it with `fedpatch ca renew`"):
            authority.issue(DEVICE, "pi-2", now=NOW + 10 * DAY_S)
        authority.renew(now=NOW + 11 * DAY_S)
        certificate(issued.pair.certificate).verify_directly_issued_by(certificate(authority.certificate))
        assert authority.issue(DEVICE, "pi-2", now=NOW + 11 * DAY_S).entry.not_after > NOW + 300 * DAY_S


def test_damaged_record_is_refused(authority: Authority):
    authority.close()
    (authority.directory / "index.json").write_text('{"fleet": "kitchen", "entries": [{"serial": "1"}]}')
    with pytest.raises(StateError, match="the record of a CA is damaged"):
        read_index(authority.directory)
