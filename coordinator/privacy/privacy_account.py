"""The privacy account of a run: how often each device's updates were released.

Its file, `privacy-book.fp`, is written before the checkpoint, so no release is missing in it. A round that a crash interrupted
counts once. A round that is repeated because its checkpoint is lost draws new noise and counts again. With standbys, the
database takes the record of a round before its model is published, and takes none from a former leader. So the next leader's
copy of the account has each published release.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import msgspec

from fedpatch.coordinator.blobs.blob_store import Place, blobs_at, read_sealed
from fedpatch.shared.app.files import seal
from fedpatch.shared.errors import StateError, StateUnreadable
from fedpatch.shared.typed_values import learn_types
from fedpatch.shared.wire.field_types import Count

ACCOUNT = "privacy-book.fp"
_ACCOUNT_LINE = b"fedpatch privacy book 1\n"


@dataclass(frozen=True)
class _Releases:
    """Content of the account: releases by device before the last draw, the devices of the last draw, the number of draws."""

    earlier: dict[str, Count] = field(default_factory=dict)
    digest: str = ""
    devices: tuple[str, ...] = ()
    releases: Count = 0


learn_types(_Releases)


class PrivacyAccount:
    """The coordinator's account of one run: in how many releases each device's updates are.

    Args:
        place: Blob store of the run, or its directory.
        known: Rounds or releases that are known without the account; with one or more, the account must exist.

    Raises:
        StateError: The account is damaged or lost, or the store refuses.
    """

    def __init__(self, place: Place, known: int = 0) -> None:
        self._blobs = blobs_at(place)
        self._releases = self._read(known)

    @property
    def most_used(self) -> int:
        """The number of releases of the device that is in most releases; 0 before the first."""
        return max(_totals(self._releases).values(), default=0)

    @property
    def all_releases(self) -> int:
        """The number of releases that the account counts."""
        return self._releases.releases

    def require(self, releases: int) -> None:
        """Raise StateError if the account counts fewer releases than a record of the run names, as an older copy does."""
        if self.all_releases < releases:
            raise StateError(
                f"{self._blobs.where(ACCOUNT)}: is an older copy, with {self.all_releases} of {releases} releases; restore the "
                "newest one, or start a new run: without it the epsilon of this run is unknown"
            )

    def most_used_with(self, digest: str, devices: Iterable[str]) -> int:
        """Return `most_used` as it would be after `note` with the same arguments."""
        return max(_totals(self._noted(digest, devices)).values(), default=0)

    def note(self, digest: str, devices: Iterable[str]) -> None:
        """Count a release durably, before it is made.

        Args:
            digest: Name of its draw. The same draw counts once, for the devices of all its attempts.
            devices: Devices whose updates are in it.
        """
        content = self._noted(digest, devices)
        if content != self._releases:
            self._blobs.put(ACCOUNT, seal(_ACCOUNT_LINE, msgspec.msgpack.encode(content)))
            self._releases = content

    def _noted(self, digest: str, devices: Iterable[str]) -> _Releases:
        if digest == self._releases.digest:
            return replace(self._releases, devices=tuple(sorted({*self._releases.devices, *devices})))
        return _Releases(_totals(self._releases), digest, tuple(sorted(devices)), self.all_releases + 1)

    def _read(self, known: int) -> _Releases:
        path = self._blobs.where(ACCOUNT)
        remedy = "restore it from a copy, or start a new run: without it the epsilon of this run is unknown"
        try:
            content = read_sealed(self._blobs, ACCOUNT, _ACCOUNT_LINE, "a privacy account")
            if content is not None:
                return msgspec.msgpack.decode(content, type=_Releases)
        except StateUnreadable:
            raise
        except (StateError, ValueError, RecursionError) as error:
            raise StateError(f"{path}: cannot be read ({error}); {remedy}") from error
        if known:
            raise StateError(f"{path}: is lost, and the run has released {known} models; {remedy}")
        return _Releases()


def _totals(content: _Releases) -> dict[str, int]:
    totals = dict(content.earlier)
    for device in content.devices:
        totals[device] = totals.get(device, 0) + 1
    return totals
