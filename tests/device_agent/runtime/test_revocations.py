"""Lists of revoked certificates on a device: revoked members, older, ended, partial and withheld lists."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from fedpatch.coordinator.pki.certificate_authority import DEVICE
from fedpatch.device_agent.masking.masking_round import RoundName
from fedpatch.device_agent.masking.masking_state_machine import MaskingRounds
from fedpatch.device_agent.runtime.key_certificates import CertificateFiles
from fedpatch.device_agent.state.revocation_file import RevocationFile
from fedpatch.shared.errors import WireError
from fedpatch.shared.masking.revocation import read_revocations
from fedpatch.shared.masking.signed_keys import Authorities
from fedpatch.shared.wire.masking_messages import MAX_REVOCATIONS_BYTES, GroupMember, MaskingKeys, Roster, Shares
from fedpatch.shared.wire.messages import Decline
from tests.device_agent.job.test_masked_job import ask_masked, bodies
from tests.device_agent.masking.test_masking_state_machine import STRICT
from tests.device_agent.runtime.test_key_certificates import SIGNED, job_of
from tests.support.examples import examples
from tests.support.identities import DAY_S, Certified

NAME = RoundName("digits", "run-1", 1)
NAMES = ("pi-00", "pi-01", "pi-02")
KEYS, REQUEST = MaskingKeys(b"\x01" * 32, b"\x02" * 32), bytes(32)
NOW = 1_750_000_000.0


@pytest.fixture
def fleet(tmp_path: Path) -> Certified:
    """Three devices with certificates, all from one time."""
    return Certified(tmp_path / "ca", "kitchen", now=NOW).make(*NAMES)


def der_of(fleet: Certified) -> bytes:
    """The newest list of the CA."""
    return x509.load_pem_x509_crl((fleet.directory / "ca.crl").read_bytes()).public_bytes(Encoding.DER)


def revoked(fleet: Certified, *names: str) -> bytes:
    with fleet.open() as authority:
        for name in names:
            authority.revoke(DEVICE, name, now=NOW)
    return der_of(fleet)


def made(
    fleet: Certified, number: int | None = 9, *more: tuple[x509.ExtensionType, bool], ends: float = NOW + DAY_S
) -> bytes:
    """A list of the CA with these extensions, as another program of the CA's holder makes it."""
    ca = x509.load_pem_x509_certificate(fleet.ca_file.read_bytes())
    key = load_pem_private_key((fleet.directory / "ca.key").read_bytes(), None)
    moment = datetime.fromtimestamp(ends, UTC)
    builder = x509.CertificateRevocationListBuilder().issuer_name(ca.subject)
    builder = builder.last_update(moment - timedelta(days=2)).next_update(moment)
    if number is not None:
        builder = builder.add_extension(x509.CRLNumber(number), critical=False)
    for extension, critical in more:
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(key, SHA256()).public_bytes(Encoding.DER)  # type: ignore[arg-type]


def files_of(fleet: Certified, name: str = "pi-00", now: float = NOW) -> CertificateFiles:
    directory = fleet.directory.parent / name
    directory.mkdir(exist_ok=True)
    return CertificateFiles(fleet.files(name), name, "kitchen", RevocationFile(directory), lambda: now)


def refusal(files: CertificateFiles, der: bytes) -> str:
    with pytest.raises(WireError) as caught:
        files.take_revocations(der or UNSET)
    return str(caught.value)


def roster_of(fleet: Certified, der: bytes) -> tuple[dict[str, MaskingRounds], Roster]:
    request = replace(STRICT, revocations=der)
    rounds = {
        name: MaskingRounds(name, random.Random(name).randbytes, certificates=files_of(fleet, name)) for name in NAMES
    }
    keys = [(name, one.begin(NAME, request)) for name, one in rounds.items()]
    return rounds, Roster(0, 3, tuple(GroupMember(name, found) for name, found in keys if found is not None))


def test_each_honest_device_refuses_a_roster_with_a_revoked_member(fleet):
    rounds, roster = roster_of(fleet, revoked(fleet, "pi-02"))
    for name in ("pi-00", "pi-01"):
        answer = rounds[name].handle(NAME, roster)
        assert answer.body is None and answer.problem == "the certificate of pi-02 is revoked"


def test_devices_share_where_another_device_is_revoked(fleet):
    fleet.device("pi-09")
    rounds, roster = roster_of(fleet, revoked(fleet, "pi-09"))
    assert isinstance(rounds["pi-00"].handle(NAME, roster).body, Shares)


def test_renewed_certificate_of_a_revoked_device_counts(fleet):
    der = revoked(fleet, "pi-02")
    fleet.device("pi-02")
    rounds, roster = roster_of(fleet, der)
    assert isinstance(rounds["pi-00"].handle(NAME, roster).body, Shares)


def test_older_list_is_refused_after_a_restart(fleet):
    older = der_of(fleet)
    newer = revoked(fleet, "pi-02")
    files_of(fleet).take_revocations(newer)
    assert "is older than list" in refusal(files_of(fleet), older)
    files_of(fleet).take_revocations(newer)


@examples(20)
@given(numbers=st.lists(st.integers(0, 2**64), min_size=1, max_size=5))
def test_device_takes_a_list_exactly_if_no_higher_number_came_before(tmp_path_factory, numbers):
    fleet = Certified(tmp_path_factory.mktemp("law") / "ca", "kitchen", now=NOW).make("pi-00")
    highest = -1
    for number in numbers:
        try:
            files_of(fleet).take_revocations(made(fleet, number))
            taken = True
        except WireError:
            taken = False
        assert taken == (number >= highest)
        highest = max(highest, number)


def test_request_without_a_list_is_refused_by_a_device_that_has_seen_one(fleet):
    files_of(fleet).take_revocations(UNSET)
    files_of(fleet).take_revocations(der_of(fleet))
    assert "has no revocation list, and this device has seen list" in refusal(files_of(fleet), b"")
    [decline] = bodies(ask_masked(job_of(files_of(fleet)), SIGNED))
    assert isinstance(decline, Decline) and "has no revocation list" in decline.detail


def test_unsigned_round_has_no_list_also_for_a_device_that_has_seen_one(fleet):
    files_of(fleet).take_revocations(der_of(fleet))
    rounds = MaskingRounds("pi-00", random.Random(0).randbytes, certificates=files_of(fleet))
    assert STRICT.secure is not None
    unsigned = replace(STRICT, secure=replace(STRICT.secure, strict=False), revocations=UNSET)
    assert rounds.begin(NAME, unsigned) is not None


def test_ended_list_is_refused_at_the_request_and_at_the_roster(fleet):
    der = made(fleet, ends=NOW + DAY_S)
    assert "revocation list 9 has ended; make a new one with `fedpatch ca crl`" in refusal(
        files_of(fleet, now=NOW + DAY_S + 1), der
    )
    files_of(fleet).take_revocations(der)
    keys = files_of(fleet, "pi-01").sign(KEYS, REQUEST)
    with pytest.raises(WireError, match="has ended"):
        files_of(fleet, now=NOW + DAY_S + 1).check(GroupMember("pi-01", keys), REQUEST)


_PART = x509.IssuingDistributionPoint(None, None, True, False, None, False, False)
_OTHER = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"")


@pytest.mark.parametrize(
    ("number", "extensions", "why"),
    [
        (9, [(x509.DeltaCRLIndicator(3), True)], "delta CRL"),
        (9, [(_PART, True)], "issuing distribution point"),
        (9, [(_OTHER, True)], "a critical extension"),
        (None, [], "no number"),
    ],
)
def test_list_that_is_not_the_whole_list_is_refused(fleet, number, extensions, why):
    assert why in refusal(files_of(fleet), made(fleet, number, *extensions))
    files_of(fleet).take_revocations(made(fleet, 9, (_OTHER, False)))


def test_list_of_another_ca_and_a_changed_or_too_long_one_are_refused(fleet, tmp_path):
    other = Certified(tmp_path / "other", "kitchen", now=NOW).make()
    assert "not of the CA of this fleet" in refusal(files_of(fleet), der_of(other))
    der = bytearray(der_of(fleet))
    der[-1] ^= 1
    assert "not of the CA of this fleet" in refusal(files_of(fleet), bytes(der))
    of_a_later_version = der_of(fleet).replace(b"\x02\x01\x01", b"\x02\x01\x02", 1)
    for damaged in (bytes(der[:-1]), of_a_later_version):
        assert "cannot be read" in refusal(files_of(fleet), damaged)
    trusted = Authorities.of_pem("kitchen", fleet.ca_file.read_bytes())
    with pytest.raises(WireError, match="at most 8192"):
        read_revocations(bytes(MAX_REVOCATIONS_BYTES + 1), trusted)


def test_renewed_ca_goes_on_with_its_numbers_and_a_new_ca_begins_again(fleet, tmp_path):
    older = der_of(fleet)
    with fleet.open() as authority:
        authority.renew(now=NOW + 5)
    files_of(fleet).take_revocations(der_of(fleet))
    assert "is older" in refusal(files_of(fleet), older)
    new = Certified(tmp_path / "new", "kitchen", now=NOW).make("pi-00")
    files = CertificateFiles(new.files("pi-00"), "pi-00", "kitchen", RevocationFile(tmp_path / "pi-00"), lambda: NOW)
    files.take_revocations(der_of(new))


def test_damaged_file_of_the_list_declines_until_it_is_deleted(fleet, caplog):
    files_of(fleet).take_revocations(der_of(fleet))
    path = fleet.directory.parent / "pi-00" / "revocations.bin"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert "its log names the file" in refusal(files_of(fleet), der_of(fleet))
    assert str(path) in caplog.text
    path.unlink()
    files_of(fleet).take_revocations(der_of(fleet))


def test_list_of_two_hundred_revocations_travels_in_a_request(fleet):
    from fedpatch.coordinator.pki.x509 import make_crl, new_serial, read_issuer

    issuer = read_issuer(fleet.ca_file.read_bytes(), (fleet.directory / "ca.key").read_bytes())
    pem = make_crl(issuer, 3, int(NOW), [(new_serial(), int(NOW)) for _ in range(200)])
    der = x509.load_pem_x509_crl(pem).public_bytes(Encoding.DER)
    assert len(der) <= MAX_REVOCATIONS_BYTES
    files_of(fleet).take_revocations(der)
