"""Masked rounds with signed keys: devices with certificates, a coordinator without the CA's key, and refusals of both."""

from __future__ import annotations

import random
import shutil
import time
from dataclasses import replace
from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest

from fedpatch.coordinator.pki.masking_authority import RevocationSource, check_masking, masking_authorities
from fedpatch.coordinator.rounds.device_needs import CANNOT_SIGN
from fedpatch.coordinator.runtime.run_preparation import Prepared
from fedpatch.coordinator.runtime.start_run import start_run
from fedpatch.coordinator.settings import RunSettings
from fedpatch.coordinator.storage.run_registry import Registry
from fedpatch.device_agent.masking.masking_state_machine import MaskingRounds
from fedpatch.device_agent.runtime.key_certificates import CertificateFiles
from fedpatch.shared.errors import UsageError
from fedpatch.shared.masking.keys import SecretKeys
from fedpatch.shared.masking.signed_keys import Authorities
from fedpatch.shared.wire.features import SIGNED_FEATURE
from fedpatch.shared.wire.masking_messages import GroupMember, MaskingKeys, Roster
from fedpatch.shared.wire.messages import Accept
from tests.coordinator.effect_runners import Bench
from tests.coordinator.masked_fleets import TERMS, Clock, MaskedFleet, names
from tests.support.checkups import quiet_checkup
from tests.support.identities import DAY_S, Certified
from tests.system.views import Silent

COUNT = 9
STRICT: dict[str, Any] = {
    **TERMS,
    "fleet": "demo",
    "devices": COUNT,
    "quorum": 0.5,
    "threshold": "two_thirds",
    "group_size": 9,
}


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Certified:
    """A CA on another machine, and its certificates for nine devices."""
    return Certified(tmp_path_factory.mktemp("elsewhere") / "ca", "demo").make(*names(COUNT))


@pytest.fixture
def ca_file(certified: Certified, tmp_path: Path) -> Path:
    """The CA's certificate on the coordinator's machine, without its key."""
    (tmp_path / "trusted").mkdir()
    return Path(shutil.copy(certified.ca_file, tmp_path / "trusted"))


@pytest.fixture
def fleet(
    certified: Certified,
    ca_file: Path,
    tmp_path: Path,
    prepared: Prepared,
    registry: Registry,
    clock: Clock,
) -> MaskedFleet:
    """Nine devices with signed keys in one group."""
    fleet = MaskedFleet(Bench(tmp_path, prepared, registry, **STRICT, ca_file=ca_file), clock, COUNT)
    for name, device in fleet.devices.items():
        certificates = CertificateFiles.of(certified.files(name), name, "demo", tmp_path / name)
        device.rounds = MaskingRounds(name, random.Random(name).randbytes, certificates=certificates)
        device.features = (SIGNED_FEATURE,)
    return fleet


def records(fleet: MaskedFleet) -> list[Any]:
    return fleet.bench.registry.rounds.records(fleet.bench.engine.spec.run)


def test_round_of_devices_that_sign_is_aggregated(fleet):
    fleet.come()
    [record] = records(fleet)
    assert (record.outcome, record.reported) == ("aggregated", COUNT)
    rosters = [body for _, body in fleet.transcript if isinstance(body, Roster)]
    assert rosters[0].threshold == 7
    assert all(member.keys.signature for roster in rosters for member in roster.members)


def test_device_that_cannot_sign_is_not_asked(fleet):
    fleet.devices["pi-03"].features = ()
    fleet.come()
    barred = {name: member.barred for name, member in fleet.bench.engine.fleet.members.items() if member.barred}
    assert barred == {"pi-03": CANNOT_SIGN}


def without_signature(keys: MaskingKeys) -> MaskingKeys:
    return replace(keys, signature=b"", certificate=b"")


def with_another_signature(keys: MaskingKeys) -> MaskingKeys:
    return replace(keys, signature=b"\x30\x06")


def with_an_unknown_curve(keys: MaskingKeys) -> MaskingKeys:
    known, unknown = (bytes.fromhex(f"2a8648ce3d03010{last}") for last in (7, 8))
    return replace(keys, certificate=keys.certificate.replace(known, unknown))


@pytest.mark.parametrize("spoil", [without_signature, with_another_signature, with_an_unknown_curve])
def test_device_without_a_good_signature_is_out_of_its_round_only(fleet, spoil):
    def change(device: str, answer: Any) -> Any:
        if device != "pi-03" or not isinstance(answer, Accept) or answer.keys is None:
            return answer
        return replace(answer, keys=spoil(answer.keys))

    fleet.change = change
    fleet.come().wait(700.0)
    [record] = records(fleet)
    assert (record.outcome, record.reported, record.failures) == ("aggregated", COUNT - 1, {"no_keys": 1})


def test_device_with_an_expired_certificate_is_out_of_its_round_only(fleet, tmp_path, certified):
    """The other members would refuse the whole roster. The broker checks dates only when a device connects."""
    shutil.copytree(certified.directory, tmp_path / "ca")
    now = time.time()
    expired = Certified(tmp_path / "ca", "demo").device("pi-03", now=now - 2 * DAY_S, days=1)
    certificates = CertificateFiles.of(expired, "pi-03", "demo", tmp_path)
    fleet.devices["pi-03"].rounds = MaskingRounds("pi-03", random.Random("pi-03").randbytes, certificates=certificates)
    fleet.come().wait(700.0)
    [record] = records(fleet)
    assert (record.outcome, record.reported, record.failures) == ("aggregated", COUNT - 1, {"no_keys": 1})


def test_members_that_a_coordinator_makes_up_get_no_shares(fleet):
    """The roster has the coordinator's own keys under names of devices: a device refuses this roster and sends no shares."""
    made_up = SecretKeys.new(random.Random(0).randbytes).public()

    def tamper(envelope: Any) -> Any:
        if not isinstance(envelope.body, Roster):
            return envelope
        first, *others = envelope.body.members
        members = tuple(replace(one, keys=replace(made_up, certificate=one.keys.certificate)) for one in others)
        return replace(envelope, body=replace(envelope.body, members=(first, *members)))

    device = fleet.devices["pi-00"]
    device.tamper = tamper
    fleet.come().wait(700.0)
    [record] = records(fleet)
    assert (record.outcome, record.reported) == ("aggregated", COUNT - 1)
    assert device.rounds.state is not None and device.rounds.state.roster is None


def test_replayed_signature_of_an_earlier_request_is_refused(fleet, certified, tmp_path):
    """A key that a device signed for another request is not valid in this round."""
    signer = CertificateFiles.of(certified.files("pi-01"), "pi-01", "demo", tmp_path)
    checker = CertificateFiles.of(certified.files("pi-00"), "pi-00", "demo", tmp_path)
    assert signer is not None and checker is not None
    keys = signer.sign(SecretKeys.new(random.Random(0).randbytes).public(), bytes(32))
    checker.check(GroupMember("pi-01", keys), bytes(32))
    with pytest.raises(Exception, match="in this round"):
        checker.check(GroupMember("pi-01", keys), b"\x01" * 32)


def strict(ca_file: Path | None, tmp_path: Path) -> RunSettings:
    return RunSettings(
        **STRICT, broker="mqtts://127.0.0.1:1", ca_file=ca_file, state_dir=tmp_path / "state", task="digits"
    )


@pytest.mark.parametrize(
    ("changes", "verdict", "words"),
    [
        ({}, "ok", "sign their keys"),
        ({"threshold": "half"}, "warn", "do not sign their keys"),
        ({"ca_file": None}, "fail", "set ca_file"),
    ],
)
def test_doctor_names_parties_able_to_invent_members(ca_file, tmp_path, changes, verdict, words):
    checkup = quiet_checkup()
    check_masking(replace(strict(ca_file, tmp_path), **changes), checkup)
    [finding] = [one for one in checkup.findings if one.name == "masking"]
    assert (finding.name, finding.verdict) == ("masking", verdict)
    assert words in finding.detail


def test_doctor_names_the_key_of_the_ca(certified, ca_file, tmp_path):
    """The doctor warns if keys need no signature, and fails if they must be signed."""
    beside = replace(strict(ca_file, tmp_path), ca_dir=certified.directory)
    for settings, verdict in ((replace(beside, threshold="half"), "warn"), (beside, "fail")):
        checkup = quiet_checkup()
        check_masking(settings, checkup)
        assert checkup.findings[0].verdict == verdict
        assert str(certified.directory / "ca.key") in checkup.findings[0].detail


def test_doctor_of_a_plain_run_checks_no_masking(tmp_path):
    checkup = quiet_checkup()
    check_masking(RunSettings(state_dir=tmp_path), checkup)
    assert checkup.findings == []


def test_run_refuses_to_start_where_the_key_of_the_ca_is_beside_the_coordinator(certified, ca_file, tmp_path):
    for settings in (
        strict(certified.ca_file, tmp_path),
        replace(strict(ca_file, tmp_path), ca_dir=certified.directory),
    ):
        with pytest.raises(UsageError, match=r"ca\.key: .* make up members"):
            start_run(settings, Silent())
    assert not (tmp_path / "state").exists()


def test_run_refuses_to_start_without_a_ca(tmp_path):
    with pytest.raises(UsageError, match="set ca_file"):
        start_run(strict(None, tmp_path), Silent())


def test_ca_file_without_a_certificate_is_refused(tmp_path):
    (tmp_path / "ca.crt").write_text("none")
    with pytest.raises(UsageError, match="has no certificate"):
        masking_authorities(strict(tmp_path / "ca.crt", tmp_path))


@pytest.fixture
def revoking(certified, ca_file, tmp_path, prepared, registry, clock) -> MaskedFleet:
    """Nine devices that read lists, and a coordinator with a list in which pi-03 is revoked."""
    elsewhere = Certified(Path(shutil.copytree(certified.directory, tmp_path / "elsewhere")), "demo")
    elsewhere.revoke("pi-03")
    shutil.copy(elsewhere.directory / "ca.crl", ca_file.parent)
    fleet = MaskedFleet(Bench(tmp_path, prepared, registry, **STRICT, ca_file=ca_file), clock, COUNT)
    for name, device in fleet.devices.items():
        (tmp_path / name).mkdir()
        certificates = CertificateFiles.of(certified.files(name), name, "demo", tmp_path / name)
        device.rounds = MaskingRounds(name, random.Random(name).randbytes, certificates=certificates)
        device.features = (SIGNED_FEATURE,)
    return fleet


def test_revoked_device_is_out_of_its_round_only(revoking, tmp_path):
    revoking.come().wait(700.0)
    [record] = records(revoking)
    assert (record.outcome, record.reported, record.failures) == ("aggregated", COUNT - 1, {"no_keys": 1})
    assert (tmp_path / "pi-00" / "revocations.bin").exists()


def trusted(settings: RunSettings) -> Authorities:
    found = masking_authorities(settings)
    assert found is not None
    return found


def settings_with_list(certified: Certified, ca_file: Path) -> RunSettings:
    shutil.copy(certified.directory / "ca.crl", ca_file.parent)
    return replace(RunSettings(task="digits", broker="mqtt://localhost"), **STRICT, ca_file=ca_file)


def test_ended_list_ends_the_start_of_a_run_and_stays_in_use_later(certified, ca_file, caplog):
    settings = settings_with_list(certified, ca_file)
    now = time.time()
    source = RevocationSource(settings, trusted(settings), lambda: now)
    first = source.latest()
    assert first is not None
    now = first.ends + 1
    assert source.latest() == first and "has ended" in caplog.text
    with pytest.raises(UsageError, match=r"ca\.crl: revocation list \d+ has ended; .*fedpatch ca crl"):
        RevocationSource(settings, trusted(settings), lambda: now).latest()


def test_list_that_appears_in_the_middle_of_a_run_waits_for_the_next_run(certified, ca_file):
    settings = replace(RunSettings(task="digits", broker="mqtt://localhost"), **STRICT, ca_file=ca_file)
    source = RevocationSource(settings, trusted(settings))
    assert source.latest() is None
    settings_with_list(certified, ca_file)
    assert source.latest() is None


@pytest.mark.parametrize(
    ("present", "days", "verdict"), [(False, 0, "warn"), (True, 30, "ok"), (True, 6, "warn"), (True, -1, "fail")]
)
def test_doctor_warns_a_week_before_the_list_ends(certified, ca_file, monkeypatch, present, days, verdict):
    settings = replace(RunSettings(task="digits", broker="mqtt://localhost"), **STRICT, ca_file=ca_file)
    if present:
        settings_with_list(certified, ca_file)
        listed = RevocationSource(settings, trusted(settings)).latest()
        assert listed is not None
        ends = listed.ends
        monkeypatch.setattr("fedpatch.coordinator.pki.masking_authority.time.time", lambda: ends - days * DAY_S + 3600)
        monkeypatch.setattr(
            RevocationSource,
            "__init__",
            partialmethod(RevocationSource.__init__, unix_time=lambda: ends - days * DAY_S),
        )
    checkup = quiet_checkup()
    check_masking(settings, checkup)
    [found] = [one for one in checkup.findings if one.name == "revocations"]
    assert found.verdict == verdict, found
