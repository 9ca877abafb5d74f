"""A run that is ready for its rounds: its fleet is locked by this process, and its connection is open."""

from __future__ import annotations

from dataclasses import dataclass

from fedpatch.coordinator.blobs.blob_store import BlobStore
from fedpatch.coordinator.observability.status_message import View
from fedpatch.coordinator.rounds.run_spec import RunSpec
from fedpatch.coordinator.runtime.connection import Connection
from fedpatch.coordinator.runtime.run_places import blob_places
from fedpatch.coordinator.runtime.run_preparation import Prepared
from fedpatch.coordinator.settings import RunSettings
from fedpatch.coordinator.storage.directory_guard import DirectoryGuard
from fedpatch.coordinator.storage.run_registry import Registry


@dataclass(frozen=True)
class ConnectedRun:
    """A run in one epoch.

    Attributes:
        spec: The terms of the run.
        settings: The settings that they follow from.
        prepared: Model, policy and plan.
        registry: The registry, open.
        connection: The connection to the broker, open.
        view: Shows progress and messages.
    """

    spec: RunSpec
    settings: RunSettings
    prepared: Prepared
    registry: Registry
    connection: Connection
    view: View

    def blobs(self, guard: DirectoryGuard) -> BlobStore:
        """Return the run's store, to which nothing is written once the directory of `guard` is lost."""
        return blob_places(self.settings, self.spec.run, self.connection, guard).own()
