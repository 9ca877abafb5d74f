"""Keeps revoked devices out of a run, also where the broker still lets them in.

The record of the CA is looked at once a second: a revocation is heeded while the run goes on, and so is a device that was
enrolled again.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection
from pathlib import Path

from fedpatch.coordinator.pki.issued_certificates import INDEX_NAME, Index, read_index
from fedpatch.shared.app.files import stamp_of
from fedpatch.shared.errors import StateError

LOOK_EVERY_S = 1.0

_log = logging.getLogger("fedpatch.coordinator")


class Revocations:
    """Who may not pass, as the CA directory of `fleet` says; where there is no CA, everybody may.

    Raises StateError for a record that cannot be read: not to know who was revoked is no reason to let everybody in. One
    that becomes unreadable, or goes, while a run is at work leaves what was known.
    """

    def __init__(self, directory: Path, fleet: str) -> None:
        self._directory = directory
        self._file = directory / INDEX_NAME
        self._fleet = fleet
        # Before it is read: what is changed meanwhile is then read at the next look. A stamp has owner and mode, too: a change
        # of those may let us read it.
        self._stamp = stamp_of(self._file)
        self.index = self._read()
        self.revoked = self.index.revoked_devices()
        self._looked_at = -math.inf
        self._told: set[str] = set()

    def poll(self, members: Collection[str], now: float) -> frozenset[str] | None:
        """Read the CA's record again where it has changed.

        Args:
            members: The devices that the run has seen, of which a revocation is logged.
            now: The run's time, in seconds.

        Returns:
            The revoked devices, once in LOOK_EVERY_S; None in between.
        """
        if now < self._looked_at + LOOK_EVERY_S:
            return None
        self._looked_at = now
        if (stamp := stamp_of(self._file)) != self._stamp:
            self._stamp = stamp
            self._read_again()
        self._told &= self.revoked
        for device in sorted(device for device in self.revoked - self._told if device in members):
            self._told.add(device)
            _log.warning("%s was revoked: it is not asked any more, and its messages are refused", device)
        return frozenset(self.revoked)

    def is_revoked(self, device: str) -> bool:
        """Whether a message of this device must not be heeded."""
        return device in self.revoked

    def _read_again(self) -> None:
        try:
            index = self._read()
        except StateError as error:
            _log.warning("%s; what was revoked before stays so", error)
            return
        if not index.entries and self.index.entries:
            _log.warning("%s has gone; what was revoked before stays so", self._file)
            return
        self.index, self.revoked = index, index.revoked_devices()

    def _read(self) -> Index:
        index = read_index(self._directory)
        if index is not None and index.fleet != self._fleet:
            words = "%s is the CA of fleet %r, not of %r: what it revoked is not heeded"
            _log.warning(words, self._directory, index.fleet, self._fleet)
            index = None
        return index or Index(fleet=self._fleet)
