"""Why two sides do not trust each other: the messages, and whether waiting may help."""

from __future__ import annotations

import math
import ssl
import time
from dataclasses import replace
from pathlib import Path

import pytest

from fedpatch.shared.errors import DataError, UsageError
from fedpatch.shared.mqtt.tls_context import TlsFiles, tls_context
from fedpatch.shared.mqtt.tls_errors import TrustError, distrusted, fault_of, refused_by_broker
from fedpatch.shared.mqtt.url import parse_broker_url
from tests.support.brokers import free_port
from tests.support.identities import DAY_S, Certified
from tests.support.other_users import acting_as_nobody, open_directory

NOT_YET_VALID, EXPIRED, UNKNOWN_CA, REVOKED, PURPOSE, OTHER_NAME, SOMETHING = 9, 10, 19, 23, 26, 62, 99


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Certified:
    """A fleet with a device whose certificate is valid, and one whose certificate is not yet valid."""
    made = Certified(tmp_path_factory.mktemp("tls") / "ca", ca_days=900).make("pi-1")
    made.device("young", now=time.time() + 9 * DAY_S)
    return made


@pytest.fixture(scope="module")
def broker():
    """The URL of a broker that does not run: its certificate cannot be fetched."""
    return parse_broker_url(f"mqtts://127.0.0.1:{free_port()}")


def _of_library(code: int) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_code, error.verify_message = code, "in the words of OpenSSL"
    return error


def _alert(word: str) -> ssl.SSLError:
    error = ssl.SSLError(1, "alert")
    error.reason = f"SSLV3_ALERT_{word}"
    return error


@pytest.mark.parametrize(
    ("code", "problem", "remedy"),
    [
        (OTHER_NAME, "not for the host name 127.0.0.1", "make one with 127.0.0.1 among its names"),
        (UNKNOWN_CA, "of an unknown CA", "holds another CA"),
        (20, "of an unknown CA", "certfile needs the whole chain (fullchain.pem)"),
        (21, "of an unknown CA", "certfile needs the whole chain (fullchain.pem)"),
        (84, "in the words of OpenSSL", "accept_lax_ca = true"),
        (93, "in the words of OpenSSL", "accept_lax_ca = true"),
        (REVOKED, "was revoked", "fedpatch ca broker"),
        (PURPOSE, "is a client's, not a server's", "fedpatch ca broker"),
        (66, "in the words of OpenSSL", "keys of RSA have at least 2048 bits"),
        (67, "in the words of OpenSSL", "fedpatch ca init"),
        (68, "in the words of OpenSSL", "signatures SHA-256"),
        (SOMETHING, "in the words of OpenSSL", "openssl s_client -connect 127.0.0.1:"),
        (EXPIRED, "has expired; the clock here says 20", "renew it (fedpatch ca broker)"),
    ],
)
def test_failed_check_has_problem_and_remedy(house: Certified, broker, code, problem, remedy):
    found = distrusted(broker, house.files("pi-1"), _of_library(code))
    assert problem in found.problem and remedy in found.remedy
    fault = found.fault()
    assert fault.lasting and str(fault.reason) == f"{found.problem}; {found.remedy}"


@pytest.mark.parametrize(
    ("synchronised", "words", "remedy"),
    [
        (False, "is not synchronised with any time server", "set the clock"),
        (True, "", "the machine that made it was ahead: set its clock, and make the certificate anew"),
        (None, "", "set the clock"),
    ],
)
def test_certificate_not_yet_valid_is_retried(house: Certified, broker, monkeypatch, synchronised, words, remedy):
    monkeypatch.setattr("fedpatch.shared.mqtt.tls_errors.is_synchronised", lambda: synchronised)
    found = distrusted(broker, house.files("pi-1"), _of_library(NOT_YET_VALID))
    assert f"the certificate of the broker {broker} is not yet valid; the clock here says" in found.problem
    assert found.problem.endswith(words) and remedy in found.remedy
    assert found.good_from == math.inf and not found.fault().lasting


@pytest.mark.parametrize(
    ("code", "made", "words"), [(EXPIRED, -99, "has expired since"), (NOT_YET_VALID, 9, "is not yet valid before")]
)
def test_expired_ca_is_named_with_its_date(tmp_path: Path, broker, code, made, words):
    elsewhere = Certified(tmp_path / "ca", now=time.time() + made * DAY_S, ca_days=30)
    elsewhere.open().close()
    found = distrusted(broker, TlsFiles(elsewhere.directory / "ca.crt"), _of_library(code))
    assert f"the CA 'fedpatch CA of kitchen' in {elsewhere.directory}/ca.crt {words} 20" in found.problem
    assert (found.good_from is None) == (code == EXPIRED)


@pytest.mark.parametrize(
    ("word", "problem", "remedy"),
    [
        ("CERTIFICATE_REVOKED", "it was revoked", "fedpatch device add"),
        ("UNKNOWN_CA", "does not know its CA, 'fedpatch CA of kitchen'", "enrol with a bundle of this broker's fleet"),
        ("BAD_CERTIFICATE", "refused our certificate for 'pi-1'", "look into the broker's log"),
        ("CERTIFICATE_EXPIRED", "as expired; by the clock here it is good until 20", "set the broker's clock"),
    ],
)
def test_alert_of_the_broker_has_problem_and_remedy(house: Certified, broker, word, problem, remedy):
    """The alert selects them; among several reasons, the dates of our own files decide."""
    found = refused_by_broker(broker, house.files("pi-1"), _alert(word))
    assert found is not None and problem in found.problem and remedy in found.remedy and found.fault().lasting


def test_own_certificate_not_yet_valid_is_retried(house: Certified, broker):
    found = refused_by_broker(broker, house.files("young"), _alert("BAD_CERTIFICATE"))
    assert found is not None and "it is not yet valid before 20" in found.problem
    assert found.good_from == pytest.approx(time.time() + 9 * DAY_S, abs=2 * DAY_S)


def test_expired_alert_with_an_expired_ca_names_the_ca(tmp_path: Path, house: Certified, broker):
    """A device's certificate may have a later date than the CA above it."""
    gone = Certified(tmp_path / "ca", now=time.time() - 99 * DAY_S, ca_days=30)
    gone.open().close()
    files = replace(house.files("pi-1"), ca_file=gone.directory / "ca.crt")
    found = refused_by_broker(broker, files, _alert("CERTIFICATE_EXPIRED"))
    assert found is not None and "its CA 'fedpatch CA of kitchen' has expired on 20" in found.problem
    assert "fedpatch ca renew" in found.remedy


def test_missing_own_certificate_is_named_with_its_remedy(broker):
    found = refused_by_broker(broker, TlsFiles(), _alert("CERTIFICATE_REQUIRED"))
    assert isinstance(found, TrustError) and "asks for a certificate, and we have none" in found.problem
    assert refused_by_broker(broker, TlsFiles(), _alert("PROTOCOL_VERSION")) is None


def test_error_not_about_certificates_has_no_fault(house: Certified, broker):
    assert fault_of(broker, house.files("pi-1"), DataError("no disk")) is None
    assert fault_of(broker, house.files("pi-1"), _alert("INTERNAL_ERROR")) is None
    assert fault_of(broker, house.files("pi-1"), _of_library(REVOKED)) is not None


@pytest.mark.parametrize("name", ["ca.crt", "pi-1.pem"])
def test_file_that_another_user_may_read_alone_is_named_with_that_user(name: str):
    """As after `sudo fedpatch-agent enrol`, for an agent that runs as its own user."""
    with open_directory() as directory:
        house = Certified(directory / "ca").make("pi-1")
        for one in (house.directory, *house.directory.rglob("*")):
            one.chmod(0o755 if one.is_dir() else 0o600)
        if name != "ca.crt":
            house.ca_file.chmod(0o644)
        with acting_as_nobody(), pytest.raises(UsageError) as refused:
            tls_context(parse_broker_url("mqtts://hub.example"), house.files("pi-1"))
    assert f"{house.directory / name}: " in str(refused.value)
    assert "let this user read it (sudo chown nobody" in str(refused.value) and "(sudo -u root)" in str(refused.value)
