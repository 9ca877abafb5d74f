"""The downloads of a job, and chunks cut from a whole blob.

A download of at most `MEMORY_BYTES` is kept in memory: after a restart it is downloaded again, which costs less than writing
a card in each round. A larger one is on disk, and survives a restart.

Of a blob `d` on disk there are `d.part` (chunks at their places) and `d.have` (the indices written so far, four bytes each).
Damage by a power cut is detected by the SHA-256 of the whole blob; then the download starts over.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
from collections.abc import Sequence
from pathlib import Path

from fedpatch.device_agent.job.training_messages import Downloaded
from fedpatch.shared.app.files import refusals_of
from fedpatch.shared.wire.chunks import Chunk
from fedpatch.shared.wire.messages import Manifest

_INDEX = struct.Struct(">I")
MEMORY_BYTES = 2**20
"""Most bytes of all blobs of a download in memory."""


class PartialBlob:
    """The download of one blob into `directory`; `have` are the indices of its chunks on disk.

    Raises:
        StateError: The disk refused; here and in each method.
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
        # Only the notes that were read stay: notes after a torn one could never be read.
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

    @property
    def downloaded(self) -> Downloaded:
        """The blob as a command has it."""
        return Downloaded(str(self.path))

    def write(self, chunk: Chunk) -> None:
        """Write a chunk to its place, then note its index."""
        with refusals_of(self.path):
            _write(self._data, chunk.data, chunk.index * self._manifest.chunk_bytes)
            _write(self._index, _INDEX.pack(chunk.index), self._notes_end)
        self._notes_end += _INDEX.size

    def verified(self) -> bool:
        """Return whether the blob has the SHA-256 of its manifest."""
        with refusals_of(self.path):
            return file_digest(self.path) == self._manifest.digest

    def close(self) -> None:
        """Close, and keep the files for a later attempt."""
        descriptors = [fd for fd in (self._data, self._index) if fd >= 0]
        self._data = self._index = -1
        for fd in descriptors:
            with contextlib.suppress(OSError):  # the SHA-256 finds lost bytes
                os.close(fd)

    def discard(self) -> None:
        """Close and delete."""
        self.close()
        with refusals_of(self.path):
            self.path.unlink(missing_ok=True)
            self._have_path.unlink(missing_ok=True)


class MemoryBlob:
    """The download of one blob into memory."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._data = bytearray(manifest.size_bytes)
        self.have: frozenset[int] = frozenset()

    @property
    def downloaded(self) -> Downloaded:
        """The blob as a command has it."""
        return Downloaded(content=bytes(self._data))

    def write(self, chunk: Chunk) -> None:
        """Write a chunk to its place."""
        begin = chunk.index * self._manifest.chunk_bytes
        self._data[begin : begin + len(chunk.data)] = chunk.data
        self.have |= {chunk.index}

    def verified(self) -> bool:
        """Return whether the blob has the SHA-256 of its manifest."""
        return hashlib.sha256(self._data).hexdigest() == self._manifest.digest

    def close(self) -> None:
        """Keep the blob for a later attempt."""

    def discard(self) -> None:
        """Give the memory back."""
        self._data, self.have = bytearray(), frozenset()


def bytes_of(blob: Downloaded) -> bytes:
    """Return a downloaded blob; StateError where its file cannot be read."""
    if not blob.path:
        return blob.content
    with refusals_of(Path(blob.path)):
        return Path(blob.path).read_bytes()


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file in lower-case hex; the file is read in pieces. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cut_from_file(path: Path, manifest: Manifest, index: int) -> Chunk:
    """Read one chunk of a blob.

    Raises:
        StateError: The chunk cannot be read.
    """
    with refusals_of(path), path.open("rb") as file:
        file.seek(index * manifest.chunk_bytes)
        data = file.read(manifest.chunk_bytes)
    return Chunk(manifest.digest, index, manifest.chunk_count, data)


def _write(fd: int, data: bytes, offset: int) -> None:
    """Write all of `data`; raise OSError if a nearly full disk takes a part only."""
    while data:
        written = os.pwrite(fd, data, offset)
        data, offset = data[written:], offset + written


class Downloads:
    """The blobs of one download, and no others: memory and memory cards are small.

    Args:
        directory: For blobs on disk.
        blobs: The blobs.
        in_memory: The blobs that are kept in memory between downloads, by digest; None to have all on disk.

    Raises:
        StateError: The disk refused; here and in each method.
    """

    def __init__(
        self, directory: Path, blobs: Sequence[Manifest], in_memory: dict[str, MemoryBlob] | None = None
    ) -> None:
        self._blobs: dict[str, PartialBlob | MemoryBlob] = {}
        self._in_memory = {} if in_memory is None else in_memory
        wanted = {blob.digest for blob in blobs}
        for digest in self._in_memory.keys() - wanted:
            self._in_memory.pop(digest).discard()
        small = in_memory is not None and sum(blob.size_bytes for blob in blobs) <= MEMORY_BYTES
        with refusals_of(directory):
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            for found in directory.iterdir():
                if found.stem not in wanted:
                    found.unlink()
        try:
            for blob in blobs:
                self._blobs[blob.digest] = self._blob_in_memory(blob) if small else PartialBlob(directory, blob)
        except BaseException:
            self.close()
            raise

    def _blob_in_memory(self, blob: Manifest) -> MemoryBlob:
        if blob.digest not in self._in_memory:
            self._in_memory[blob.digest] = MemoryBlob(blob)
        return self._in_memory[blob.digest]

    @property
    def have(self) -> dict[str, frozenset[int]]:
        """The chunks that were there at the start, by the digest of their blob."""
        return {digest: blob.have for digest, blob in self._blobs.items()}

    def blob(self, digest: str) -> Downloaded:
        """Return a blob as a command has it."""
        return self._blobs[digest].downloaded

    def write(self, chunk: Chunk) -> None:
        """Write a chunk of one of the blobs to its place."""
        self._blobs[chunk.digest].write(chunk)

    def verified(self) -> bool:
        """Return whether each blob has the SHA-256 of its manifest."""
        return all(blob.verified() for blob in self._blobs.values())

    def close(self) -> None:
        """Close, and keep the files for a later attempt."""
        for blob in self._blobs.values():
            blob.close()

    def discard(self) -> None:
        """Close and delete."""
        for digest, blob in self._blobs.items():
            blob.discard()
            self._in_memory.pop(digest, None)
