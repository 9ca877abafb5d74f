"""The record of a CA: issued certificates and passwords, and which of them are revoked.

A certificate is recorded before it is created, and a revocation before the list that brokers read. So even if a command is
killed, no serial number is used twice and no revocation is lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import msgspec

from fedpatch.coordinator.rounds.device_record import DeviceInfo
from fedpatch.shared.app.files import refusals_of, write_atomic
from fedpatch.shared.config.fields import Name
from fedpatch.shared.errors import StateError, UsageError

DEVICE, COORDINATOR, WATCHER, BROKER = "device", "coordinator", "watcher", "broker"
PASSWORD = "password"  # the word, not a password  # nosec B105

CA_DAYS, DAYS = 3650, 365  # default validity of the CA and of a certificate

_VERSION = 1
_Seconds = Annotated[int, msgspec.Meta(ge=0)]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """An issued certificate or password. Times are unix seconds; `revoked_at` is 0 unless it was revoked.

    `serial` is hexadecimal; the serial of a password is in this record only. A password does not expire (0).
    """

    serial: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{1,40}\Z")]
    part: str
    name: Name
    kind: str = "certificate"
    not_before: _Seconds = 0
    not_after: _Seconds = 0
    revoked_at: _Seconds = 0
    reason: Annotated[str, msgspec.Meta(max_length=200)] = ""

    def good(self, now: float) -> bool:
        """Return whether the entry is neither revoked nor expired."""
        return not self.revoked_at and (not self.not_after or now < self.not_after)


@dataclass(frozen=True, kw_only=True)
class Index:
    """All entries of a fleet, the oldest first. `crl_number` counts revocation lists."""

    fleet: Name
    version: int = _VERSION
    crl_number: _Seconds = 0
    entries: tuple[Entry, ...] = ()

    def of(self, part: str, name: str) -> tuple[Entry, ...]:
        """All entries of a holder, the oldest first."""
        return tuple(one for one in self.entries if (one.part, one.name) == (part, name))

    def current(self, part: str, name: str) -> Entry | None:
        """The newest entry that is not revoked."""
        return next((one for one in reversed(self.of(part, name)) if not one.revoked_at), None)

    def names(self, part: str) -> list[str]:
        """All holders of a part, sorted."""
        return sorted({one.name for one in self.entries if one.part == part})

    def serials(self) -> frozenset[str]:
        """All serial numbers in use."""
        return frozenset(one.serial for one in self.entries)

    def revoked_devices(self) -> frozenset[str]:
        """Devices whose entries are all revoked; a device that was rotated or enrolled again is not among them."""
        known = {one.name for one in self.entries if one.part == DEVICE}
        return frozenset(known - {one.name for one in self.entries if one.part == DEVICE and not one.revoked_at})

    def first_expiry(self, part: str) -> int | None:
        """The earliest expiry of a holder's newest valid certificate; None where there is none."""
        ends: dict[str, int] = {}
        for one in self.entries:
            if one.part == part and not one.revoked_at and one.not_after:
                ends[one.name] = max(one.not_after, ends.get(one.name, 0))
        return min(ends.values(), default=None)

    def with_entry(self, entry: Entry) -> Index:
        """Return the record with a new entry."""
        return replace(self, entries=(*self.entries, entry))

    def revoked(self, serials: Iterable[str], now: int, reason: str) -> Index:
        """Return the record with more certificates revoked; earlier revocations keep their time and reason.

        Args:
            now: Time of the revocation, in seconds since 1970.
            reason: Reason, kept in the record.
        """
        taken = frozenset(serials)
        entries = tuple(
            replace(one, revoked_at=max(now, 1), reason=reason) if one.serial in taken and not one.revoked_at else one
            for one in self.entries
        )
        return replace(self, entries=entries, crl_number=self.crl_number + 1)


def encode_index(index: Index) -> bytes:
    """Encode the record as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(index), indent=1) + b"\n"


def decode_index(data: bytes, place: object) -> Index:
    """Decode a record; StateError, naming `place`, where it is damaged or of another version."""
    remedy = "put it back from a backup: only it has the revocations"
    try:
        found = msgspec.json.decode(data, type=Index)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StateError(f"{place}: the record of a CA is damaged ({error}); {remedy}") from None
    if found.version != _VERSION:
        raise StateError(f"{place}: the record of a CA has version {found.version}, and this fedpatch knows {_VERSION}")
    if len(found.serials()) != len(found.entries):
        raise StateError(f"{place}: the record of a CA names a serial number twice; {remedy}")
    return found


INDEX_NAME = "index.json"
MAX_INDEX_BYTES = 256 * 2**20


def read_index(directory: Path) -> Index | None:
    """Read the record of a CA directory; None where there is no CA, StateError where it is damaged or unreadable."""
    path = directory / INDEX_NAME
    try:
        with path.open("rb") as file:
            data = file.read(MAX_INDEX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StateError(
            f"{path}: {error.strerror or error}; run fedpatch as the user whom the CA belongs to"
        ) from error
    if len(data) > MAX_INDEX_BYTES:
        raise StateError(f"{path}: the record of a CA is larger than {MAX_INDEX_BYTES} bytes")
    return decode_index(data, path)


def must_read(directory: Path) -> Index:
    """Read the record; UsageError where there is no CA."""
    index = read_index(directory)
    if index is None:
        raise UsageError(f"{directory}: no CA there; make one with `fedpatch ca init`, or name it with --ca-dir")
    return index


def write_index(directory: Path, index: Index) -> None:
    """Write the record durably."""
    with refusals_of(directory):
        write_atomic(directory / INDEX_NAME, encode_index(index))


def mark_revoked(devices: Iterable[DeviceInfo], directory: Path) -> list[DeviceInfo]:
    """Mark the devices that the CA has revoked: their last presence is no longer true, since the broker refuses them.

    Args:
        directory: Directory of the CA.

    Raises:
        StateError: The CA's record cannot be read.
    """
    index = read_index(directory)
    out = {(index.fleet, device) for device in index.revoked_devices()} if index is not None else set()
    return [replace(one, online=False, revoked=True) if (one.fleet, one.id) in out else one for one in devices]
