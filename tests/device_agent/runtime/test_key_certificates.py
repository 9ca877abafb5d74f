"""The certificate files of a device that signs its masking keys, and the requests that it declines without them."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.device_agent.masking.masking_state_machine import MaskingRounds
from fedpatch.device_agent.runtime.key_certificates import CertificateFiles
from fedpatch.device_agent.settings import AgentSettings
from fedpatch.device_agent.state.revocation_file import RevocationFile
from fedpatch.shared.config.load import load
from fedpatch.shared.errors import ConfigError, WireError
from fedpatch.shared.mqtt.tls_context import TlsFiles
from fedpatch.shared.wire.masking_messages import GroupMember, MaskingKeys, ThresholdRule
from fedpatch.shared.wire.messages import Accept, Decline
from fedpatch.shared.wire.reason_codes import DeclineReason
from tests.device_agent.job.test_masked_job import MASKED, TERMS, ask_masked, bodies
from tests.support.identities import DAY_S, Certified

KEYS, REQUEST = MaskingKeys(b"\x01" * 32, b"\x02" * 32), bytes(32)
SIGNED = replace(MASKED, secure=replace(TERMS, strict=True, threshold=ThresholdRule.TWO_THIRDS))


@pytest.fixture
def fleet(tmp_path: Path) -> Certified:
    """A fleet with one device."""
    return Certified(tmp_path / "ca", "kitchen").make("pi")


def files_of(fleet: Certified) -> CertificateFiles:
    found = CertificateFiles.of(fleet.files("pi"), "pi", "kitchen", fleet.directory)
    assert found is not None
    return found


def job_of(certificates: CertificateFiles | None) -> Job:
    masking = MaskingRounds("pi", random.Random(0).randbytes, certificates=certificates)
    return Job(max_blob_bytes=10_000, masking=masking)


def test_device_signs_with_the_files_of_its_connection(fleet):
    certificates = files_of(fleet)
    [accept] = [body for body in bodies(ask_masked(job_of(certificates), SIGNED)) if isinstance(body, Accept)]
    assert accept.keys is not None and accept.keys.signature
    assert bodies(ask_masked(job_of(certificates)))[0].keys.signature == b"", "signed where nobody asked for it"


def test_repeated_request_has_the_same_signature(fleet):
    """ECDSA signs with random numbers; the coordinator counts other bytes as other keys."""
    job = job_of(files_of(fleet))
    first = bodies(ask_masked(job, SIGNED))[0]
    assert bodies(ask_masked(job, SIGNED))[0] == first
    assert bodies(ask_masked(job, SIGNED, epoch=2))[0] == first


def test_renewed_certificate_counts_at_once(fleet):
    certificates = files_of(fleet)
    before = certificates.sign(KEYS, REQUEST)
    fleet.device("pi")
    after = certificates.sign(KEYS, REQUEST)
    assert before.certificate != after.certificate
    certificates.check(GroupMember("pi", after), REQUEST)


@pytest.mark.parametrize("spoil", [lambda path: path.unlink(), lambda path: path.chmod(0o644)])
def test_request_is_declined_where_the_key_cannot_be_used(fleet, spoil, caplog):
    """The job stays as it was. Only the log of the device names the file."""
    certificates, key = files_of(fleet), fleet.pair("pi")[1]
    spoil(key)
    [decline] = bodies(ask_masked(job_of(certificates), SIGNED))
    assert isinstance(decline, Decline)
    assert decline.reason is DeclineReason.UNSUPPORTED
    assert "its log names the file" in decline.detail
    assert str(key) in caplog.text
    assert key.name not in decline.detail and str(key.parent) not in decline.detail


def test_a_key_that_systemd_gives_the_service_signs(fleet, monkeypatch):
    key = fleet.pair("pi")[1]
    key.chmod(0o440)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(key.parent))
    assert files_of(fleet).sign(KEYS, REQUEST).signature


def test_request_for_signed_keys_is_declined_without_a_certificate():
    [decline] = bodies(ask_masked(job_of(None), SIGNED))
    assert isinstance(decline, Decline)
    assert "no certificate of its fleet's CA" in decline.detail


def test_expired_certificate_of_another_member_is_refused(fleet):
    keys = files_of(fleet).sign(KEYS, REQUEST)
    later = CertificateFiles(
        fleet.files("pi"), "pi", "kitchen", RevocationFile(fleet.directory), lambda: 60 * DAY_S + 2e9
    )
    with pytest.raises(WireError, match="expired"):
        later.check(GroupMember("pi", keys), REQUEST)


def test_device_without_certificate_or_ca_signs_nothing(fleet):
    assert CertificateFiles.of(TlsFiles(), "pi", "kitchen", fleet.directory) is None
    assert CertificateFiles.of(replace(fleet.files("pi"), ca_file=None), "pi", "kitchen", fleet.directory) is None


def test_setting_that_needs_a_certificate_is_refused_without_one():
    with pytest.raises(ConfigError) as caught:
        load(AgentSettings, file=None, environ={}, flags={"data": "shard:0/10", "min_threshold": "two_thirds"})
    [problem] = caught.value.problems
    assert problem.startswith("--min-threshold: ")
    assert "set cert_file and ca_file" in problem
