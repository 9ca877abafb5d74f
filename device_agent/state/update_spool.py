"""The update that waits to be committed, on disk: a device may be switched off before the coordinator says `committed`."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from fedpatch.device_agent.job.job_effects import JobKey
from fedpatch.device_agent.state.partial_blob import file_digest
from fedpatch.shared.app.checksummed_file import seal, unseal
from fedpatch.shared.app.files import make_directory, refusals_of, remove_unfinished, sync_directory, write_atomic
from fedpatch.shared.errors import StateError, WireError
from fedpatch.shared.wire.codec import from_bytes, to_bytes
from fedpatch.shared.wire.messages import Manifest, WorkRequest

_log = logging.getLogger("fedpatch.agent")


UPDATE, NOTE, COMMITTED = "update.bin", "offer.msgpack", "committed.msgpack"
_LINE = b"fedpatch offer 1\n"


@dataclass(frozen=True)
class Spooled:
    """Which job the update belongs to, what it is, and the request that it answers (None: noted by an older version)."""

    key: JobKey
    manifest: Manifest
    request: WorkRequest | None = None


class UpdateSpool:
    """At most one update. `update_path` is where training writes it; it counts once `save` has noted it.

    Raises StateError, here and in each method, when the disk refuses.
    """

    def __init__(self, directory: Path) -> None:
        with refusals_of(directory):
            make_directory(directory)
            remove_unfinished(directory)
        self.update_path = directory / UPDATE
        self._note = directory / NOTE
        self._committed = directory / COMMITTED

    def save(self, spooled: Spooled) -> None:
        """From now on the update survives a restart."""
        with refusals_of(self._note):
            write_atomic(self._note, seal(_LINE, to_bytes(spooled)))

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

    def committed_key(self) -> JobKey | None:
        """The job of that update, also where the update itself is damaged or gone; None where there is no note of one."""
        try:
            with refusals_of(self._committed):
                return _read_note(self._committed).key if self._committed.exists() else None
        except (WireError, _DamagedNote):
            return None

    def _load(self, note: Path) -> Spooled | None:
        try:
            with refusals_of(note):
                if not (note.exists() and self.update_path.exists()):
                    self.clear()
                    return None
                spooled = _read_note(note)
                if file_digest(self.update_path) == spooled.manifest.digest:
                    return spooled
        except (WireError, _DamagedNote):
            pass
        _log.warning("%s: the update in the spool is damaged; dropped", self._note.parent)
        self.clear()
        return None

    @classmethod
    def problem(cls, directory: Path) -> str:
        """What is wrong with the update that waits in `directory`, to be committed or for its personal model; changes nothing.

        "" where nothing is, or none waits.
        """
        problems = (cls._problem(directory / note, directory / UPDATE) for note in (NOTE, COMMITTED))
        return next(filter(None, problems), "")

    @staticmethod
    def _problem(note: Path, update: Path) -> str:
        try:
            if file_digest(update) != _read_note(note).manifest.digest:
                return f"{update}: the update that waits is damaged (its SHA-256 does not fit)"
        except FileNotFoundError:
            return ""
        except (WireError, StateError) as error:
            return f"{note}: the note of the update that waits is damaged ({error})"
        except OSError as error:
            return f"{error.filename or note}: {error.strerror}"
        return ""

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


class _DamagedNote(StateError):
    """The note of an update is not what was written."""


def _read_note(path: Path) -> Spooled:
    """Raises WireError or _DamagedNote where it is damaged, OSError. Earlier versions wrote notes without a checksum."""
    data = path.read_bytes()
    if not data.startswith(_LINE[:8]):
        return from_bytes(data, Spooled)
    try:
        return from_bytes(bytes(unseal(path, _LINE, data, "a note of an update")), Spooled)
    except StateError as error:
        raise _DamagedNote(str(error)) from error
