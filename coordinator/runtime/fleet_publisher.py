"""The publisher of a fleet's models, and the file in which it notes the blobs that its broker retains."""

from __future__ import annotations

import hashlib
from pathlib import Path

from fedpatch.coordinator.blobs.blob_store import BlobStore
from fedpatch.coordinator.blobs.served_models import ServedModels
from fedpatch.coordinator.runtime.connection import Connection
from fedpatch.coordinator.runtime.model_publisher import BlobNote, FileNote, ModelPublisher
from fedpatch.coordinator.storage.directory_guard import DirectoryGuard


def make_publisher(
    fleet: str,
    state_dir: Path,
    connection: Connection,
    *,
    blobs: BlobStore | None = None,
    served: ServedModels | None = None,
    guard: DirectoryGuard | None = None,
) -> ModelPublisher:
    """Return the publisher of a fleet.

    Each broker has its own note file, so that the blobs that another broker retains are not forgotten.

    Args:
        state_dir: Directory of the note file.
        blobs: Blob store of the run, where a leader with standbys keeps the note.
        served: Store from which devices fetch models by URL.
        guard: Watches `state_dir`: the note is not written once it is lost.
    """
    broker = hashlib.sha256(str(connection.link.broker).encode()).hexdigest()[:8]
    name = f"published-{fleet}-{broker}.txt"
    file = FileNote(state_dir / name, guard.check) if guard is not None else state_dir / name
    return ModelPublisher(
        connection.link,
        fleet,
        BlobNote(blobs, name) if blobs is not None and connection.leader_epoch is not None else file,
        served=served,
        retain=connection.established.retain_available,
        clock=connection.ports.clock,
        sleep=connection.ports.sleep,
    )
