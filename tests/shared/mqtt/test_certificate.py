"""The fields of a certificate, read without further packages, equal those of the library that makes our certificates."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import certifi
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st

from fedpatch.coordinator.pki.certificate_authority import BROKER, DEVICE, Authority
from fedpatch.shared.mqtt.certificate import MAX_CERTIFICATES, MAX_PEM_BYTES, CertificateOwner, read_der, read_pem

NOW = 1_800_000_000


@pytest.fixture(scope="module")
def pems(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes, bytes]:
    """A CA's, a device's, a broker's."""
    with Authority.create(tmp_path_factory.mktemp("ca"), "kitchen", now=NOW) as authority:
        device = authority.issue(DEVICE, "pi-1", now=NOW).pair.certificate
        broker = authority.issue(BROKER, "broker", now=NOW, names=["broker.lan"]).pair.certificate
        return authority.certificate, device, broker


def test_certificate_has_owner_and_dates(pems: tuple[bytes, bytes, bytes]):
    ca, device, broker = (read_pem(one)[0] for one in pems)
    assert device.holder == CertificateOwner("kitchen", "device", "pi-1")
    assert (device.subject, device.issuer, device.is_ca) == ("pi-1", "fedpatch CA of kitchen", False)
    assert (ca.subject, ca.is_ca, ca.holder) == ("fedpatch CA of kitchen", True, None)
    assert broker.holder is None
    assert (device.not_before, device.not_after) == (NOW - 3600, NOW + 365 * 86_400)
    standings = [device.standing(when) for when in (NOW - 9999, NOW, NOW + 400 * 86_400)]
    assert standings == ["not yet valid", "good", "expired"]


def test_a_file_may_hold_several_and_a_key(pems: tuple[bytes, bytes, bytes]):
    found = read_pem(b"text\n" + b"".join(pems) + b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
    assert [one.subject for one in found] == ["fedpatch CA of kitchen", "pi-1", "broker"]
    with pytest.raises(ValueError, match="no certificate in it"):
        read_pem(b"text")


@pytest.mark.filterwarnings("ignore:Parsed a serial number")
def test_system_certificates_are_read_as_by_cryptography():
    data = Path(certifi.where()).read_bytes()
    ours, theirs = read_pem(data), x509.load_pem_x509_certificates(data)
    assert len(ours) == len(theirs) > 100
    for one, other in zip(ours, theirs, strict=True):
        assert one.serial == other.serial_number
        assert one.not_before == other.not_valid_before_utc.timestamp()
        assert one.not_after == other.not_valid_after_utc.timestamp()
        assert one.is_ca


@given(place=st.integers(0, 10_000), value=st.integers(0, 255))
def test_damaged_certificate_raises_value_error_alone(pems: tuple[bytes, bytes, bytes], place: int, value: int):
    der = bytearray(x509.load_pem_x509_certificate(pems[1]).public_bytes(Encoding.DER))
    cut = der[: place % len(der)]
    der[place % len(der)] = value
    for data in (bytes(der), bytes(cut)):
        with suppress(ValueError):
            read_der(data)


def test_file_beyond_the_size_limit_raises_value_error(pems: tuple[bytes, bytes, bytes]):
    """The author of the file can make us use neither much memory nor much time."""
    with pytest.raises(ValueError, match=f"more than {MAX_PEM_BYTES} bytes"):
        read_pem(b" " * (MAX_PEM_BYTES + 1))
    with pytest.raises(ValueError, match=f"more than {MAX_CERTIFICATES} certificates"):
        read_pem(pems[1] * (MAX_CERTIFICATES + 1))


def _der(tag: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    assert len(body) < 128
    return bytes([tag, len(body)]) + body


def _made(*dates: bytes) -> bytes:
    """A certificate of version 1, which has no extensions, with these dates."""
    empty, validity = _der(0x30), _der(0x30, *(_der(0x17, date) for date in dates))
    return _der(0x30, _der(0x30, _der(0x02, b"\x07"), empty, empty, validity, empty, empty), empty)


def test_certificate_without_extensions_has_no_holder():
    found = read_der(_made(b"700101000001Z", b"700101000002Z"))
    assert (found.serial, found.not_before, found.not_after) == (7, 1.0, 2.0)
    assert (found.subject, found.is_ca, found.holder) == ("no name", False, None)
    with pytest.raises(ValueError, match="damaged: its dates"):
        read_der(_made(b"700101000001Z"))
