"""The update that waits to be committed, on disk: a device may be switched off before the coordinator says `committed`."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from device_agent.effects import JobKey
from shared.blobs import file_digest
from shared.codec import from_bytes, to_bytes
from shared.errors import StateError, WireError
from shared.files import make_directory, refusals_of, remove_unfinished, sync_directory, write_atomic
from shared.messages import Manifest, WorkRequest

_log = logging.getLogger("fedpatch.agent")


@dataclass(frozen=True)
class Spooled:
    """Which job the update belongs to, what it is, and the request that it answers (None: noted by an older version)."""

    key: JobKey
    manifest: Manifest
    request: WorkRequest | None = None


class Spool:
    """At most one update. `update_path` is where training writes it; it counts once `save` has noted it.

    Raises StateError, here and in each method, when the disk refuses.
    """

    def __init__(self, directory: Path) -> None:
        with refusals_of(directory):
            make_directory(directory)
            remove_unfinished(directory)
        self.update_path = directory / "update.bin"
        self._note = directory / "offer.msgpack"
        self._committed = directory / "committed.msgpack"

    def save(self, spooled: Spooled) -> None:
        """From now on the update survives a restart."""
        with refusals_of(self._note):
            write_atomic(self._note, to_bytes(spooled))

    def note_committed(self) -> None:
        """From now on the update waits for nothing but its personal model, also after a restart."""
        with refusals_of(self._note):
            os.replace(self._note, self._committed)
            sync_directory(self._note.parent)

    def load(self) -> Spooled | None:
        """What waits, if anything does; an update that is damaged is dropped with a warning."""
        return self._load(self._note)

    def committed(self) -> Spooled | None:
        """The same for an update whose personal model is still to be made."""
        with refusals_of(self._committed):
            return self._load(self._committed) if self._committed.exists() else None

    def _load(self, note: Path) -> Spooled | None:
        try:
            with refusals_of(note):
                if not (note.exists() and self.update_path.exists()):
                    self.clear()
                    return None
                spooled = from_bytes(note.read_bytes(), Spooled)
                if file_digest(self.update_path) == spooled.manifest.digest:
                    return spooled
        except WireError:
            pass
        _log.warning("%s: the update in the spool is damaged; dropped", self._note.parent)
        self.clear()
        return None

    def check(self, manifest: Manifest) -> None:
        """Raises StateError where the update is not what `manifest` says: the coordinator takes such bytes for an offence."""
        with refusals_of(self.update_path):
            if file_digest(self.update_path) == manifest.digest:
                return
        raise StateError(
            f"{self.update_path}: the update is no longer what training wrote (SHA-256 differs); it is dropped."
            " Check the card or disk"
        )

    def clear(self) -> None:
        """Nothing waits any more."""
        with refusals_of(self._note):
            self._note.unlink(missing_ok=True)
            self._committed.unlink(missing_ok=True)
            self.update_path.unlink(missing_ok=True)
            # A training process that was killed while it wrote has left half an update.
            remove_unfinished(self._note.parent)
