"""On disk, then acknowledged: the engine learns of an update, and answers `Committed`, once its file and row are synced.

A commit waits for the disk, for the names of the files and for the rows. So updates that are done together are committed
together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from fedpatch.coordinator.blobs.blob_store import BlobStore
from fedpatch.coordinator.rounds.run_effects import StoreUpdate
from fedpatch.coordinator.rounds.run_engine import Engine
from fedpatch.coordinator.rounds.run_events import UpdateRejected, UpdateStored
from fedpatch.coordinator.rounds.stored_update import StoredUpdate
from fedpatch.coordinator.runtime.device_counters import DeviceCounters
from fedpatch.coordinator.storage.run_registry import Registry
from fedpatch.coordinator.storage.update_files import sync_updates
from fedpatch.shared.errors import UpdateRefused
from fedpatch.shared.tensors.arrays import Array
from fedpatch.shared.wire.messages import UpdateReport
from fedpatch.shared.wire.reason_codes import RefuseReason

Checked = tuple[UpdateReport | None, dict[str, Array]]
"""Report and tensors of an update whose file is written; a masked update has neither."""


class UpdateCommits:
    """Commits groups of updates whose files are written.

    Args:
        blobs: Blob store of the run.
        registry: Receives a row for each update.
        engine: Has the open round.
        counters: Has the accepted devices that are written with rows of updates.
        keep: Takes the tensors of a device's committed update.
    """

    def __init__(
        self,
        blobs: BlobStore,
        registry: Registry,
        engine: Engine,
        counters: DeviceCounters,
        keep: Callable[[str, dict[str, Array]], None],
    ) -> None:
        self._blobs = blobs
        self._registry = registry
        self._engine = engine
        self._counters = counters
        self._keep = keep

    def commit(
        self, group: Sequence[tuple[StoreUpdate, Checked | UpdateRefused]]
    ) -> Iterator[UpdateStored | UpdateRejected]:
        """Commit updates with one wait for the disk; then yield the completion event of each, in their order."""
        rows = self._rows_of(group)
        others = self._sync(rows) if rows else {}
        written = {row.device for row in rows}
        for effect, checked in group:
            round_number, device, digest = effect.round, effect.device, effect.manifest.digest
            if isinstance(checked, UpdateRefused):
                yield UpdateRejected(round_number, device, digest, RefuseReason(checked.reason), str(checked))
            elif device in others:
                detail = f"{device} has already given {others[device][:12]} in round {round_number}"
                yield UpdateRejected(round_number, device, digest, RefuseReason.ALREADY_COMMITTED, detail)
            else:
                report, tensors = checked
                if device in written and tensors:
                    self._keep(device, tensors)
                yield UpdateStored(round_number, device, digest, report)

    def _rows_of(self, group: Sequence[tuple[StoreUpdate, Checked | UpdateRefused]]) -> list[StoredUpdate]:
        """Return the rows of the updates that count. Another update leaves no row: its device gets no `Committed`."""
        current = self._engine.open
        return [
            _row_of(effect, checked[0])
            for effect, checked in group
            if isinstance(checked, tuple) and current is not None and current.round.awaits(effect.device)
        ]

    def _sync(self, rows: Sequence[StoredUpdate]) -> dict[str, str]:
        """Write rows after the files are synced; return the digests of other updates that devices have given before."""
        for number in sorted({row.round for row in rows}):
            sync_updates(self._blobs, number)
        others = self._registry.rounds.add_updates(self._engine.spec.run, rows, self._counters.accepted)
        self._counters.accepted.clear()
        return others


def _row_of(effect: StoreUpdate, report: UpdateReport | None) -> StoredUpdate:
    manifest, examples = effect.manifest, 0 if report is None else report.num_examples
    return StoredUpdate(
        effect.base_round, effect.device, manifest.digest, manifest.raw_bytes, examples, manifest.encoding
    )
