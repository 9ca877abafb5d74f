"""Kills of a CA command at each of its writes: no serial number is issued twice, and no revocation is lost."""

from __future__ import annotations

import functools
import itertools
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography import x509

from fedpatch.coordinator.pki.certificate_authority import COORDINATOR, DEVICE, Authority
from fedpatch.coordinator.pki.invitations import InvitationStore, approve, invite
from fedpatch.coordinator.pki.issued_certificates import read_index
from fedpatch.shared.config.enrolment_word import CertificateGiven, decode_request, encode_request, keys_of
from tests.support.certificate_requests import certificate_request

NOW = 1_800_000_000
Kills = Callable[[Callable[[Authority], object], int], Iterator[tuple[Path, bool]]]


class Killed(BaseException):
    """Simulates kill -9: no handler catches it."""


def killed_at(monkeypatch: pytest.MonkeyPatch, write: int, *, after: bool, what: Callable[[], object]) -> bool:
    """Kill `what` at a write, counted from 0, before or after its rename; return whether it was killed before its end."""
    count = itertools.count()
    real = os.replace

    def replace(source: str, target: str) -> None:
        here = next(count) == write
        if here and not after:
            raise Killed
        real(source, target)
        if here:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("fedpatch.shared.app.files.os.replace", replace)
        try:
            what()
        except Killed:
            return True
    return False


def crl(directory: Path) -> set[str]:
    found = x509.load_pem_x509_crl((directory / "ca.crl").read_bytes())
    return {f"{one.serial_number:x}" for one in found}


@pytest.fixture(params=[False, True], ids=["before", "after"])
def kills(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Kills:
    """Run a command on a new CA with one issued certificate, once for each write, and kill it at this write."""

    def each_write(command: Callable[[Authority], object], at_least: int) -> Iterator[tuple[Path, bool]]:
        for write in itertools.count():
            place = tmp_path / str(write)
            with Authority.create(place, "kitchen", now=NOW, days=9) as authority:
                authority.issue(DEVICE, "pi-1", now=NOW)
                killed = killed_at(monkeypatch, write, after=request.param, what=functools.partial(command, authority))
            yield place, killed
            if not killed:
                assert write > at_least
                return

    return each_write


def test_recorded_revocation_reaches_the_list_after_a_kill(kills: Kills):
    for place, killed in kills(lambda authority: authority.revoke(DEVICE, "pi-1", now=NOW + 1), 2):
        with Authority.open(place, now=NOW + 2) as again:
            [serial] = again.index.serials()
            recorded = again.index.revoked_devices() == {"pi-1"}
            assert (serial in crl(place)) is recorded
            assert recorded or killed
            again.revoke(DEVICE, "pi-1", now=NOW + 3)
            assert serial in crl(place)


def test_every_certificate_on_disk_is_recorded_after_a_kill(kills: Kills):
    for place, _ in kills(lambda authority: authority.issue(COORDINATOR, "coordinator", now=NOW), 2):
        index = read_index(place)
        assert index is not None
        for path in place.glob("*/*.crt"):
            assert f"{x509.load_pem_x509_certificate(path.read_bytes()).serial_number:x}" in index.serials()
        with Authority.open(place, now=NOW + 2) as again:
            again.issue(COORDINATOR, "coordinator", now=NOW + 2)
            assert len(again.index.serials()) == len(again.index.entries)


def test_list_never_expires_before_its_ca_after_a_kill(kills: Kills):
    """Brokers with an expired list accept no client."""
    for place, _ in kills(lambda authority: authority.renew(now=NOW + 1), 1):
        with Authority.open(place, now=NOW + 2) as again:
            found = x509.load_pem_x509_crl((place / "ca.crl").read_bytes())
            assert found.next_update_utc is not None
            assert int(found.next_update_utc.timestamp()) == again.ends


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_ca_init_completes_a_killed_ca_init(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, after: bool):
    for write in itertools.count():
        place = tmp_path / str(write)

        def create(place: Path = place) -> None:
            Authority.create(place, "kitchen", now=NOW).close()

        killed = killed_at(monkeypatch, write, after=after, what=create)
        with Authority.create(place, "kitchen", now=NOW) as authority:
            authority.issue(DEVICE, "pi-1", now=NOW)
        assert crl(place) == set()
        if not killed:
            return


def test_approval_after_a_kill_gives_the_device_one_certificate(kills: Kills):
    request = certificate_request()

    def ask_and_approve(authority: Authority) -> None:
        keys = keys_of(invite(authority, "pi-2", now=NOW, broker="", days=9, hours=1))
        InvitationStore(authority.directory).take(decode_request(encode_request(keys, request)), "192.0.2.7", NOW)
        approve(authority, "pi-2", NOW)

    for place, killed in kills(ask_and_approve, 4):
        invitations = InvitationStore(place)
        [*asked] = (one for one in invitations.rows(NOW) if one.state in ("asks", "approved"))
        assert asked or killed
        with Authority.open(place, now=NOW + 2) as again:
            for one in asked:
                approve(again, one.device, NOW)
                sealed = invitations.answer(invitations.of("pi-2").name)
                assert sealed is not None
                given = CertificateGiven(**json.loads(sealed.answer))
                serial = x509.load_pem_x509_certificate(given.certificate.encode()).serial_number
                current = again.index.current(DEVICE, "pi-2")
                assert current is not None and current.serial == f"{serial:x}"
