"""Blobs on disk: a partly downloaded one that survives a restart, and chunks cut from a whole one.

Of a blob `d` there are `d.part` (chunks at their places) and `d.have` (the indices written so far, four bytes each).
What a power cut tears shows when the SHA-256 of the whole is checked; then the download starts over.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
from pathlib import Path

from fedpatch.shared.app.files import refusals_of
from fedpatch.shared.wire.chunked_transfer import Chunk
from fedpatch.shared.wire.messages import Manifest

_INDEX = struct.Struct(">I")


class PartialBlob:
    """The download of one blob into `directory`; `have` are the indices found from before.

    Raises StateError, here and in each method, when the disk refuses.
    """

    def __init__(self, directory: Path, manifest: Manifest) -> None:
        self._manifest = manifest
        self.path = directory / f"{manifest.digest}.part"
        self._have_path = directory / f"{manifest.digest}.have"
        self._data = self._index = -1
        with refusals_of(directory):
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.have = self._read_have()
            try:
                self._open()
            except OSError:
                self.close()
                raise

    def _open(self) -> None:
        self._data = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        self._index = os.open(self._have_path, os.O_WRONLY | os.O_CREAT, 0o600)
        os.truncate(self._data, self._manifest.size_bytes)
        # Only what was understood stays: notes written behind a torn one could never be read.
        os.truncate(self._index, 0)
        notes = b"".join(map(_INDEX.pack, sorted(self.have)))
        _write(self._index, notes, 0)
        self._notes_end = len(notes)

    def _read_have(self) -> frozenset[int]:
        if not self.path.exists() or not self._have_path.exists():
            return frozenset()
        data = self._have_path.read_bytes()
        whole = len(data) - len(data) % _INDEX.size
        return frozenset(i for (i,) in _INDEX.iter_unpack(data[:whole]) if i < self._manifest.chunk_count)

    def write(self, chunk: Chunk) -> None:
        """Puts a chunk in its place, then notes that it is there."""
        with refusals_of(self.path):
            _write(self._data, chunk.data, chunk.index * self._manifest.chunk_bytes)
            _write(self._index, _INDEX.pack(chunk.index), self._notes_end)
        self._notes_end += _INDEX.size

    def verified(self) -> bool:
        """Whether the whole has the SHA-256 that its name promises."""
        with refusals_of(self.path):
            return file_digest(self.path) == self._manifest.digest

    def close(self) -> None:
        """Keeps the files for a later attempt."""
        descriptors = [fd for fd in (self._data, self._index) if fd >= 0]
        self._data = self._index = -1
        for fd in descriptors:
            with contextlib.suppress(OSError):  # what it lost, the SHA-256 tells
                os.close(fd)

    def discard(self) -> None:
        """Closes and deletes."""
        self.close()
        with refusals_of(self.path):
            self.path.unlink(missing_ok=True)
            self._have_path.unlink(missing_ok=True)


def file_digest(path: Path) -> str:
    """SHA-256 of a file in lower-case hex, read in pieces. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cut_from_file(path: Path, manifest: Manifest, index: int) -> Chunk:
    """Chunk `index` of the blob in `path`, without reading the rest. StateError when it cannot be read."""
    with refusals_of(path), path.open("rb") as file:
        file.seek(index * manifest.chunk_bytes)
        data = file.read(manifest.chunk_bytes)
    return Chunk(manifest.digest, index, manifest.chunk_count, data)


def _write(fd: int, data: bytes, offset: int) -> None:
    """All of `data`, or OSError: a disk that is nearly full takes a part and complains only about the rest."""
    while data:
        written = os.pwrite(fd, data, offset)
        data, offset = data[written:], offset + written
