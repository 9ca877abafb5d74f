"""The HTTP server of `fedpatch ca serve`, with clients that mean no good."""

from __future__ import annotations

import http.client
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from fedpatch.coordinator.pki.certificate_authority import Authority
from fedpatch.coordinator.pki.enrolment_server import EnrolmentServer
from fedpatch.coordinator.pki.invitations import InvitationStore
from fedpatch.shared.config.enrolment_word import (
    MAX_REQUEST_BYTES,
    PATH,
    decode_sealed,
    encode_request,
    keys_of,
    new_word,
)
from fedpatch.shared.errors import UsageError
from tests.support.certificate_requests import certificate_request
from tests.support.served_authority import ANYWHERE, ServedAuthority


class Full(list[str]):
    """Lines for the operator, of a program with a fault."""

    def append(self, line: str) -> None:
        raise ValueError(line)


@pytest.fixture
def served(memory_path: Path) -> Iterator[ServedAuthority]:
    with ServedAuthority(memory_path / "ca") as served:
        yield served


def test_device_waits_until_the_operator_approves_and_the_operator_is_told_once(served: ServedAuthority):
    word = served.invite("pi-1")
    body = encode_request(keys_of(word), certificate_request())
    assert [served.post(body) for _ in range(2)] == [202, 202]
    code = served.approve("pi-1")
    assert served.post(body) == 200 and decode_sealed(served.body).state == "issued"
    [line] = served.told
    assert line.endswith(f"pi-1 asks from 127.0.0.1 with the code {code}")
    assert served.post(encode_request(keys_of(word), certificate_request())) == 409


def test_right_word_is_taken_after_many_wrong_ones_from_its_address(served: ServedAuthority):
    right = encode_request(keys_of(served.invite("pi-1")), certificate_request())
    wrong = encode_request(keys_of(new_word()), certificate_request())
    assert {served.post(wrong) for _ in range(20)} == {403}
    assert served.post(right) == 202


@pytest.mark.parametrize(
    ("body", "path", "length"),
    [
        (b"", PATH, ""),
        (b"{}", PATH, ""),
        (b"", "/", ""),
        (b"", f"{PATH}/../ca.key", ""),
        (b"", PATH, str(MAX_REQUEST_BYTES + 1)),
        (b"", PATH, "0" * 5000),
        (b"", PATH, "-1"),
    ],
)
def test_request_that_is_none_is_refused(served: ServedAuthority, body: bytes, path: str, length: str):
    assert (served.post(body, path, length), served.body) == (400, b"")
    assert InvitationStore(served.directory).rows(time.time()) == [] and served.told == []


@pytest.mark.medium
def test_client_that_sends_nothing_is_cut_off_and_the_next_one_is_served(served: ServedAuthority):
    with socket.create_connection((served.server.address.host, served.server.address.port)) as silent:
        assert served.post(encode_request(keys_of(new_word()), certificate_request())) == 403
        assert silent.recv(1) == b""


def test_damaged_invitation_is_answered_with_503_and_stays_unanswered(served: ServedAuthority):
    body = encode_request(keys_of(served.invite("pi-1")), certificate_request())
    [path] = (served.directory / "invitations").glob("*.json")
    path.write_bytes(msgspec.json.encode({}))
    assert served.post(body) == 503


def test_fault_of_the_program_is_logged_and_the_next_request_is_answered(
    served: ServedAuthority, caplog: pytest.LogCaptureFixture
):
    body = encode_request(keys_of(served.invite("pi-1")), certificate_request())
    served.told = Full()
    with pytest.raises(http.client.RemoteDisconnected):
        served.post(body)
    assert [one.levelname for one in caplog.records if one.exc_info] == ["ERROR"]
    assert served.post(body) == 202


def test_client_that_disconnects_is_no_error(served: ServedAuthority, caplog: pytest.LogCaptureFixture):
    with socket.create_connection((served.server.address.host, served.server.address.port)) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closes with a reset
        client.sendall(b"POST /enrol HTTP/1.0\r\nContent-Length: 9\r\n\r\n")
    assert served.post(encode_request(keys_of(new_word()), certificate_request())) == 403
    assert not [one for one in caplog.records if one.levelname == "ERROR"]


def test_second_server_of_a_ca_is_refused(served: ServedAuthority):
    with pytest.raises(UsageError, match="another `fedpatch ca serve` serves this CA"):
        EnrolmentServer(ANYWHERE, served.directory, served.told.append)


def test_address_in_use_is_refused_with_the_option_that_names_another(served: ServedAuthority, memory_path: Path):
    Authority.create(memory_path / "other", "garden", now=time.time()).close()
    with pytest.raises(
        UsageError, match=r"127\.0\.0\.1:\d+: Address already in use; name another address with --listen"
    ):
        EnrolmentServer(served.server.address, memory_path / "other", served.told.append)
