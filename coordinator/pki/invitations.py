"""Invitations: a device asks for its certificate with a one-time word, and the operator approves.

    invitations/NAME.json       the device that was invited, and the keys of its word: as good as the word until it ends
    invitations/NAME.request    the first request that was made with the word
    invitations/NAME.answer     the certificate, once it is approved

Each file has one writer: the commands of the operator write `.json` and `.answer` under the CA's lock, `fedpatch ca serve`
writes `.request`. So the process that strangers can reach never opens the CA's key. NAME is derived from the word, so an
invitation that is made again shares no file with the former one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from fedpatch.coordinator.pki.certificate_authority import DEVICE, Authority
from fedpatch.coordinator.pki.enrolment import check_broker
from fedpatch.coordinator.pki.x509 import requested_key
from fedpatch.shared.app.files import read_state, refusals_of, write_atomic
from fedpatch.shared.config.enrolment_word import (
    ENDED,
    UNKNOWN,
    USED,
    WAITING,
    CertificateAsked,
    CertificateGiven,
    InvitationName,
    SealedAnswer,
    code_to_compare,
    digest_of,
    is_authentic,
    keys_of,
    new_word,
    seal_answer,
)
from fedpatch.shared.config.fields import Name
from fedpatch.shared.errors import DataError, StateError, UsageError
from fedpatch.shared.mqtt.broker_profile import fitting_profile
from fedpatch.shared.mqtt.url import parse_broker_url

DIRECTORY = "invitations"
INVITED, ASKS, APPROVED = "invited", "asks", "approved"
_INVITATION, _REQUEST, _ANSWER = ".json", ".request", ".answer"
_T = TypeVar("_T")
_Key = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]


@dataclass(frozen=True, kw_only=True)
class Invitation:
    """A device that was invited, until `ends` (unix seconds); its certificate will be valid for `days`."""

    name: InvitationName
    device: Name
    broker: str
    days: int
    ends: int
    request_key: _Key
    answer_key: _Key

    def __repr__(self) -> str:
        return f"Invitation of {self.device}"  # without its keys


@dataclass(frozen=True, kw_only=True)
class ReceivedRequest:
    """The first request with the word of an invitation: PKCS#10 as PEM, its sender's address, and its time (unix seconds)."""

    request: str
    address: str
    at: int


@dataclass(frozen=True, kw_only=True)
class RequestRow:
    """One line of `fedpatch device requests`; `code` is shown by the device too."""

    device: str
    state: str
    ends: int
    code: str = ""
    address: str = ""
    asked_at: int = 0


def invite(
    authority: Authority, device: str, *, now: float, broker: str, days: int, hours: int, renewal: bool = False
) -> str:
    """Invite a device, and end its earlier invitations.

    Args:
        now: Unix time, in seconds.
        broker: URL of the broker that the device will use; empty: its settings have it.
        days: Validity of the certificate.
        hours: Validity of the word.
        renewal: The device is enrolled already; its present certificate stays valid.

    Returns:
        The word, which is stored nowhere.

    Raises:
        UsageError: The device is enrolled already, or with `renewal` it is not; or the URL is wrong.
    """
    authority.check_free(DEVICE, device)
    if (authority.index.current(DEVICE, device) is not None) is not renewal:
        raise UsageError(
            f"{device!r} has nothing to renew; leave --renew out"
            if renewal
            else f"{device!r} is enrolled already; --renew invites it to ask for another certificate"
        )
    check_broker(broker, password=False)
    word = new_word()
    keys = keys_of(word)
    kept = InvitationStore(authority.directory)
    for former in list(kept.all()):
        if former.device == device or now >= former.ends:
            kept.end(former)
    kept.add(
        Invitation(
            name=keys.invitation,
            device=device,
            broker=broker,
            days=days,
            ends=int(now) + hours * 3600,
            request_key=keys.request.hex(),
            answer_key=keys.answer.hex(),
        )
    )
    return word


def approve(authority: Authority, device: str, now: float) -> str:
    """Issue the certificate for which a device has asked. A second call changes nothing.

    Args:
        now: Unix time, in seconds.

    Returns:
        The code of the request, to be compared with the device's.

    Raises:
        UsageError: The device has not asked, or its word has ended.
    """
    kept = InvitationStore(authority.directory)
    invitation = kept.of(device)
    received = kept.received(invitation.name)
    if received is None:
        raise UsageError(f"{device!r} was invited and has not asked yet; `fedpatch ca serve` takes its request")
    if kept.answer(invitation.name) is None:
        if now >= invitation.ends:
            raise UsageError(f"the word of {device!r} has ended; invite it again: fedpatch device invite {device}")
        kept.keep_answer(invitation, _answer(authority, invitation, received, now))
    return code_to_compare(received.request)


def _answer(authority: Authority, invitation: Invitation, received: ReceivedRequest, now: float) -> CertificateGiven:
    request, broker = received.request, invitation.broker
    certificate = authority.certify(DEVICE, invitation.device, request.encode(), now=now, days=invitation.days)
    return CertificateGiven(
        request=digest_of(request),
        fleet=authority.fleet,
        device=invitation.device,
        broker=broker,
        broker_profile=fitting_profile(parse_broker_url(broker).host) if broker else "",
        ca=authority.certificate.decode(),
        certificate=certificate.decode(),
    )


class InvitationStore:
    """The invitations in the directory of a CA.

    Raises StateError where a file is damaged or the disk refuses.
    """

    def __init__(self, ca_directory: Path) -> None:
        self.directory = ca_directory / DIRECTORY

    def add(self, invitation: Invitation) -> None:
        """Keep an invitation."""
        with refusals_of(self.directory):
            self.directory.mkdir(exist_ok=True, mode=0o700)
        self._write(invitation.name, _INVITATION, invitation)

    def all(self) -> Iterator[Invitation]:
        """Yield each invitation, also one that has ended."""
        for path in sorted(self.directory.glob(f"*{_INVITATION}")):
            if (found := self.named(path.stem)) is not None:
                yield found

    def named(self, name: str) -> Invitation | None:
        """Return the invitation of this name; None where there is none."""
        return self._read(name, _INVITATION, Invitation)

    def of(self, device: str) -> Invitation:
        """Return a device's invitation; UsageError where it has none."""
        found = next((one for one in self.all() if one.device == device), None)
        if found is None:
            raise UsageError(f"{device!r} is not invited; invite it first: fedpatch device invite {device}")
        return found

    def received(self, name: str) -> ReceivedRequest | None:
        """Return the request that was made with an invitation's word; None where none was made."""
        return self._read(name, _REQUEST, ReceivedRequest)

    def answer(self, name: str) -> SealedAnswer | None:
        """Return the answer to the request; None where it is not approved."""
        return self._read(name, _ANSWER, SealedAnswer)

    def keep_answer(self, invitation: Invitation, given: CertificateGiven) -> None:
        """Keep the answer for the device to fetch."""
        self._write(invitation.name, _ANSWER, seal_answer(given, invitation.name, bytes.fromhex(invitation.answer_key)))

    def end(self, invitation: Invitation) -> None:
        """Delete an invitation with its request and its answer."""
        with refusals_of(self.directory):
            for kind in (_INVITATION, _REQUEST, _ANSWER):
                self._path(invitation.name, kind).unlink(missing_ok=True)

    def end_of(self, device: str) -> bool:
        """Delete the invitation of a device, as `end` does; return whether it had one."""
        found = [one for one in self.all() if one.device == device]
        for one in found:
            self.end(one)
        return bool(found)

    def take(self, asked: CertificateAsked, address: str, now: float) -> SealedAnswer:
        """Return the reply to a request, which is kept if it is the first one with its word.

        Args:
            asked: The request; nothing authenticates it yet.
            address: Address of its sender.
            now: Unix time, in seconds.

        Raises:
            DataError: It has the word, but is no certificate request that the CA could use.
        """
        invitation = self.named(asked.invitation)
        if invitation is None or not is_authentic(asked, bytes.fromhex(invitation.request_key)):
            return SealedAnswer(state=UNKNOWN)
        if now >= invitation.ends:
            return SealedAnswer(state=ENDED)
        received = self.received(invitation.name)
        if received is None:
            received = self._keep_request(asked, address, now)
        if received.request != asked.request:
            return SealedAnswer(state=USED)
        return self.answer(invitation.name) or SealedAnswer(state=WAITING)

    def rows(self, now: float) -> list[RequestRow]:
        """Return the list for the operator, by device; `now` in unix seconds."""
        found = [self._row(one, now) for one in self.all()]
        return sorted(found, key=lambda one: one.device)

    def _row(self, invitation: Invitation, now: float) -> RequestRow:
        received = self.received(invitation.name)
        if received is None:
            state = ENDED if now >= invitation.ends else INVITED
            return RequestRow(device=invitation.device, state=state, ends=invitation.ends)
        approved = self.answer(invitation.name) is not None
        return RequestRow(
            device=invitation.device,
            state=APPROVED if approved else ENDED if now >= invitation.ends else ASKS,
            ends=invitation.ends,
            code=code_to_compare(received.request),
            address=received.address,
            asked_at=received.at,
        )

    def _keep_request(self, asked: CertificateAsked, address: str, now: float) -> ReceivedRequest:
        try:
            requested_key(asked.request.encode())
        except ValueError as error:
            raise DataError(f"the certificate request cannot be used ({error})") from None
        received = ReceivedRequest(request=asked.request, address=address, at=int(now))
        self._write(asked.invitation, _REQUEST, received)
        return received

    def _path(self, name: str, kind: str) -> Path:
        return self.directory / f"{name}{kind}"

    def _write(self, name: str, kind: str, value: object) -> None:
        path = self._path(name, kind)
        with refusals_of(path):
            write_atomic(path, msgspec.json.encode(value))

    def _read(self, name: str, kind: str, made_of: type[_T]) -> _T | None:
        path = self._path(name, kind)
        try:
            return msgspec.json.decode(read_state(path), type=made_of)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise StateError(f"{path}: damaged; delete it, and invite the device again") from None
