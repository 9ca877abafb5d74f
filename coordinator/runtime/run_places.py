"""The places of a run: its directory, its blobs, the lock of its fleet, and the guard of the state directory."""

from __future__ import annotations

from pathlib import Path

from fedpatch.coordinator.runtime.connection import Connection
from fedpatch.coordinator.settings import RunSettings
from fedpatch.coordinator.storage.blob_takeover import BlobPlaces
from fedpatch.coordinator.storage.database.transactions import in_use
from fedpatch.coordinator.storage.directory_guard import DirectoryGuard
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.coordinator.storage.state_dirs import fleet_lock_file, is_locked_here
from fedpatch.shared.app.files import check_state_directory, refusals_of
from fedpatch.shared.app.locks import FileLock
from fedpatch.shared.errors import UsageError


def run_directory(state_dir: Path, run: str) -> Path:
    """Return the directory of a run's checkpoints, updates and model."""
    return state_dir / "runs" / run


def fleet_lock(state_dir: Path, fleet: str) -> FileLock:
    """Lock a fleet in the state directory of its coordinator; raise UsageError if another process has the lock."""
    with refusals_of(state_dir):
        check_state_directory(state_dir)
        return FileLock(fleet_lock_file(state_dir, fleet), in_use(state_dir, fleet))


def require_free(state_dir: Path, fleet: str) -> None:
    """Raise UsageError if another process works with a fleet, before anything is said about its runs."""
    if is_locked_here(state_dir, fleet):  # where it cannot be read, the lock that is taken later raises the error
        raise UsageError(in_use(state_dir, fleet))


def blob_places(
    settings: RunSettings, run: str, connection: Connection, guard: DirectoryGuard | None = None
) -> BlobPlaces:
    """Return the places of a run's blobs.

    Args:
        connection: The connection of the coordinator, with the epoch of the leader.
        guard: With it nothing is written once the state directory is lost.
    """
    directory = run_directory(settings.state_dir.absolute(), run)
    return BlobPlaces(settings.blobs, directory, connection.leader_epoch, connection.event_queue.ending, guard)


def watch_state_directory(settings: RunSettings, run: str, registry: Registry) -> DirectoryGuard:
    """Watch the state directory; from now on the registry checks it before each change."""
    state_dir = settings.state_dir.absolute()
    lock = fleet_lock_file(state_dir, settings.fleet)  # in a new file a second coordinator would get the lock too
    guard = DirectoryGuard(state_dir, state_dir / REGISTRY_FILE, run_directory(state_dir, run), lock)
    registry.guard(guard.check)
    return guard
