"""The folders of a run's leaders: each leader with standbys has one, and no other leader writes there.

    RUN/epoch-000007/checkpoint-000012.fp ...

A leader copies the folder of its predecessor into its own. Then it writes its epoch into the row of the run, which from then on
names the folder of the state. So no process reads an object that a former leader writes after it wakes up. The store need not
refuse such a write: not every S3 server supports conditional requests. A run that is resumed without standbys moves back to
`RUN/`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from fedpatch.coordinator.blobs.blob_store import BlobStore, open_blobs, run_blobs
from fedpatch.coordinator.blobs.epoch_folder import EPOCH, epoch_folder
from fedpatch.coordinator.storage.directory_guard import DirectoryGuard
from fedpatch.coordinator.storage.guarded_blobs import GuardedBlobs
from fedpatch.shared.app.store_waits import StoreWaits


@dataclass(frozen=True)
class BlobPlaces:
    """The places of a run's blobs, by epoch.

    Attributes:
        url: The setting `blobs`; None: the run's directory.
        directory: Directory of the run, which has the run's name.
        leader_epoch: Epoch of this process, if it leads a fleet with standbys.
        ending: The requests to stores that wait; set when the process shall end.
        guard: Watches the state directory: nothing is written once it is lost. None before the first round.
    """

    url: str | None
    directory: Path
    leader_epoch: int | None = None
    ending: StoreWaits | None = None
    guard: DirectoryGuard | None = None

    def own(self) -> BlobStore:
        """Return the store that this process reads and writes."""
        blobs = open_blobs(self.url, self.directory, self.leader_epoch, self.ending)
        return blobs if self.guard is None else GuardedBlobs(blobs, self.guard)

    def move_in(self, before: int) -> BlobStore:
        """Copy all blobs of a run into this process's store, without a change at the source; return the store.

        Args:
            before: Epoch of the run in the registry.

        Raises:
            StateError, StoreUnavailable: As the stores.
        """
        source, target = run_blobs({"blobs": self.url}, self.directory, before), self.own()
        if source.where() == target.where():
            return target

        def copy(key: str) -> None:
            blob = source.get(key)
            if blob is not None:  # None: a former leader has just deleted it
                target.put(key, blob)

        target.delete(*(name for name in target.list() if not name.startswith(EPOCH)))
        with ThreadPoolExecutor(max(1, target.concurrency), "fedpatch-move") as executor:
            for _ in executor.map(copy, list(keys_of(source))):
                pass
        return target

    def earlier(self, before: int) -> list[str]:
        """Return the names of the blobs of earlier leaders, except the previous leader's, which a reader may be reading.

        Call it before this process writes its epoch. That write fails if there is a later leader, so `drop` deletes no blob of
        a later leader, even if this process is paused and continues after it has lost the lead.

        Args:
            before: Epoch of the previous leader.
        """
        if self.leader_epoch is None:
            return []
        kept = {f"{epoch_folder(epoch)}/" for epoch in (before, self.leader_epoch)}
        return [name for name in self._root().list() if name not in kept]

    def drop(self, names: Sequence[str]) -> None:
        """Delete the blobs that `earlier` returned."""
        self._root().delete(*names)

    def _root(self) -> BlobStore:
        return open_blobs(self.url, self.directory, None, self.ending)


def keys_of(blobs: BlobStore, folder: str = "") -> Iterator[str]:
    """Yield the keys below a folder, without the folders of leaders."""
    for name in blobs.list(folder):
        key = f"{folder}/{name}".lstrip("/")
        if not name.endswith("/"):
            yield key
        elif not name.startswith(EPOCH):
            yield from keys_of(blobs, key.rstrip("/"))
