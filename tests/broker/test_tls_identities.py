"""Two sides that do not trust each other, over TLS with a real mosquitto: the error message for each reason."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fedpatch.coordinator.pki.certificate_authority import BROKER
from fedpatch.shared.mqtt.client import Connected, Disconnected
from fedpatch.shared.mqtt.tls_context import TlsFiles
from tests.support.brokers import HOST, Mosquitto, client
from tests.support.checkups import ask, settings_for
from tests.support.identities import DAY_S, VALID_DAYS, Certified, url_of

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def kitchen(tmp_path_factory: pytest.TempPathFactory) -> Certified:
    return Certified(tmp_path_factory.mktemp("kitchen") / "ca").make("pi-1", "pi-2")


@pytest.fixture(scope="module")
def garden(tmp_path_factory: pytest.TempPathFactory) -> Certified:
    """Another fleet with its own CA."""
    return Certified(tmp_path_factory.mktemp("garden") / "ca", "garden").make("pi-1")


@pytest.fixture(scope="module")
def broker(kitchen: Certified) -> Iterator[Mosquitto]:
    with kitchen.broker() as started:
        yield started


def failure_reason(url: str, files: TlsFiles) -> str:
    """Return the reason why a connection with these files fails."""
    with client(url, "one", tls=files) as one:
        return one.wait(Disconnected).reason


def test_a_device_with_a_certificate_is_let_in(kitchen: Certified, broker: Mosquitto):
    with client(url_of(broker), "pi-1", tls=kitchen.files("pi-1")) as one:
        ends = one.wait(Connected).broker_certificate_ends
    assert ends is not None and abs(ends - time.time() - VALID_DAYS * DAY_S) < DAY_S


def test_a_certificate_of_another_fleet_is_refused(kitchen: Certified, garden: Certified, broker: Mosquitto):
    own = garden.files("pi-1").cert_file
    reason = failure_reason(url_of(broker), TlsFiles(kitchen.directory / "ca.crt", own, own))
    assert "the broker does not know its CA, 'fedpatch CA of garden': is it a certificate for another fleet?" in reason
    reason = failure_reason(url_of(broker), garden.files("pi-1"))
    assert f"its certificate is of an unknown CA; {garden.directory}/ca.crt holds another CA" in reason


def test_client_without_a_certificate_gets_the_hint_to_enrol(kitchen: Certified, broker: Mosquitto):
    reason = failure_reason(url_of(broker), TlsFiles(kitchen.directory / "ca.crt"))
    assert "asks for a certificate, and we have none; enrol this device (fedpatch-agent enrol FILE)" in reason


def test_expired_device_certificate_is_reported_with_its_date(kitchen: Certified, broker: Mosquitto):
    now = time.time()
    kitchen.device("old", days=1, now=now - 5 * DAY_S)
    reason = failure_reason(url_of(broker), kitchen.files("old"))
    gone = time.strftime("%Y-%m-%d", time.gmtime(now - 4 * DAY_S))
    assert f"our certificate for 'old' ({kitchen.directory}/old.pem): it has expired on {gone}" in reason
    assert "renew it (fedpatch device rotate" in reason


def test_doctor_gives_the_remedy_of_a_refused_certificate_at_the_login(
    kitchen: Certified, garden: Certified, broker: Mosquitto
):
    ca_file, own = kitchen.directory / "ca.crt", garden.files("pi-1").cert_file
    without = ask(settings_for("device", url_of(broker), ca_file=ca_file), "device")["broker_login"]
    assert without.detail == f"{HOST}:{broker.port} asks for a certificate, and we have none"
    assert without.remedy == "enrol this device (fedpatch-agent enrol FILE), or give cert_file and key_file"
    strange = ask(settings_for("device", url_of(broker), ca_file=ca_file, cert_file=own), "device")["broker_login"]
    assert strange.detail.endswith("is it a certificate for another fleet?")
    assert strange.remedy == "enrol with a bundle of this broker's fleet, or give the broker that CA (cafile)"


def test_doctor_gives_the_remedy_of_a_broker_with_the_revocation_list_of_before_the_renewal_of_the_ca(tmp_path: Path):
    now = time.time()
    house = Certified(tmp_path / "ca", now=now - 20 * DAY_S, ca_days=10)
    revoked = house.directory / "ca.crl"
    with house.open() as authority:
        expired = revoked.read_bytes()
        authority.renew(now=now)
    replace(house, now=now).make("pi-1")
    revoked.write_bytes(expired)
    files = house.files("pi-1")
    with house.broker() as broker:
        settings = settings_for("device", url_of(broker), ca_file=files.ca_file, cert_file=files.cert_file)
        found = ask(settings, "device")["broker_login"]
    assert "as expired; by the clock here it is good until" in found.detail
    assert found.remedy == (
        "set the broker's clock, or give it a new CA certificate and revocation list (fedpatch ca crl)"
    )


def test_certificate_not_yet_valid_is_reported_with_its_date(kitchen: Certified, broker: Mosquitto):
    kitchen.device("young", now=time.time() + 5 * DAY_S)
    assert "it is not yet valid before" in failure_reason(url_of(broker), kitchen.files("young"))


def test_a_name_that_is_not_in_the_broker_s_certificate(kitchen: Certified, garden: Certified):
    with garden.open() as authority:
        authority.issue(BROKER, "broker", now=time.time(), names=["elsewhere.example"])
    with garden.broker() as other:
        reason = failure_reason(url_of(other), garden.files("pi-1"))
    assert (
        f"its certificate is not for the host name {HOST}; write a name of its certificate in the broker URL" in reason
    )


def test_a_broker_with_the_certificate_of_a_client(garden: Certified):
    place = garden.directory
    options = f"cafile {place}/ca.crt\ncertfile {place}/coordinator/client.crt\nkeyfile {place}/coordinator/client.key"
    with Mosquitto(options) as other:
        assert "its certificate is a client's, not a server's" in failure_reason(url_of(other), garden.files("pi-1"))


def test_a_ca_that_has_expired_is_named(tmp_path: Path):
    past = Certified(tmp_path / "ca", now=time.time() - 10 * DAY_S, ca_days=9).make("pi-1", days=60)
    with past.broker() as broker:
        reason = failure_reason(url_of(broker), past.files("pi-1"))
        assert f"the CA 'fedpatch CA of kitchen' in {tmp_path}/ca/ca.crt has expired since" in reason
        assert "renew the CA (fedpatch ca renew) and give everybody its new ca.crt" in reason


def test_expired_broker_certificate_is_reported_with_its_date(tmp_path: Path):
    """The CA is valid, so the broker's own certificate must be expired: it is fetched, and its last day reported."""
    house = Certified(tmp_path / "ca").make("pi-1")
    now = time.time()
    with house.open() as authority:
        authority.issue(BROKER, "broker", now=now - 5 * DAY_S, days=1, names=[HOST])
    with house.broker() as broker:
        reason = failure_reason(url_of(broker), house.files("pi-1"))
    gone = time.strftime("%Y-%m-%d", time.gmtime(now - 4 * DAY_S))
    assert f"the certificate of the broker {HOST}:{broker.port} has expired since {gone}" in reason
    assert "renew it (fedpatch ca broker); where it is not old, set the clock" in reason


def test_a_revoked_device_is_refused_once_the_broker_has_read_the_list(tmp_path: Path):
    """SIGHUP affects new connections; a restart ends open connections, and only revoked devices cannot reconnect."""
    house = Certified(tmp_path / "ca").make("pi-1", "pi-2")
    with house.broker() as broker, client(url_of(broker), "pi-1", tls=house.files("pi-1")) as one:
        one.wait(Connected)
        house.revoke("pi-1")
        broker.signal(signal.SIGHUP)
        for _ in range(300):
            with client(url_of(broker), "again", tls=house.files("pi-1")) as again:
                event = again.wait(object)
            if isinstance(event, Disconnected):
                break
        assert isinstance(event, Disconnected) and "it was revoked; ask the fleet's operator" in event.reason
        broker.restart()
        one.wait(Disconnected, lambda event: "it was revoked" in event.reason)
        with client(url_of(broker), "pi-2", tls=house.files("pi-2")) as two:
            two.wait(Connected)


@pytest.mark.medium
def test_a_renewed_certificate_is_taken_up_without_a_restart(tmp_path: Path):
    """The link reconnects with the new certificate; a key that does not fit, as between two writes, breaks nothing."""
    house = Certified(tmp_path / "ca").make("pi-1")
    files = house.files("pi-1")
    assert files.cert_file is not None
    with house.broker() as broker, client(url_of(broker), "pi-1", "t", tls=files) as one:
        one.wait(Connected)
        files.cert_file.write_bytes(b"half a certificate")
        house.device("pi-1", days=10)
        assert "our certificate was renewed" in one.wait(Disconnected).reason
        one.wait(Connected)
        one.link.publish("t", b"still here")
        assert one.received("t").payload == b"still here"


LIBRARIES = sorted(Path("/usr/lib").glob("**/libfaketime.so.1"))
LOOK = """
import queue, sys
from pathlib import Path
from fedpatch.shared.mqtt.client import Connected, Disconnected, MqttLink
from fedpatch.shared.mqtt.tls_context import TlsFiles
events, (url, ca, own) = queue.Queue(), sys.argv[1:]
link = MqttLink(url, client_id="pi-1", events=events.put, tls=TlsFiles(Path(ca), Path(own), Path(own)))
link.start()
while True:
    event = events.get(timeout=120)
    print(event.reason if isinstance(event, Disconnected) else "connected", flush=True)
    if isinstance(event, Connected):
        break
link.stop()
"""


@pytest.mark.skipif(not LIBRARIES, reason="libfaketime is missing; install Debian's package faketime")
@pytest.mark.parametrize(
    ("offset", "words"), [("-400d", "is not yet valid before"), ("+4000d", "has expired since")], ids=["past", "future"]
)
def test_link_reports_a_wrong_clock_and_waits_for_its_correction(
    kitchen: Certified, broker: Mosquitto, tmp_path: Path, offset: str, words: str
):
    clock = tmp_path / "clock"
    clock.write_text(offset)
    environment = {
        "LD_PRELOAD": str(LIBRARIES[0]),
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "PYTHONPATH": ":".join(sys.path),
        "PATH": "/usr/bin:/bin",
    }
    files = kitchen.files("pi-1")
    command = [sys.executable, "-c", LOOK, url_of(broker), str(files.ca_file), str(files.cert_file)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as device:
        assert device.stdout is not None
        first = device.stdout.readline()
        assert f"the CA 'fedpatch CA of kitchen' in {files.ca_file} {words}" in first
        assert "the clock here says" in first and "set the clock" in first
        replacement = tmp_path / "right"
        replacement.write_text("+0")
        replacement.replace(clock)
        assert any("connected" in line for line in device.stdout)
        assert device.wait(60) == 0
