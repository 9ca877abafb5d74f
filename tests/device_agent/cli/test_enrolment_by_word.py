"""`fedpatch-agent enrol --from`, against a real server and against servers that lie."""

from __future__ import annotations

import io
import os
import socketserver
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import msgspec
import pytest

from fedpatch.coordinator.pki.issued_certificates import must_read
from fedpatch.device_agent.cli import enrolment_by_word
from fedpatch.device_agent.cli.bundle_installation import Enrolled
from fedpatch.device_agent.cli.enrolment_by_word import enrol_by_word, server_address
from fedpatch.shared.config.enrolment_word import (
    SealedAnswer,
    decode_request,
    decode_sealed,
    encode_request,
    keys_of,
    new_word,
)
from fedpatch.shared.config.listen_address import Address, parse_address
from fedpatch.shared.errors import ConfigError, DataError, StateError, UsageError
from fedpatch.shared.mqtt.certificate import read_pem
from fedpatch.shared.mqtt.tls_context import TlsFiles, tls_context
from fedpatch.shared.mqtt.url import parse_broker_url
from tests.support.certificate_requests import certificate_request
from tests.support.other_users import NOBODY, open_directory
from tests.support.programs import Program
from tests.support.served_authority import ServedAuthority

BROKER = "mqtts://broker.lan"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enrolment_by_word, "_PAUSE_S", 0.02)


@pytest.fixture
def served(memory_path: Path) -> Iterator[ServedAuthority]:
    with ServedAuthority(memory_path / "ca") as served:
        yield served


class Device:
    """A device that enrols. Its `on` has a function for the beginning of a printed line; it is called with the line."""

    def __init__(self, directory: Path) -> None:
        self.config, self.state_dir = directory / "agent.toml", directory / "state"
        self.told: list[str] = []
        self.on: dict[str, Callable[[], object]] = {}

    def enrol(self, address: Address, word: str, *, replace: bool = False) -> Enrolled:
        return enrol_by_word(
            address, word, config=self.config, state_dir=self.state_dir, replace=replace, tell=self._tell
        )

    def _tell(self, line: str) -> None:
        self.told.append(line)
        for beginning, act in self.on.items():
            if beginning in line:
                act()

    @property
    def files(self) -> set[str]:
        return {path.name for path in (self.state_dir / "identity").iterdir()}


@pytest.fixture
def device(memory_path: Path) -> Device:
    return Device(memory_path)


@contextmanager
def lying(reply: Callable[[bytes], tuple[int, bytes]]) -> Iterator[Address]:
    """Serve the answers of `reply` to each request."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            status, body = reply(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with serving(Handler) as address:
        yield address


@contextmanager
def serving(handler: type[socketserver.BaseRequestHandler]) -> Iterator[Address]:
    """Serve each connection by `handler`."""
    with socketserver.TCPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield Address("127.0.0.1", server.server_address[1])
        finally:
            server.shutdown()
            thread.join()


def test_device_installs_the_approved_certificate_for_the_key_that_it_made(served: ServedAuthority, device: Device):
    codes: list[str] = []
    device.on["waiting for"] = lambda: codes.append(served.approve("pi-1"))
    done = device.enrol(served.address, served.invite("pi-1", BROKER))
    assert (done.device, done.fleet, done.broker) == ("pi-1", "kitchen", BROKER)
    assert device.told == [
        f"the code of this request is {codes[0]}; the operator's list has the same",
        "waiting for the operator's approval",
    ]
    settings = tomllib.loads(device.config.read_text())
    assert (settings["device_id"], settings["fleet"], settings["broker"]) == ("pi-1", "kitchen", BROKER)
    assert device.files == {"ca.crt", "client.pem"}
    own = Path(settings["cert_file"])
    assert (
        read_pem(own.read_bytes())[0].holder
        == read_pem((served.directory / "devices" / "pi-1" / "client.crt").read_bytes())[0].holder
    )
    assert tls_context(parse_broker_url(BROKER), TlsFiles(Path(settings["ca_file"]), own, own)) is not None
    assert "PRIVATE KEY" in own.read_text() and own.stat().st_mode & 0o777 == 0o600


def test_private_key_is_in_no_file_of_the_ca(served: ServedAuthority, device: Device):
    device.on["waiting for"] = lambda: served.approve("pi-1")
    device.enrol(served.address, served.invite("pi-1"))
    key = (device.state_dir / "identity" / "client.pem").read_text().partition("PRIVATE KEY")[2]
    assert len(key) > 100
    assert not [path for path in served.directory.rglob("*") if path.is_file() and key[:100] in path.read_text()]


def test_interrupted_device_asks_again_with_the_same_key_and_gets_its_certificate(
    served: ServedAuthority, device: Device
):
    def interrupt() -> None:
        raise KeyboardInterrupt

    word = served.invite("pi-1")
    device.on["waiting for"] = interrupt
    with pytest.raises(KeyboardInterrupt):
        device.enrol(served.address, word)
    assert device.files == {"request.pem"}
    assert (device.state_dir / "identity" / "request.pem").stat().st_mode & 0o777 == 0o600
    device.on.clear()
    served.approve("pi-1")
    assert device.enrol(served.address, word).device == "pi-1"
    assert len(served.told) == 1


def test_device_whose_answer_was_lost_gets_the_same_certificate(served: ServedAuthority, device: Device):
    word = served.invite("pi-1")
    device.config.write_text('device_id = "pi-2"\n')
    device.on["waiting for"] = lambda: served.approve("pi-1")
    with pytest.raises(UsageError, match=r"agent.toml says device_id = 'pi-2'.+--replace"):
        device.enrol(served.address, word)
    assert device.enrol(served.address, word, replace=True).device == "pi-1"
    assert len(must_read(served.directory).entries) == 1


def test_settings_that_cannot_be_changed_are_refused_before_the_word_is_used(served: ServedAuthority, device: Device):
    device.config.write_text("device_id = [")
    device.on["waiting for"] = lambda: served.approve("pi-1")
    with pytest.raises(ConfigError, match=r"agent\.toml: not TOML"):
        device.enrol(served.address, served.invite("pi-1"))
    assert served.told == []


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda served, word: new_word(), "no invitation there fits this word"),
        (
            lambda served, word: served.post(encode_request(keys_of(word), certificate_request())),
            "another request came first",
        ),
        (lambda served, word: _end(served), "the word has ended"),
    ],
    ids=["wrong", "used", "ended"],
)
def test_word_that_is_wrong_or_used_or_ended_gives_nothing_and_says_why(
    served: ServedAuthority, device: Device, spoil: Callable[[ServedAuthority, str], object], problem: str
):
    word = served.invite("pi-1")
    other = spoil(served, word)
    with pytest.raises(UsageError, match=problem):
        device.enrol(served.address, other if isinstance(other, str) else word)
    assert device.files == {"request.pem"} and not device.config.exists()


def _end(served: ServedAuthority) -> None:
    [path] = (served.directory / "invitations").glob("*.json")
    path.write_bytes(msgspec.json.encode({**msgspec.json.decode(path.read_bytes()), "ends": int(time.time())}))


def test_foreign_ca_that_does_not_know_the_word_is_not_installed(
    served: ServedAuthority, device: Device, memory_path: Path
):
    """The lying server has a CA of the same fleet, and approves each request that it gets, by a word of its own."""
    with ServedAuthority(memory_path / "foreign") as foreign:
        other = foreign.invite("pi-1", "mqtts://evil.example")

        def reply(data: bytes) -> tuple[int, bytes]:
            foreign.post(encode_request(keys_of(other), decode_request(data).request))
            foreign.approve("pi-1")
            return foreign.post(encode_request(keys_of(other), decode_request(data).request)), foreign.body

        with (
            lying(reply) as address,
            pytest.raises(DataError, match="does not know the word made or changed the answer"),
        ):
            device.enrol(address, served.invite("pi-1"))
    assert device.files == {"request.pem"} and not device.config.exists()


def test_answer_that_the_network_changes_is_not_installed(served: ServedAuthority, device: Device):
    def change(sealed: SealedAnswer) -> SealedAnswer:
        return replace(sealed, answer=sealed.answer.replace("broker.lan", "evil.example"))

    def reply(data: bytes) -> tuple[int, bytes]:
        status = served.post(data)
        return status, msgspec.json.encode(change(decode_sealed(served.body)))

    device.on["waiting for"] = lambda: served.approve("pi-1")
    with lying(reply) as address, pytest.raises(DataError, match="so nothing was installed"):
        device.enrol(address, served.invite("pi-1", BROKER))
    assert device.files == {"request.pem"} and not device.config.exists()


def test_request_that_the_network_changes_gets_no_certificate(served: ServedAuthority, device: Device):
    def reply(data: bytes) -> tuple[int, bytes]:
        changed = replace(decode_request(data), request=certificate_request())
        return served.post(msgspec.json.encode(changed)), served.body

    with lying(reply) as address, pytest.raises(UsageError, match="no invitation there fits this word"):
        device.enrol(address, served.invite("pi-1"))
    assert served.told == []


@pytest.mark.parametrize(
    "answer",
    [(404, b"<html>"), (503, b""), (302, b"{}"), (429, b'{"state": "later"}')],
    ids=["404", "503", "302", "429"],
)
def test_device_asks_on_while_another_server_or_a_failing_one_answers(
    served: ServedAuthority, device: Device, answer: tuple[int, bytes]
):
    word, answers = served.invite("pi-1"), [answer]

    def reply(data: bytes) -> tuple[int, bytes]:
        return answers.pop() if answers else (served.post(data), served.body)

    device.on["waiting for"] = lambda: served.approve("pi-1")
    with lying(reply) as address:
        assert device.enrol(address, word).device == "pi-1"
    assert len(device.told) == 3


def test_device_asks_on_until_the_server_is_there(served: ServedAuthority, device: Device, memory_path: Path):
    """The operator's machine may be off for hours."""
    with ServedAuthority(memory_path / "former") as former:
        address = former.address
    word, later = served.invite("pi-1"), []

    def begin() -> None:
        later.append(ServedAuthority(memory_path / "later", address=address))
        later[0].__enter__()

    device.on["does not answer"] = begin
    try:
        with pytest.raises(UsageError, match="no invitation there fits this word"):
            device.enrol(address, word)
    finally:
        later[0].__exit__()


def test_answer_that_is_no_http_controls_no_terminal(device: Device):
    """The status line of a stranger's server is printed on the terminal of root."""

    class Stranger(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(65_536)
            self.request.sendall(b"\x1b[2J\x9bred\x07\r\n\r\n")

    def interrupt() -> None:
        raise KeyboardInterrupt

    device.on["does not answer"] = interrupt
    with serving(Stranger) as address, pytest.raises(KeyboardInterrupt):
        device.enrol(address, new_word())
    assert "[2J" in device.told[-1] and device.told[-1].isprintable()


def test_damaged_file_of_the_request_is_named(served: ServedAuthority, device: Device):
    path = device.state_dir / "identity" / "request.pem"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"\xff")
    with pytest.raises(StateError, match=f"{path}: damaged; delete it"):
        device.enrol(served.address, new_word())


def test_address_has_the_usual_port_unless_it_names_one():
    assert server_address("hub.local") == Address("hub.local", 8885)
    assert server_address("hub.local:99") == parse_address("hub.local:99")
    assert server_address("[fd00::1]") == Address("fd00::1", 8885)
    assert server_address("[fd00::1]:99") == Address("fd00::1", 99)
    with pytest.raises(UsageError, match="is no HOST:PORT"):
        server_address("http://hub.local:8885")


def test_identity_that_root_asks_for_belongs_to_the_owner_of_the_state_directory(served: ServedAuthority):
    owners: set[int] = set()
    with open_directory() as directory:
        device = Device(directory)
        device.state_dir.mkdir(mode=0o700)
        os.chown(device.state_dir, NOBODY, NOBODY)
        place = device.state_dir / "identity"

        def approve() -> None:
            owners.update(one.stat().st_uid for one in (place, place / "request.pem"))
            served.approve("pi-1")

        device.on["waiting for"] = approve
        device.enrol(served.address, served.invite("pi-1"))
        owners.update(one.stat().st_uid for one in (place, *place.iterdir()))
        assert owners == {NOBODY} and os.geteuid() == 0


def test_root_reads_no_request_through_a_link_of_the_owner(served: ServedAuthority):
    with open_directory() as directory:
        device = Device(directory)
        secret, place = directory / "secret", device.state_dir / "identity"
        secret.write_text("root's")
        secret.chmod(0o600)
        place.mkdir(parents=True)
        (place / "request.pem").symlink_to(secret)
        for one in (device.state_dir, place):
            os.chown(one, NOBODY, NOBODY)
        with pytest.raises(StateError, match="Permission denied"):
            device.enrol(served.address, new_word())


def test_command_asks_for_the_word_and_says_what_is_missing_in_the_settings(
    agent: Program, served: ServedAuthority, memory_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(memory_path)
    word = served.invite("pi-1", BROKER)
    served_by = threading.Thread(target=_approve_when_asked, args=(served,))
    served_by.start()
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{word.upper()}\n"))
    done = agent("enrol", "--from", served.address)
    served_by.join()
    assert done.code == 0, done.err
    assert done.out.splitlines()[0] == "this device is pi-1 of fleet kitchen"
    assert "delete" not in done.out and 'data = "shard:0/10"' in done.out


def _approve_when_asked(served: ServedAuthority) -> None:
    give_up_at = time.monotonic() + 60
    while not served.told and time.monotonic() < give_up_at:
        time.sleep(0.02)
    served.approve("pi-1")


def test_command_without_a_bundle_and_without_a_server_or_with_both_is_refused(agent: Program, tmp_path: Path):
    for arguments in ((), (tmp_path / "pi-1.bundle", "--from", "hub.local")):
        done = agent("enrol", *arguments)
        assert done.code == 2 and "name the bundle of `fedpatch device add`, or with --from the host" in done.err
