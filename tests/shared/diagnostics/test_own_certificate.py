"""Checks of `doctor`: the own certificate, and the CA of a fleet."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path

import pytest

from fedpatch.coordinator.guard.revocations import Revocations
from fedpatch.coordinator.observability.metrics_endpoint import as_number, of_files, of_others
from fedpatch.coordinator.pki.certificate_status import check_authority
from fedpatch.coordinator.pki.issued_certificates import Entry
from fedpatch.coordinator.settings import RunSettings
from fedpatch.device_agent.settings import AgentSettings
from fedpatch.shared.diagnostics.checks import Finding
from fedpatch.shared.diagnostics.own_certificate import check_own_certificate
from tests.support.checkups import quiet_checkup
from tests.support.identities import DAY_S, Certified


@pytest.fixture
def house(tmp_path: Path) -> Certified:
    return Certified(tmp_path / "ca", ca_days=900).make("pi-1", days=300)


def settings_of(house: Certified, device: str = "pi-1") -> AgentSettings:
    """Return the settings of a device with its certificate."""
    files = house.files(device)
    return AgentSettings(
        broker="mqtts://broker.lan",
        data="shard:0/1",
        fleet="kitchen",
        ca_file=files.ca_file,
        cert_file=files.cert_file,
        key_file=files.key_file,
    )


def found(settings: AgentSettings | RunSettings, name: str = "pi-1") -> Finding | None:
    checkup = quiet_checkup()
    check_own_certificate(settings, "device", name, checkup)
    return checkup.findings[0] if checkup.findings else None


def test_good_certificate_is_a_finding_with_its_end(house: Certified):
    good = found(settings_of(house))
    assert good is not None and good.verdict == "ok"
    assert "for 'pi-1', by 'fedpatch CA of kitchen'; it is good until 20" in good.detail
    assert found(replace(settings_of(house), cert_file=None, key_file=None)) is None
    assert found(replace(settings_of(house), broker="mqtt://broker.lan")) is None


def test_bad_certificate_is_a_finding_with_a_remedy(house: Certified, tmp_path: Path):
    now = time.time()
    house.device("ending", days=5)
    house.device("old", days=1, now=now - 9 * DAY_S)
    house.device("young", now=now + 9 * DAY_S)
    house.device("open")
    (house.directory / "open.pem").chmod(0o640)
    strange = replace(settings_of(house), key_file=house.files("old").key_file)
    garbled = replace(settings_of(house), cert_file=tmp_path / "garbled.pem", key_file=None)
    own = (house.directory / "pi-1.pem").read_bytes()
    (tmp_path / "garbled.pem").touch(mode=0o600)
    (tmp_path / "garbled.pem").write_bytes(own.replace(b" CERTIFICATE", b" X509 CERTIFICATE"))  # OpenSSL reads that too
    place = house.directory / "coordinator"
    coordinators = replace(settings_of(house), cert_file=place / "client.crt", key_file=place / "client.key")
    for settings, name, verdict, words, remedy in (
        (settings_of(house, "ending"), "ending", "warn", "it is good for 4 more days", "fedpatch device rotate ending"),
        (settings_of(house, "old"), "old", "fail", "it has expired on", "fedpatch device rotate old"),
        (settings_of(house, "young"), "young", "fail", "it is not valid before", "set "),
        (settings_of(house), "pi-2", "fail", "is a certificate for 'pi-1', and this is 'pi-2'", "enrol"),
        (replace(settings_of(house), fleet="garden"), "pi-1", "fail", "is a certificate for fleet 'kitchen'", "enrol"),
        (coordinators, "pi-1", "fail", "is a certificate for a coordinator, and this is a device", "enrol"),
        (garbled, "pi-1", "warn", "its certificate cannot be read", "enrol again"),
        (strange, "pi-1", "fail", "is not that of the certificate", "enrol"),
        (settings_of(house, "open"), "open", "fail", "is open to other users (mode 0640)", "chmod 600"),
        (replace(settings_of(house), key_file=tmp_path / "no"), "pi-1", "fail", "No such file", "enrol"),
    ):
        finding = found(settings, name)
        assert finding is not None
        assert finding.verdict == verdict and words in finding.detail and remedy in finding.remedy


@pytest.mark.parametrize(
    ("synchronised", "remedy"), [(True, "that of the CA was ahead"), (False, "set the clock (timed")]
)
def test_certificate_of_a_ca_that_was_ahead_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synchronised: bool, remedy: str
):
    monkeypatch.setattr("fedpatch.shared.diagnostics.own_certificate.is_synchronised", lambda: synchronised)
    house = Certified(tmp_path / "ca")
    house.device("young", now=time.time() + 9 * DAY_S)
    finding = found(settings_of(house, "young"), "young")
    assert finding is not None and remedy in finding.remedy
    assert ("fedpatch device rotate young" in finding.remedy) == synchronised


def run_settings(house: Certified) -> RunSettings:
    place = house.directory
    own = place / "coordinator"
    return RunSettings(
        broker="mqtts://broker.lan",
        fleet="kitchen",
        ca_dir=place,
        ca_file=place / "ca.crt",
        cert_file=own / "client.crt",
        key_file=own / "client.key",
    )


def identities(settings: RunSettings) -> Finding | None:
    checkup = quiet_checkup()
    check_authority(settings, checkup)
    return checkup.findings[0] if checkup.findings else None


def test_the_coordinator_s_doctor_knows_what_ends_soon(house: Certified, tmp_path: Path):
    settings = run_settings(house)
    good = identities(settings)
    assert good is not None and good.verdict == "ok" and "knows 1 devices, 0 of them revoked" in good.detail
    house.device("pi-2", days=5)
    ending = identities(settings)
    assert ending is not None and ending.verdict == "warn" and "pi-2 expires in 4 days" in ending.detail
    house.revoke("pi-2")
    again = identities(settings)
    assert again is not None and again.verdict == "ok" and "1 of them revoked" in again.detail
    other = identities(replace(settings, fleet="garden"))
    assert other is not None and other.verdict == "warn" and "is the CA of fleet 'kitchen'" in other.detail
    assert identities(replace(settings, ca_dir=tmp_path / "none")) is None
    (house.directory / "index.json").write_text("{")
    damaged = identities(settings)
    assert damaged is not None and damaged.verdict == "fail" and "damaged" in damaged.detail


def test_ca_and_certificates_of_a_clock_that_was_ahead_fail(house: Certified, tmp_path: Path):
    house.device("pi-2", now=time.time() + 9 * DAY_S)
    young = identities(run_settings(house))
    assert young is not None and young.verdict == "fail" and "device pi-2 is not valid before 20" in young.detail
    assert "set the clock" in young.remedy and "device rotate ID" in young.remedy
    house.revoke("pi-2")
    revoked = identities(run_settings(house))
    assert revoked is not None and revoked.verdict == "ok"
    ahead = Certified(tmp_path / "ahead", now=time.time() + 700 * DAY_S, ca_days=900)
    ahead.open().close()
    of_future = identities(run_settings(ahead))
    assert of_future is not None and of_future.verdict == "fail" and "the CA is not valid before 20" in of_future.detail


def test_the_metric_knows_every_certificate_a_run_depends_on(house: Certified):
    settings, now = run_settings(house), time.time()
    revocations = Revocations(house.directory, "kitchen")
    asks = {**of_files(settings), **of_others(revocations, lambda: now + 7 * DAY_S)}
    days = {name: round((as_number(ask) - now) / DAY_S) for name, ask in asks.items()}
    assert days == {"ca": 900, "coordinator": 300, "device": 300, "broker": 7}
    with house.open() as authority:
        authority.issue("coordinator", "coordinator", now=now, days=400)
    assert round((as_number(asks["coordinator"]) - now) / DAY_S) == 400
    bare = of_others(Revocations(house.directory / "none", "kitchen"), lambda: None)
    assert (of_files(RunSettings()), bare) == ({}, {})


def test_a_device_that_is_enrolled_during_a_run_has_its_metric(tmp_path: Path):
    Certified(tmp_path / "ca").make()
    revocations = Revocations(tmp_path / "ca", "kitchen")
    ask = of_others(revocations, lambda: None)["device"]
    assert math.isnan(as_number(ask))
    device = Entry(serial="1", part="device", name="pi-1", not_after=1_800_000_000)
    revocations.index = revocations.index.with_entry(device)
    assert as_number(ask) == 1_800_000_000
