"""A blob store that writes nothing once the state directory of its run was deleted or replaced."""

from __future__ import annotations

from fedpatch.coordinator.blobs.blob_store import BlobStore
from fedpatch.coordinator.storage.directory_guard import DirectoryGuard


class GuardedBlobs:
    """The blobs of a run; each change raises StateDirectoryLost if the guard does, and changes nothing.

    Without the guard, a store in files would make the deleted directory again.

    Args:
        blobs: The store.
        guard: Watches the state directory.
    """

    def __init__(self, blobs: BlobStore, guard: DirectoryGuard) -> None:
        self._blobs = blobs
        self._guard = guard
        self.concurrency = blobs.concurrency

    def where(self, key: str = "") -> str:
        """Return the place of a key, or of the run."""
        return self._blobs.where(key)

    def check(self) -> None:
        """Raise StateDirectoryLost, or the error of the store."""
        self._guard.check()
        self._blobs.check()

    def put(self, key: str, *parts: bytes, durable: bool = True, durable_name: bool = True) -> None:
        """Store a blob.

        Args:
            durable: As for `BlobStore.put`.
            durable_name: As for `BlobStore.put`.
        """
        self._guard.check()
        self._blobs.put(key, *parts, durable=durable, durable_name=durable_name)

    def sync(self, folder: str) -> None:
        """Make the names in a folder durable."""
        self._guard.check()
        self._blobs.sync(folder)

    def get(self, key: str) -> bytes | None:
        """Return a blob; None if there is none."""
        return self._blobs.get(key)

    def list(self, folder: str = "") -> list[str]:
        """Return the names in a folder."""
        return self._blobs.list(folder)

    def delete(self, *keys: str) -> None:
        """Delete blobs."""
        self._guard.check()
        self._blobs.delete(*keys)
