"""The update that waits for its commit, on disk: a device may be switched off before the coordinator commits it."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path

from fedpatch.device_agent.job.job_effects import JobKey
from fedpatch.device_agent.state.download_files import file_digest
from fedpatch.shared.app.files import (
    make_directory,
    refusals_of,
    remove_unfinished,
    seal,
    sync_directory,
    unseal,
    write_atomic,
)
from fedpatch.shared.errors import StateError, WireError
from fedpatch.shared.typed_values import learn_types
from fedpatch.shared.wire.codec import from_bytes, to_bytes
from fedpatch.shared.wire.messages import Manifest, WorkRequest

_log = logging.getLogger("fedpatch.agent")


UPDATE, VECTOR, NOTE, COMMITTED = "update.bin", "vector.bin", "offer.msgpack", "committed.msgpack"
_LINE = b"fedpatch offer 1\n"


@dataclass(frozen=True)
class Spooled:
    """Job and manifest of the update, and the request that it answers."""

    key: JobKey
    manifest: Manifest
    request: WorkRequest


learn_types(Spooled)


class UpdateSpool:
    """At most one update. Training writes it to `update_path`; it counts once `save` has noted it.

    In a masked round training first writes its vector to `vector_path`.

    Raises:
        StateError: The disk refused; here and in each method.
    """

    def __init__(self, directory: Path) -> None:
        with refusals_of(directory):
            make_directory(directory)
            remove_unfinished(directory)
        self.update_path = directory / UPDATE
        self.vector_path = directory / VECTOR
        self._note = directory / NOTE
        self._committed = directory / COMMITTED

    def save(self, spooled: Spooled) -> None:
        """Note the update; from now on it survives a restart. It has replaced a committed one that waited for its model."""
        with refusals_of(self._note):
            self._committed.unlink(missing_ok=True)
            write_atomic(self._note, seal(_LINE, to_bytes(spooled)))

    def note_committed(self) -> None:
        """Note that the update is committed and waits only for its personal model, also after a restart."""
        with refusals_of(self._note):
            os.replace(self._note, self._committed)
            sync_directory(self._note.parent)

    def load(self) -> Spooled | None:
        """Return the note of the waiting update; None without one. A damaged update is deleted with a warning."""
        return self._load(self._note)

    def committed(self) -> Spooled | None:
        """Return the note of a committed update whose personal model is not made yet; None without one."""
        with refusals_of(self._committed):
            return self._load(self._committed) if self._committed.exists() else None

    def committed_key(self) -> JobKey | None:
        """Return the job of a committed update, also if the update itself is damaged or missing; None without a note."""
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
        """Return the damage of an update in `directory` that waits for its commit or its personal model; "" for none.

        Nothing is changed.
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
        """Raise StateError if the update differs from `manifest`: the coordinator counts such bytes as an offence."""
        with refusals_of(self.update_path):
            if file_digest(self.update_path) == manifest.digest:
                return
        raise StateError(
            f"{self.update_path}: the update is no longer what training wrote (SHA-256 differs); it is dropped."
            " Check the card or disk"
        )

    def clear(self) -> None:
        """Delete update and notes."""
        with refusals_of(self._note):
            self._note.unlink(missing_ok=True)
            self._committed.unlink(missing_ok=True)
            self.update_path.unlink(missing_ok=True)
            self.vector_path.unlink(missing_ok=True)
            # A training process that was killed while it wrote has left half an update.
            remove_unfinished(self._note.parent)


class _DamagedNote(StateError):
    """The note of an update is damaged."""


def _read_note(path: Path) -> Spooled:
    """Read a note. WireError or _DamagedNote if it is damaged; OSError."""
    try:
        return from_bytes(bytes(unseal(path, _LINE, path.read_bytes(), "a note of an update")), Spooled)
    except StateError as error:
        raise _DamagedNote(str(error)) from error
