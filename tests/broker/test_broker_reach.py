"""What `doctor` finds on the way to a broker: its name, its port, its certificate."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from fedpatch.shared.diagnostics.checks import Finding
from tests.support.brokers import HOST, Mosquitto, free_port
from tests.support.checkups import ask, settings_for, verdicts

pytestmark = pytest.mark.broker

CA_CONFIG = """
[ca]
default_ca = own
[own]
database = index
new_certs_dir = .
rand_serial = yes
default_md = sha256
policy = any
copy_extensions = copy
[any]
commonName = supplied
"""


def test_nobody_at_the_port():
    """The finding says that the host is there, and nothing else is asked."""
    found = ask(settings_for("device", f"mqtt://{HOST}:{free_port()}"), "device")
    assert verdicts(found) == {"broker_port": "fail", "broker_login": "skip"}
    assert "refuses connections" in found["broker_port"].detail and "start the broker" in found["broker_port"].remedy


def test_a_name_that_nobody_knows():
    """It is told before anything is tried, with a way to look it up."""
    found = ask(settings_for("device", "mqtt://no.such.host.invalid"), "device")
    assert verdicts(found) == {"broker_name": "fail", "broker_login": "skip"}
    assert "getent hosts no.such.host.invalid" in found["broker_name"].remedy


def test_a_port_that_swallows_everything():
    """As behind a firewall: here a listener whose queue of connections is full, so that the kernel drops more of them."""
    with contextlib.ExitStack() as stack:
        deaf = stack.enter_context(socket.create_server((HOST, 0), backlog=0))
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(deaf.getsockname())
        found = ask(settings_for("device", f"mqtt://{HOST}:{deaf.getsockname()[1]}"), "device")
    assert verdicts(found) == {"broker_port": "fail", "broker_login": "skip"}
    assert "does not answer within 4 s" in found["broker_port"].detail and "firewall" in found["broker_port"].remedy


def test_something_that_listens_and_never_answers():
    """A frozen broker, or none at all: the doctor does not wait for ever."""
    with socket.create_server((HOST, 0)) as silent:
        found = ask(settings_for("device", f"mqtt://{HOST}:{silent.getsockname()[1]}"), "device", connect_s=6.0)
    assert verdicts(found) == {"broker_port": "ok", "broker_login": "fail"}
    assert "does not answer" in found["broker_login"].detail and "log" in found["broker_login"].remedy


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Makes a certificate that is its own CA, for a name and some days from now on, or for a month long ago."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")

    def make(names: str = f"IP:{HOST}", days: int = 60, *, past: bool = False) -> Path:
        folder = tmp_path_factory.mktemp("certificate")
        key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key -subj /CN=test"
        request = f"openssl req {key} -addext subjectAltName={names}"
        if past:
            (folder / "ca.cnf").write_text(CA_CONFIG)
            (folder / "index").touch()
            dates = "-startdate 20200101000000Z -enddate 20200201000000Z"
            commands = [f"{request} -out csr"]
            commands.append(f"openssl ca -batch -config ca.cnf -selfsign -keyfile key -in csr -out crt -notext {dates}")
        else:
            commands = [f"{request} -x509 -days {days} -out crt"]
        for command in commands:
            subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
        return folder / "crt"

    return make


def over_tls(certificate: Path, ca_file: Path | None) -> Finding:
    """The finding about a broker with this certificate, for somebody who trusts `ca_file`."""
    with Mosquitto(f"certfile {certificate}\nkeyfile {certificate.parent}/key") as broker:
        url = broker.url.replace("mqtt:", "mqtts:")
        return ask(settings_for("device", url, ca_file=ca_file), "device")["broker_tls"]


def test_a_certificate_that_is_trusted(certificate):
    """How long it is still good is told, and near its end that is a warning."""
    lasting, ending = certificate(), certificate(days=3)
    assert over_tls(lasting, lasting).verdict == "ok"
    found = over_tls(ending, ending)
    assert found.verdict == "warn" and "renew" in found.remedy


def test_a_certificate_of_an_unknown_ca(certificate):
    """The mend differs for a CA file that is wrong and one that was not given."""
    own, strangers = certificate(), certificate()
    with_wrong, without = over_tls(own, strangers), over_tls(own, None)
    assert with_wrong.verdict == without.verdict == "fail"
    assert f"{strangers} holds another CA" in with_wrong.remedy
    assert "the system does not know its CA; give --ca-file" in without.remedy


def test_a_certificate_for_another_name(certificate):
    own = certificate(names="DNS:elsewhere.example")
    found = over_tls(own, own)
    assert found.verdict == "fail" and f"make one with {HOST} among its names" in found.remedy


def test_a_certificate_of_the_past(certificate):
    """It has to be renewed, or this machine's clock is wrong."""
    own = certificate(past=True)
    found = over_tls(own, own)
    assert found.verdict == "fail"
    assert "renew" in found.remedy and "clock" in found.remedy


def test_plain_text_to_another_machine_is_told_although_it_was_allowed(mosquitto):
    """By what is written: 127.1 is this machine only for who looks it up."""
    for host, told in ((HOST, False), ("127.1", True)):
        settings = settings_for("device", mosquitto.url.replace(HOST, host), insecure=True)
        found = ask(settings, "device").get("broker_tls")
        assert (found is not None) is told
        assert found is None or (found.verdict == "warn" and "can read and change messages" in found.detail)


def test_tls_with_a_port_that_has_none(mosquitto, tmp_path):
    url = mosquitto.url.replace("mqtt:", "mqtts:")
    found = ask(settings_for("device", url), "device")["broker_tls"]
    assert found.verdict == "fail" and "8883" in found.remedy
    missing = ask(settings_for("device", url, ca_file=tmp_path / "ca.pem"), "device")["broker_tls"]
    assert missing.verdict == "fail" and "PEM" in missing.remedy
