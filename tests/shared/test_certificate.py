"""What a certificate says, read without further packages; the library that makes ours agrees."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import certifi
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st

from coordinator.identity.authority import BROKER, DEVICE, Authority
from shared.certificate import Holder, read_der, read_pem

NOW = 1_800_000_000


@pytest.fixture(scope="module")
def pems(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes, bytes]:
    """A CA's, a device's, a broker's."""
    with Authority.create(tmp_path_factory.mktemp("ca"), "kitchen", now=NOW) as authority:
        device = authority.issue(DEVICE, "pi-1", now=NOW).pair.certificate
        broker = authority.issue(BROKER, "broker", now=NOW, names=["broker.lan"]).pair.certificate
        return authority.certificate, device, broker


def test_who_it_is_for_and_when_it_is_good(pems: tuple[bytes, bytes, bytes]):
    """Fleet, part and name of ours; the dates as they were given."""
    ca, device, broker = (read_pem(one)[0] for one in pems)
    assert device.holder == Holder("kitchen", "device", "pi-1")
    assert (device.subject, device.issuer, device.is_ca) == ("pi-1", "fedpatch CA of kitchen", False)
    assert (ca.subject, ca.is_ca, ca.holder) == ("fedpatch CA of kitchen", True, None)
    assert broker.holder is None
    assert (device.not_before, device.not_after) == (NOW - 3600, NOW + 365 * 86_400)
    standings = [device.standing(when) for when in (NOW - 9999, NOW, NOW + 400 * 86_400)]
    assert standings == ["not yet valid", "good", "expired"]


def test_a_file_may_hold_several_and_a_key(pems: tuple[bytes, bytes, bytes]):
    """In the order of the file; one without any is an error."""
    found = read_pem(b"text\n" + b"".join(pems) + b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
    assert [one.subject for one in found] == ["fedpatch CA of kitchen", "pi-1", "broker"]
    with pytest.raises(ValueError, match="no certificate in it"):
        read_pem(b"text")


@pytest.mark.filterwarnings("ignore:Parsed a serial number")
def test_the_certificates_of_the_world_are_read_as_the_library_reads_them():
    """RSA and elliptic curves, both kinds of dates, names in all their encodings."""
    data = Path(certifi.where()).read_bytes()
    ours, theirs = read_pem(data), x509.load_pem_x509_certificates(data)
    assert len(ours) == len(theirs) > 100
    for one, other in zip(ours, theirs, strict=True):
        assert one.serial == other.serial_number
        assert one.not_before == other.not_valid_before_utc.timestamp()
        assert one.not_after == other.not_valid_after_utc.timestamp()
        assert one.is_ca


@given(place=st.integers(0, 10_000), value=st.integers(0, 255))
def test_one_that_is_damaged_is_an_error_and_nothing_else(pems: tuple[bytes, bytes, bytes], place: int, value: int):
    """Any byte may be any other; so may the end be missing."""
    der = bytearray(x509.load_pem_x509_certificate(pems[1]).public_bytes(Encoding.DER))
    cut = der[: place % len(der)]
    der[place % len(der)] = value
    for data in (bytes(der), bytes(cut)):
        with suppress(ValueError):
            read_der(data)
