"""What a job downloads, on disk: one blob or several at a time, and nothing of any other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedpatch.device_agent.state.partial_blob import PartialBlob
from fedpatch.shared.app.files import refusals_of
from fedpatch.shared.wire.chunked_transfer import Chunk
from fedpatch.shared.wire.messages import Manifest


class Downloads:
    """The blobs of one download in `directory`, from which all else is deleted: cards are small.

    Raises StateError, here and in each method, when the disk refuses.
    """

    def __init__(self, directory: Path, blobs: Sequence[Manifest]) -> None:
        self._blobs: dict[str, PartialBlob] = {}
        wanted = {blob.digest for blob in blobs}
        with refusals_of(directory):
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            for found in directory.iterdir():
                if found.stem not in wanted:
                    found.unlink()
        try:
            for blob in blobs:
                self._blobs[blob.digest] = PartialBlob(directory, blob)
        except BaseException:
            self.close()
            raise

    @property
    def have(self) -> dict[str, frozenset[int]]:
        """The chunks that were here when it began, by the digest of their blob."""
        return {digest: blob.have for digest, blob in self._blobs.items()}

    def path(self, digest: str) -> Path:
        """Where a blob lies."""
        return self._blobs[digest].path

    def write(self, chunk: Chunk) -> None:
        """Puts a chunk of one of them in its place."""
        self._blobs[chunk.digest].write(chunk)

    def verified(self) -> bool:
        """Whether each of them has the SHA-256 that its name promises."""
        return all(blob.verified() for blob in self._blobs.values())

    def close(self) -> None:
        """Keeps the files for a later attempt."""
        for blob in self._blobs.values():
            blob.close()

    def discard(self) -> None:
        """Closes and deletes."""
        for blob in self._blobs.values():
            blob.discard()
