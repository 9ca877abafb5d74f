"""Blobs that are read before they are needed, while another one is processed."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor, Future

from fedpatch.coordinator.blobs.blob_store import BlobReader


class ReadAhead:
    """Reads blobs; while they are requested in the order of `keys`, the next blobs are read in advance.

    This shortens the wait for a store that answers several requests at once.

    Args:
        blobs: The store.
        keys: Keys in the order in which they are read.
        executor: Runs the requests; without it nothing is read ahead.
        most: Blobs that are read ahead, and so are in memory at once; 1: none.
    """

    def __init__(
        self, blobs: BlobReader, keys: Sequence[str] = (), executor: Executor | None = None, most: int = 1
    ) -> None:
        self._blobs = blobs
        self._keys = keys
        self._places = {key: place for place, key in enumerate(keys)}
        self._executor = executor
        self._most = most
        self._last = -1
        self._requests: dict[str, Future[bytes | None]] = {}

    def get(self, key: str) -> bytes | None:
        """Return a blob, and begin to read the following blobs."""
        place, before = self._places.get(key, -1), self._last
        self._last = place
        if self._executor is None or self._most < 2 or place not in (0, before + 1):
            return self._blobs.get(key)
        ahead = self._keys[place : place + self._most]
        for gone in self._requests.keys() - set(ahead):
            self._requests.pop(gone).cancel()
        for one in ahead:
            if one not in self._requests:
                self._requests[one] = self._executor.submit(self._blobs.get, one)
        return self._requests.pop(key).result()

    def where(self, key: str = "") -> str:
        """Return the place of a key, for messages."""
        return self._blobs.where(key)
