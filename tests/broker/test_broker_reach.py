"""Findings of `doctor` on the way to a broker: its name, its port, its certificate."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fedpatch.coordinator.pki.certificate_authority import BROKER
from fedpatch.shared.diagnostics import broker_reachability
from fedpatch.shared.diagnostics.broker_reachability import reach
from fedpatch.shared.diagnostics.checks import Checkup, Finding
from fedpatch.shared.mqtt.tls_context import TlsFiles
from fedpatch.shared.mqtt.url import BrokerUrl, parse_broker_url
from tests.support.brokers import HOST, Mosquitto, free_port
from tests.support.checkups import DEVICE, ask, quiet_checkup, settings_for, verdicts
from tests.support.identities import DAY_S, Certified, url_of

pytestmark = pytest.mark.broker


def test_port_without_listener_fails():
    found = ask(settings_for("device", f"mqtt://{HOST}:{free_port()}"), "device")
    assert verdicts(found) == {"broker_port": "fail", "broker_login": "skip"}
    assert "refuses connections" in found["broker_port"].detail and "start the broker" in found["broker_port"].remedy


def test_machine_without_ipv6_reports_the_fault_of_the_other_address(monkeypatch):
    """The name has an address of each kind."""
    port, make = free_port(), socket.socket

    def both(*_: object, **__: object) -> list[Any]:
        kinds = (socket.AF_INET6, "::1"), (socket.AF_INET, HOST), (socket.AF_INET6, "::1")
        return [(family, socket.SOCK_STREAM, 0, "", (address, port)) for family, address in kinds]

    def refuse_ipv6(family: int, *given: int) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(97, "Address family not supported by protocol")
        return make(family, *given)

    monkeypatch.setattr(socket, "getaddrinfo", both)
    monkeypatch.setattr(socket, "socket", refuse_ipv6)
    checkup = quiet_checkup()
    assert reach(parse_broker_url(f"mqtt://{HOST}:{port}"), TlsFiles(), checkup) is None
    assert "refuses connections" in next(one for one in checkup.findings if one.name == "broker_port").detail


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (socket.EAI_NONAME, "getent hosts no.such.host.invalid"),
        (socket.EAI_AGAIN, "no name server answers"),
        (None, "no name server answers"),
    ],
    ids=["unknown name", "no name server", "silent name server"],
)
def test_host_name_without_an_address_fails_with_the_remedy_of_its_cause(monkeypatch, code, remedy):
    """By a resolver of the test, since a machine without a network never learns that a name is unknown."""
    ended = threading.Event()

    def resolve(*_: object, **__: object) -> list[Any]:
        if code is None:
            ended.wait()
            return []
        raise socket.gaierror(code, "no address")

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    if code is None:
        monkeypatch.setattr(broker_reachability, "STEP_TIMEOUT_S", 0.01)
    found = ask(settings_for("device", "mqtt://no.such.host.invalid"), "device")
    ended.set()
    assert verdicts(found) == {"broker_name": "fail", "broker_login": "skip"}
    assert remedy in found["broker_name"].remedy


@pytest.mark.medium
def test_port_that_drops_connections_fails():
    """As behind a firewall: here the queue of a listener is full, so the kernel drops further connections."""
    with contextlib.ExitStack() as stack:
        deaf = stack.enter_context(socket.create_server((HOST, 0), backlog=0))
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(deaf.getsockname())
        found = ask(settings_for("device", f"mqtt://{HOST}:{deaf.getsockname()[1]}"), "device")
    assert verdicts(found) == {"broker_port": "fail", "broker_login": "skip"}
    assert "does not answer within 4 s" in found["broker_port"].detail and "firewall" in found["broker_port"].remedy


@pytest.mark.medium
def test_listener_that_never_answers_fails():
    with socket.create_server((HOST, 0)) as silent:
        found = ask(settings_for("device", f"mqtt://{HOST}:{silent.getsockname()[1]}"), "device", connect_s=6.0)
    assert verdicts(found) == {"broker_port": "ok", "broker_login": "fail"}
    assert "does not answer" in found["broker_login"].detail and "log" in found["broker_login"].remedy


def test_listener_that_is_silent_in_the_handshake_of_tls_fails_with_the_test_of_the_path(monkeypatch):
    """Behind a hole in the path MTU the certificate is the first that does not arrive."""
    monkeypatch.setattr(broker_reachability, "STEP_TIMEOUT_S", 0.2)
    with socket.create_server((HOST, 0)) as silent:
        found = ask(settings_for("device", f"mqtts://{HOST}:{silent.getsockname()[1]}"), "device")["broker_tls"]
    assert found.verdict == "fail" and f"`ping -M do -s 1400 {HOST}` must be answered" in found.remedy


def made(folder: Path, *, name: str = HOST, days: int = 25, age_days: int = 0) -> Certified:
    """A CA, and the certificate of a broker called `name`, valid for `days` and issued `age_days` ago."""
    house = Certified(folder)
    with house.open() as authority:
        authority.issue(BROKER, "broker", now=time.time() - age_days * DAY_S, days=days, names=[name])
    return house


def over_tls(house: Certified, ca_file: Path | None) -> Finding:
    """The finding about a broker with this certificate, for a device that trusts `ca_file`."""
    with Mosquitto(house.server) as broker:
        return ask(settings_for("device", url_of(broker), ca_file=ca_file), "device")["broker_tls"]


@pytest.mark.parametrize(("days", "verdict", "remedy"), [(25, "ok", ""), (20, "warn", "renew")])
def test_trusted_certificate_is_a_warning_three_weeks_before_its_end(tmp_path, days, verdict, remedy):
    house = made(tmp_path, days=days)
    found = over_tls(house, house.ca_file)
    assert found.verdict == verdict and remedy in found.remedy


def test_certificate_of_an_unknown_ca_fails_with_a_remedy_for_the_ca_file(tmp_path):
    own, strangers = made(tmp_path / "own"), made(tmp_path / "strangers").ca_file
    with_wrong, without = over_tls(own, strangers), over_tls(own, None)
    assert with_wrong.verdict == without.verdict == "fail"
    assert f"{strangers} holds another CA" in with_wrong.remedy
    assert "the system does not know its CA; give --ca-file" in without.remedy


@pytest.mark.parametrize(
    ("terms", "remedies"),
    [
        ({"name": "elsewhere.example"}, [f"make one with {HOST} among its names"]),
        ({"days": 1, "age_days": 5}, ["renew", "clock"]),
    ],
    ids=["another name", "expired"],
)
def test_certificate_for_another_name_or_expired_fails_with_its_remedy(tmp_path, terms, remedies):
    house = made(tmp_path, **terms)
    found = over_tls(house, house.ca_file)
    assert found.verdict == "fail" and all(remedy in found.remedy for remedy in remedies)


def test_plain_text_to_another_machine_is_a_warning_even_with_insecure(mosquitto):
    """The check reads the host as written: 127.1 is this machine only after a name lookup."""
    for host, expected in ((HOST, False), ("127.1", True)):
        settings = settings_for("device", mosquitto.url.replace(HOST, host), insecure=True)
        found = ask(settings, "device").get("broker_tls")
        assert (found is not None) is expected
        assert found is None or (found.verdict == "warn" and "can read and change messages" in found.detail)


def test_tls_to_a_plain_port_or_with_an_absent_ca_file_fails(mosquitto, tmp_path):
    url = mosquitto.url.replace("mqtt:", "mqtts:")
    found = ask(settings_for("device", url), "device")["broker_tls"]
    assert found.verdict == "fail" and "8883" in found.remedy
    missing = ask(settings_for("device", url, ca_file=tmp_path / "ca.pem"), "device")["broker_tls"]
    assert missing.verdict == "fail" and "correct --ca-file" in missing.remedy


def test_ca_file_in_der_form_fails_with_the_command_that_makes_a_pem_file(mosquitto, tmp_path: Path):
    house = made(tmp_path / "house")
    path = tmp_path / "my ca.der"
    path.write_bytes(ssl.PEM_cert_to_DER_cert(house.ca_file.read_text()))
    url = mosquitto.url.replace("mqtt:", "mqtts:")
    found = ask(settings_for("device", url, ca_file=path), "device")["broker_tls"]
    assert found.verdict == "fail" and f"openssl x509 -inform DER -in '{path}'" in found.remedy


@contextlib.contextmanager
def _server_of_tls_1_2(house: Certified, connections: int, ciphers: str = "DEFAULT") -> Iterator[BrokerUrl]:
    """A server that requires certificates of this CA. TLS 1.2 refuses a client in the handshake, TLS 1.3 after it."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=house.ca_file)
    context.maximum_version, context.verify_mode = ssl.TLSVersion.TLSv1_2, ssl.CERT_REQUIRED
    context.set_ciphers(ciphers)
    context.load_cert_chain(house.directory / "broker" / "broker.crt", house.directory / "broker" / "broker.key")

    def shake_hands() -> None:
        for _ in range(connections):
            with contextlib.suppress(OSError), listener.accept()[0] as plain:
                context.wrap_socket(plain, server_side=True).close()

    with socket.create_server((HOST, 0)) as listener:
        server = threading.Thread(target=shake_hands, daemon=True)
        server.start()
        yield BrokerUrl(HOST, listener.getsockname()[1], tls=True)
        server.join()


def test_broker_that_asks_for_a_certificate_within_the_handshake_is_checked_with_ours(tmp_path):
    house = Certified(tmp_path / "ca").make(DEVICE)
    checkup = quiet_checkup()
    with _server_of_tls_1_2(house, connections=2) as url:
        assert reach(url, house.files(DEVICE), checkup) is not None
    assert [(one.name, one.verdict) for one in checkup.findings] == [("broker_port", "ok"), ("broker_tls", "ok")]
    assert "TLSv1.2" in checkup.findings[1].detail


def test_broker_that_asks_for_a_certificate_within_the_handshake_fails_with_the_hint_to_enrol(tmp_path):
    house = Certified(tmp_path / "ca").make()
    checkup = quiet_checkup()
    with _server_of_tls_1_2(house, connections=1) as url:
        assert reach(url, TlsFiles(house.ca_file), checkup) is None
    found = checkup.findings[-1]
    assert (found.name, found.verdict) == ("broker_tls", "fail")
    assert "asks for a certificate, and we have none" in found.detail
    assert "enrol this device" in found.remedy


def test_broker_without_a_common_cipher_is_not_taken_for_a_port_without_tls(tmp_path: Path):
    """With TLS 1.2 its alert is that of a missing certificate, so that a client without one gets both remedies."""
    house = Certified(tmp_path / "ca").make(DEVICE)
    checkup = quiet_checkup()
    with _server_of_tls_1_2(house, connections=3, ciphers="AES128-SHA") as url:
        assert reach(url, TlsFiles(house.ca_file), checkup) is None
        assert reach(url, house.files(DEVICE), checkup) is None
    without, with_ours = [one for one in checkup.findings if one.name == "broker_tls"]
    assert (without.verdict, with_ours.verdict) == ("fail", "fail")
    assert "give the broker the default `ciphers`" in without.remedy
    assert "no cipher or key in common" in with_ours.remedy


class _Reset(Checkup):
    """A checkup whose broker resets the connection right after it has accepted it."""

    def __init__(self, server: socket.socket) -> None:
        super().__init__(lambda finding: None, lambda step: None)
        self._server = server

    def good(self, name: str, detail: str) -> None:
        """Reset the connection as soon as it is reported."""
        super().good(name, detail)
        if name == "broker_port":
            accepted, _ = self._server.accept()
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            accepted.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # ssl closes no socket that was reset
@pytest.mark.parametrize(("scheme", "found"), [("mqtt", "ok"), ("mqtts", "fail")])
def test_connection_that_is_reset_at_once_is_a_finding(scheme, found):
    """As by a proxy without a broker behind it."""
    with socket.create_server((HOST, 0)) as server:
        checkup = _Reset(server)
        reached = reach(parse_broker_url(f"{scheme}://{HOST}:{server.getsockname()[1]}"), TlsFiles(), checkup)
    last = checkup.findings[-1]
    assert (last.verdict, last.name) == (found, "broker_port" if found == "ok" else "broker_tls")
    assert (reached is None) == (found == "fail")
