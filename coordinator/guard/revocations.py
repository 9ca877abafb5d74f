"""Revocations: devices with a revoked certificate take no part in a run, even if the broker still admits them.

The CA's record is read again during a run, so that a revocation or a new enrolment takes effect.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from pathlib import Path

from fedpatch.coordinator.pki.issued_certificates import INDEX_NAME, Index, read_index
from fedpatch.shared.app.files import stamp_of
from fedpatch.shared.errors import StateError

_log = logging.getLogger("fedpatch.coordinator")


class Revocations:
    """The revoked devices of a fleet; none without a CA.

    A record that disappears or becomes unreadable during a run leaves the last known revocations in force.

    Args:
        directory: Directory of the CA.
        fleet: Name of the fleet.

    Attributes:
        revoked: Devices whose messages are refused.

    Raises:
        StateError: The record cannot be read at the start. A run without it would admit revoked devices.
    """

    def __init__(self, directory: Path, fleet: str) -> None:
        self._directory = directory
        self._file = directory / INDEX_NAME
        self._fleet = fleet
        # The stamp is taken before the record is read, so that a change in between is read at the next poll. It includes owner
        # and mode, since a change of those may make the record readable.
        self._stamp: tuple[int, ...] | None = stamp_of(self._file)
        self.index = self._read()
        self.revoked = self.index.revoked_devices()
        self._logged: set[str] = set()
        self._problem = ""

    def poll(self, members: Collection[str]) -> frozenset[str]:
        """Read the CA's record again if it has changed, and return the revoked devices; log those of `members` once."""
        if (stamp := stamp_of(self._file)) != self._stamp:
            self._stamp = stamp
            self._read_again()
        self._logged &= self.revoked
        for device in sorted(device for device in self.revoked - self._logged if device in members):
            self._logged.add(device)
            _log.warning("%s was revoked: it gets no more invitations, and its messages are refused", device)
        return frozenset(self.revoked)

    def _read_again(self) -> None:
        try:
            index = self._read()
        except StateError as error:
            self._stamp = None  # the next poll reads again: the cause may be this machine, such as too many open files
            if str(error) != self._problem:
                _log.warning("%s; earlier revocations stay in force", error)
            self._problem = str(error)
            return
        self._problem = ""
        if not index.entries and self.index.entries:
            _log.warning("%s has disappeared; earlier revocations stay in force", self._file)
            return
        self.index, self.revoked = index, index.revoked_devices()

    def _read(self) -> Index:
        index = read_index(self._directory)
        if index is not None and index.fleet != self._fleet:
            words = "%s is the CA of fleet %r, not of %r: its revocations are ignored"
            _log.warning(words, self._directory, index.fleet, self._fleet)
            index = None
        return index or Index(fleet=self._fleet)
