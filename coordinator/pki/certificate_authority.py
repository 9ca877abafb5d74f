"""The CA of a fleet in a directory, and its operations: issue, renew, revoke.

    ca.key ca.crt ca.crl           the CA, and the list of revoked certificates
    index.json                     the authoritative record; with the CA's key, the rest can be made again from it
    broker/ coordinator/           a certificate and its key each
    devices/ID/ watchers/NAME/     the certificate alone: its key is only in the bundle, or on the device
    invitations/                   invited devices and their requests (invitations.py)

Everything is written with shared/app/files.py. A key is on the disk before its certificate, and the record before both.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from fedpatch.coordinator.pki.issued_certificates import (
    BROKER,
    CA_DAYS,
    COORDINATOR,
    DAYS,
    DEVICE,
    INDEX_NAME,
    PASSWORD,
    WATCHER,
    Entry,
    Index,
    must_read,
    read_index,
    write_index,
)
from fedpatch.coordinator.pki.x509 import (
    Issuer,
    Pair,
    Period,
    Subject,
    backdated,
    check_server_names,
    make_ca,
    make_crl,
    make_leaf,
    new_key,
    new_serial,
    public_key_of,
    read_crl,
    read_issuer,
    requested_key,
)
from fedpatch.shared.app.file_systems import remedy_of_mode
from fedpatch.shared.app.files import (
    OPEN_TO_OTHERS,
    read_state,
    refusals_of,
    remedy_to_read,
    remove_unfinished,
    write_atomic,
)
from fedpatch.shared.app.locks import FileLock
from fedpatch.shared.errors import StateError, UsageError
from fedpatch.shared.wire.topics import check_name

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

__all__ = ["BROKER", "CA_DAYS", "COORDINATOR", "DAYS", "DEVICE", "WATCHER", "Authority", "Issued"]

DAY_S = 86_400

KEY, CERTIFICATE, CRL, LOCK = "ca.key", "ca.crt", "ca.crl", "lock"
_HELD = "another command is changing this CA; try again when it is done"
_FOLDERS = {DEVICE: "devices", WATCHER: "watchers"}
_FILES = {BROKER: "broker"}


@dataclass(frozen=True)
class Issued:
    """The result of issuing: the entry in the record, the certificate and its key."""

    entry: Entry
    pair: Pair


class Authority:
    """A CA whose directory only this process may change, from `create` or `open` to `close`.

    `now` is unix time in seconds. UsageError: a certificate cannot be issued. StateError: the directory is damaged.
    """

    def __init__(self, directory: Path, lock: FileLock, index: Index, issuer: Issuer) -> None:
        self.directory = directory
        self.index = index
        self._lock = lock
        self._issuer = issuer

    @classmethod
    def create(cls, directory: Path, fleet: str, *, now: float, days: int = CA_DAYS) -> Self:
        """Create the CA of a fleet, or open the existing one.

        Args:
            now: Unix time, in seconds.
            days: Validity of the CA's own certificate.

        Returns:
            The CA, locked for this process.

        Raises:
            UsageError: The directory has the CA of another fleet.
        """
        check_name("fleet", fleet)
        with refusals_of(directory):
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = _locked(directory)
        try:
            index = read_index(directory)
            if index is None:
                if (directory / KEY).exists() or (directory / CERTIFICATE).exists():
                    raise StateError(f"{directory} has a CA but no {INDEX_NAME}; put that back from a backup")
                index = Index(fleet=fleet)
                write_index(directory, index)
            if index.fleet != fleet:
                remedy = "name that fleet, or another directory with --ca-dir"
                raise UsageError(f"{directory} is the CA of fleet {index.fleet!r}, not of {fleet!r}; {remedy}")
            if not index.entries and not (directory / CERTIFICATE).exists():
                _begin(directory, fleet, int(now), days)
            return cls._opened(directory, lock, index, now)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def open(cls, directory: Path, *, now: float) -> Self:
        """Open the CA in `directory`; UsageError where there is none."""
        must_read(directory)  # raises before a lock file is created
        lock = _locked(directory)
        try:
            return cls._opened(directory, lock, must_read(directory), now)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def _opened(cls, directory: Path, lock: FileLock, index: Index, now: float) -> Self:
        opened = cls(directory, lock, index, _read_issuer(directory))
        opened._finish(now)
        return opened

    def close(self) -> None:
        """Release the lock."""
        self._lock.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def fleet(self) -> str:
        """Name of the fleet."""
        return self.index.fleet

    @property
    def ends(self) -> int:
        """When the certificate of the CA expires, in unix seconds."""
        return self._issuer.ends

    @property
    def certificate(self) -> bytes:
        """The certificate of the CA, as PEM."""
        return self._issuer.pem()

    def issue(
        self, part: str, name: str, *, now: float, days: int = DAYS, names: Sequence[str] = (), key: bytes | None = None
    ) -> Issued:
        """Issue a certificate and write it to disk; older certificates stay valid.

        Args:
            part: Kind of holder, for example DEVICE.
            name: Name at the broker. A name belongs to one part only.
            now: Unix time, in seconds.
            names: Host names and addresses, for the broker only.
            key: Key as PEM; None: create one.

        Returns:
            The entry in the record, the certificate and its key.
        """
        check_server_names(names)
        self.check_free(part, name)
        key = key or new_key()
        entry, certificate = self._certify(part, name, public_key_of(key), now=now, days=days, names=names)
        self._keep(part, name, certificate, key)
        return Issued(entry, Pair(certificate, key))

    def certify(self, part: str, name: str, request: bytes, *, now: float, days: int = DAYS) -> bytes:
        """Issue a certificate for a key that its holder keeps; older certificates stay valid.

        Args:
            part: Kind of holder, for example DEVICE.
            name: Name at the broker, also where the request has another one.
            request: Certificate request (PKCS#10), as PEM.
            now: Unix time, in seconds.

        Returns:
            The certificate, as PEM.

        Raises:
            ValueError: The request cannot be used.
        """
        self.check_free(part, name)
        _, certificate = self._certify(part, name, requested_key(request), now=now, days=days)
        self._keep(part, name, certificate)
        return certificate

    def check_free(self, part: str, name: str) -> None:
        """Raise UsageError where a name cannot be of this part, as another part has it or it is no name."""
        if part != BROKER:
            check_name(part, name)
        others = {COORDINATOR, BROKER} - {part}
        taken = next((one.part for one in self.index.entries if one.name == name and one.part != part), None)
        taken = taken or (name if name in others else None)
        if taken:
            raise UsageError(f"{name!r} is the name of a {taken} at the broker; choose another for this {part}")

    def note_password(self, part: str, name: str) -> Entry:
        """Record that a user has a password; the password is not stored."""
        self.check_free(part, name)
        entry = Entry(serial=f"{self._new_serial():x}", part=part, name=name, kind=PASSWORD)
        self._note(self.index.with_entry(entry))
        return entry

    def revoke(self, part: str, name: str, *, now: float, reason: str = "", keep: str = "") -> tuple[Entry, ...]:
        """Revoke the entries of a holder. A second call changes nothing.

        Args:
            part: Kind of holder, for example DEVICE.
            now: Unix time, in seconds.
            reason: Kept in the record.
            keep: Serial number of an entry that stays valid.

        Returns:
            The entries that were valid until now.

        Raises:
            UsageError: Nothing was ever issued to the holder.
        """
        found = self.index.of(part, name)
        if not found:
            known = ", ".join(self.index.names(part)[:5]) or "none"
            raise UsageError(f"no {part} {name!r} was ever given a certificate or a password here (known: {known})")
        fresh = tuple(one for one in found if not one.revoked_at and one.serial != keep)
        if fresh:
            self._note(self.index.revoked([one.serial for one in fresh], int(now), reason))
            self.write_crl(now)
        return fresh

    def write_crl(self, now: float) -> Path:
        """Write the revocation list; brokers must reload it."""
        self._note(replace(self.index, crl_number=self.index.crl_number + 1))
        revoked = [
            (int(one.serial, 16), one.revoked_at)
            for one in self.index.entries
            if one.revoked_at and one.kind != PASSWORD
        ]
        self._write(self.directory / CRL, make_crl(self._issuer, self.index.crl_number, int(now), revoked), mode=0o644)
        return self.directory / CRL

    def renew(self, *, now: float, days: int = CA_DAYS) -> None:
        """Issue a new certificate for the CA's own key; issued certificates stay valid."""
        key = (self.directory / KEY).read_bytes()
        period = Period(backdated(now), int(now) + days * DAY_S)
        certificate = make_ca(self.fleet, key, self._new_serial(), period)
        self._write(self.directory / CERTIFICATE, certificate, mode=0o644)
        self._issuer = read_issuer(certificate, key)
        self.write_crl(now)

    def place(self, part: str, name: str) -> Path:
        """Return the directory of a holder's certificate."""
        return self.directory / _FOLDERS[part] / name if part in _FOLDERS else self.directory / part

    def _finish(self, now: float) -> None:
        """Complete the revocation list if a command was killed."""
        for one in (self.directory, self.directory / BROKER, self.directory / COORDINATOR):
            if one.is_dir():
                remove_unfinished(one)
        number = ends = -1
        with suppress(FileNotFoundError, ValueError):
            number, ends = read_crl(read_state(self.directory / CRL))
        if number > self.index.crl_number:
            raise StateError(
                f"{self.directory / INDEX_NAME}: is an older copy than {CRL}, so it may lack revocations; put the newest copy "
                f"back; without one, delete {CRL}, and revoke again each device that was revoked since; if the copy does not "
                "know such a device, make a new CA"
            )
        # A list that ends before the CA is older than `renew`; the list of an expired CA cannot last longer.
        if number < self.index.crl_number or number < 0 or (ends < self.ends and now < self.ends):
            self.write_crl(now)

    def _certify(
        self,
        part: str,
        name: str,
        key: EllipticCurvePublicKey,
        *,
        now: float,
        days: int,
        names: Sequence[str] = (),
    ) -> tuple[Entry, bytes]:
        """Record a certificate, then make it."""
        if now >= self.ends:
            raise UsageError(f"the CA of fleet {self.fleet!r} has expired; renew it with `fedpatch ca renew`")
        serial = self._new_serial()
        period = Period(backdated(now), min(int(now) + days * DAY_S, self.ends))
        entry = Entry(
            serial=f"{serial:x}", part=part, name=name, not_before=period.not_before, not_after=period.not_after
        )
        self._note(self.index.with_entry(entry))
        return entry, make_leaf(self._issuer, Subject(self.fleet, part, name), key, serial, period, names)

    def _new_serial(self) -> int:
        taken = self.index.serials()
        while f"{(serial := new_serial()):x}" in taken:
            pass
        return serial

    def _note(self, index: Index) -> None:
        write_index(self.directory, index)
        self.index = index

    def _keep(self, part: str, name: str, certificate: bytes, key: bytes = b"") -> None:
        stem = _FILES.get(part, "client")
        place = self.place(part, name)
        with refusals_of(place):
            place.mkdir(parents=True, exist_ok=True, mode=0o700)
        if part not in _FOLDERS:
            self._write(place / f"{stem}.key", key)
        self._write(place / f"{stem}.crt", certificate, mode=0o644)

    def _write(self, path: Path, data: bytes, mode: int = 0o600) -> None:
        with refusals_of(path):
            write_atomic(path, data, mode=mode)


def _begin(directory: Path, fleet: str, now: int, days: int) -> None:
    """Write the key, then the certificate. A key without a certificate, left by a killed command, is used."""
    path = directory / KEY
    with refusals_of(directory):
        if not path.exists():
            write_atomic(path, new_key())
        key = path.read_bytes()
        certificate = make_ca(fleet, key, new_serial(), Period(backdated(now), now + days * DAY_S))
        write_atomic(directory / CERTIFICATE, certificate, mode=0o644)


def _read_issuer(directory: Path) -> Issuer:
    path = directory / KEY
    try:
        if path.stat().st_mode & OPEN_TO_OTHERS:
            remedy = remedy_of_mode(path, f"chmod 600 {path}")
            raise UsageError(f"{path} is open to other users, who could make certificates with it; {remedy}")
        return read_issuer((directory / CERTIFICATE).read_bytes(), path.read_bytes())
    except OSError as error:
        # A coordinator's host has the record of revoked devices only: there, the key of the CA would stop the run.
        elsewhere = f"type this where the CA's {KEY} is (--ca-dir; with the playbooks the control host)"
        remedy = remedy_to_read(error, Path(error.filename), f"{elsewhere}, or put it back from a backup")
        raise StateError(f"{error.filename}: {error.strerror}; {remedy}") from error
    except ValueError as error:
        raise StateError(
            f"{directory}: {KEY} and {CERTIFICATE} are no CA ({error}); put them back from a backup"
        ) from None


def _locked(directory: Path) -> FileLock:
    with refusals_of(directory):
        return FileLock(directory / LOCK, _HELD)
