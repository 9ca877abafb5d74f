"""Invitations: which requests get a certificate, for which device, and how often."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from fedpatch.coordinator.pki.certificate_authority import COORDINATOR, DEVICE, Authority
from fedpatch.coordinator.pki.invitations import InvitationStore, RequestRow, approve, invite
from fedpatch.shared.config.enrolment_word import (
    ENDED,
    ISSUED,
    UNKNOWN,
    USED,
    WAITING,
    CertificateAsked,
    CertificateGiven,
    decode_request,
    encode_request,
    keys_of,
    new_word,
    open_answer,
)
from fedpatch.shared.errors import DataError, StateError, UsageError
from tests.support.certificate_requests import certificate_request

NOW = 1_800_000_000


@pytest.fixture
def authority(memory_path: Path) -> Iterator[Authority]:
    with Authority.create(memory_path / "ca", "kitchen", now=NOW) as made:
        yield made


@pytest.fixture
def invitations(authority: Authority) -> InvitationStore:
    return InvitationStore(authority.directory)


def invited(authority: Authority, device: str = "pi-1", broker: str = "mqtts://broker.lan") -> str:
    return invite(authority, device, now=NOW, broker=broker, days=9, hours=1)


def asked_with(word: str, request: str = "") -> CertificateAsked:
    return decode_request(encode_request(keys_of(word), request or certificate_request()))


def of_a_later_version(request: str) -> str:
    """Return a certificate request whose version (RFC 2986, 4.1) does not exist."""
    der = x509.load_pem_x509_csr(request.encode()).public_bytes(Encoding.DER)
    changed = der.replace(b"\x02\x01\x00", b"\x02\x01\x01", 1)
    return ssl.DER_cert_to_PEM_cert(changed).replace("CERTIFICATE-", "CERTIFICATE REQUEST-")


def state_of(invitations: InvitationStore, asked: CertificateAsked, now: float = NOW) -> str:
    return invitations.take(asked, "192.0.2.7", now).state


def given_to(invitations: InvitationStore, word: str, asked: CertificateAsked) -> CertificateGiven:
    return open_answer(invitations.take(asked, "192.0.2.7", NOW), keys_of(word), asked.request)


def row_of(invitations: InvitationStore, now: float = NOW) -> RequestRow:
    [row] = invitations.rows(now)
    return row


def test_approved_request_gets_the_certificate_of_the_invited_device(
    authority: Authority, invitations: InvitationStore
):
    word, key = invited(authority), ec.generate_private_key(ec.SECP256R1())
    asked = asked_with(word, certificate_request(key))
    assert row_of(invitations).state == "invited"
    assert state_of(invitations, asked) == WAITING and row_of(invitations).state == "asks"
    assert approve(authority, "pi-1", NOW) == row_of(invitations).code
    given = given_to(invitations, word, asked)
    assert (given.fleet, given.device, given.broker) == ("kitchen", "pi-1", "mqtts://broker.lan")
    certificate = x509.load_pem_x509_certificate(given.certificate.encode())
    assert certificate.public_key() == key.public_key()
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(given.ca.encode()))
    assert row_of(invitations).state == "approved"


def test_word_of_no_invitation_makes_nothing_pending(authority: Authority, invitations: InvitationStore):
    assert state_of(invitations, asked_with(new_word())) == UNKNOWN
    word = invited(authority)
    with_name_of_another = replace(asked_with(new_word()), invitation=keys_of(word).invitation)
    assert state_of(invitations, with_name_of_another) == UNKNOWN
    assert row_of(invitations).state == "invited"
    assert len(list(invitations.directory.iterdir())) == 1


def test_changed_request_makes_nothing_pending(authority: Authority, invitations: InvitationStore):
    asked = asked_with(invited(authority))
    assert state_of(invitations, replace(asked, request=certificate_request())) == UNKNOWN
    assert row_of(invitations).state == "invited"


def test_request_for_the_name_of_another_device_gets_a_certificate_of_the_invited_one(
    authority: Authority, invitations: InvitationStore
):
    word = invited(authority)
    asked = asked_with(word, certificate_request(name="pi-2"))
    state_of(invitations, asked)
    approve(authority, "pi-1", NOW)
    subject = x509.load_pem_x509_certificate(given_to(invitations, word, asked).certificate.encode()).subject
    assert subject.rfc4514_string() == "CN=pi-1,OU=device,O=kitchen"
    assert authority.index.names(DEVICE) == ["pi-1"]


def test_second_request_with_a_word_is_refused_before_and_after_the_approval(
    authority: Authority, invitations: InvitationStore
):
    word = invited(authority)
    first, second = asked_with(word), asked_with(word)
    assert [state_of(invitations, one) for one in (first, second)] == [WAITING, USED]
    approve(authority, "pi-1", NOW)
    assert [state_of(invitations, one) for one in (first, second)] == [ISSUED, USED]


def test_request_sent_again_gets_the_same_certificate_and_no_second_one(
    authority: Authority, invitations: InvitationStore
):
    word = invited(authority)
    asked = asked_with(word)
    assert [state_of(invitations, asked) for _ in range(2)] == [WAITING, WAITING]
    codes = {approve(authority, "pi-1", NOW) for _ in range(2)}
    assert len(codes) == 1 and given_to(invitations, word, asked) == given_to(invitations, word, asked)
    assert len(authority.index.entries) == 1


def test_ended_word_gets_nothing_before_and_after_the_approval(authority: Authority, invitations: InvitationStore):
    late = NOW + 3600
    asked = asked_with(invited(authority))
    assert state_of(invitations, asked, late) == ENDED and row_of(invitations, late).state == ENDED
    assert row_of(invitations).state == "invited"
    state_of(invitations, asked)
    approve(authority, "pi-1", NOW)
    assert state_of(invitations, asked, late) == ENDED


def test_request_whose_word_has_ended_cannot_be_approved(authority: Authority, invitations: InvitationStore):
    state_of(invitations, asked_with(invited(authority)))
    late = NOW + 3600
    assert row_of(invitations, late).state == ENDED
    with pytest.raises(UsageError, match=r"the word of 'pi-1' has ended; .+ fedpatch device invite pi-1"):
        approve(authority, "pi-1", late)
    assert authority.index.entries == ()


def test_request_that_the_ca_could_not_use_makes_nothing_pending(authority: Authority, invitations: InvitationStore):
    word = invited(authority)
    of_another_curve = certificate_request(ec.generate_private_key(ec.SECP384R1()))
    for request in ("no PEM", of_another_curve, of_a_later_version(certificate_request())):
        with pytest.raises(DataError, match="the certificate request cannot be used"):
            invitations.take(asked_with(word, request), "192.0.2.7", NOW)
    assert row_of(invitations).state == "invited"


def test_approval_without_an_invitation_or_a_request_is_refused(authority: Authority):
    with pytest.raises(UsageError, match="'pi-1' is not invited; invite it first: fedpatch device invite pi-1"):
        approve(authority, "pi-1", NOW)
    invited(authority)
    with pytest.raises(UsageError, match="'pi-1' was invited and has not asked yet"):
        approve(authority, "pi-1", NOW)
    assert authority.index.entries == ()


def test_new_word_of_a_device_ends_the_former_one_with_its_request(authority: Authority, invitations: InvitationStore):
    former = asked_with(invited(authority))
    state_of(invitations, former)
    word = invited(authority)
    assert state_of(invitations, former) == UNKNOWN and row_of(invitations).state == "invited"
    assert state_of(invitations, asked_with(word)) == WAITING


def test_refused_request_counts_no_more(authority: Authority, invitations: InvitationStore):
    asked = asked_with(invited(authority))
    state_of(invitations, asked)
    invitations.end(invitations.of("pi-1"))
    assert state_of(invitations, asked) == UNKNOWN
    assert list(invitations.directory.iterdir()) == [] and invitations.rows(NOW) == []


def test_enrolled_device_is_invited_by_renewal_only(authority: Authority):
    with pytest.raises(UsageError, match="'pi-1' has nothing to renew; leave --renew out"):
        invite(authority, "pi-1", now=NOW, broker="", days=9, hours=1, renewal=True)
    authority.issue(DEVICE, "pi-1", now=NOW)
    with pytest.raises(UsageError, match="'pi-1' is enrolled already; --renew invites it"):
        invited(authority)
    word = invite(authority, "pi-1", now=NOW, broker="", days=9, hours=1, renewal=True)
    asked = asked_with(word)
    state_of(InvitationStore(authority.directory), asked)
    approve(authority, "pi-1", NOW)
    assert [one.revoked_at for one in authority.index.of(DEVICE, "pi-1")] == [0, 0]


def test_invitation_for_an_impossible_name_or_broker_is_refused(authority: Authority, invitations: InvitationStore):
    for device, broker, problem in (
        ("Pi 1", "", "is not possible"),
        (COORDINATOR, "", "is the name of a coordinator"),
        ("pi-1", "mqtt://broker.lan", "a certificate is of no use without TLS"),
    ):
        with pytest.raises(UsageError, match=problem):
            invited(authority, device, broker)
    assert invitations.rows(NOW) == []


def test_requests_are_taken_without_the_key_of_the_ca(authority: Authority, invitations: InvitationStore):
    asked = asked_with(invited(authority))
    (authority.directory / "ca.key").unlink()
    assert state_of(invitations, asked) == WAITING


def test_files_of_an_invitation_are_secret_and_have_no_word(authority: Authority, invitations: InvitationStore):
    word = invited(authority)
    state_of(invitations, asked_with(word))
    approve(authority, "pi-1", NOW)
    found = list(invitations.directory.iterdir())
    assert len(found) == 3 and invitations.directory.stat().st_mode & 0o077 == 0
    for path in found:
        assert path.stat().st_mode & 0o077 == 0
        assert word not in path.read_text() and word.replace("-", "") not in path.read_text()
    [kept] = invitations.all()
    assert kept.request_key not in repr(kept)


def test_damaged_file_is_named_with_its_remedy(authority: Authority, invitations: InvitationStore):
    invited(authority)
    [path] = invitations.directory.iterdir()
    path.write_text(json.dumps({**json.loads(path.read_text()), "device": "../etc"}))
    with pytest.raises(StateError, match=f"{path}: damaged; delete it, and invite the device again"):
        invitations.rows(NOW)
