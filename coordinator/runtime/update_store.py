"""The updates of the open round: checked, written to the disk, and kept decoded while there is room.

Checking and writing release Python's lock for long. So threads do both, and the coordinator's thread serves other devices
meanwhile. The coordinator's thread takes the results in the order in which the updates arrived. It waits for them wherever the
order of messages would otherwise differ from sequential work.

While other events wait, written updates are collected, and GROUP of them are committed together (`commit_updates`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor

from fedpatch.coordinator.aggregation.masked_mean import (
    check_masked_update,
    check_site_sum,
    round_layout,
    vector_layout,
)
from fedpatch.coordinator.aggregation.received_update_checks import UpdateRequirements, decode_and_validate_update
from fedpatch.coordinator.blobs.blob_store import BlobStore
from fedpatch.coordinator.buffered.carried_work import CarriedWork
from fedpatch.coordinator.rounds.round_journal import RoundJournal
from fedpatch.coordinator.rounds.round_record_builder import without_figures
from fedpatch.coordinator.rounds.run_effects import AggregateUpdates, SaveGroupSteps, SaveRecord, StoreUpdate
from fedpatch.coordinator.rounds.run_engine import Engine
from fedpatch.coordinator.rounds.run_events import UpdateRejected, UpdateStored
from fedpatch.coordinator.rounds.stored_update import StoredUpdate
from fedpatch.coordinator.runtime.commit_updates import Checked, UpdateCommits
from fedpatch.coordinator.runtime.decoded_cache import MOST_BYTES, DecodedCache
from fedpatch.coordinator.runtime.device_counters import DeviceCounters
from fedpatch.coordinator.runtime.read_ahead import ReadAhead
from fedpatch.coordinator.runtime.update_writer import IN_PROGRESS_BYTES, MAX_IN_PROGRESS, UpdateWriter
from fedpatch.coordinator.storage.boot_clock import BootTime
from fedpatch.coordinator.storage.run_registry import Registry
from fedpatch.coordinator.storage.update_files import (
    drop_round,
    drop_updates,
    kept_rounds,
    load_update,
    store_update,
    update_key,
)
from fedpatch.shared.errors import UpdateRefused
from fedpatch.shared.masking.group_sum import GroupSum
from fedpatch.shared.masking.masked_blob import MaskedUpdate, read_masked_blob
from fedpatch.shared.masking.site_sum import read_site_sum
from fedpatch.shared.tensors.arrays import Array
from fedpatch.shared.wire.masking_messages import SecureTerms

THREADS = 2


GROUP = 8
"""Updates that are committed together while events wait."""


class UpdateStore:
    """Owns the open round on the disk: its journal, updates and record.

    Args:
        blobs: Blob store of the run.
        registry: Receives a row for each update.
        engine: Has the open round and the examples that each device registered.
        requirements: Returns the requirements of an update of the open round, or of an update from carried work.
        counters: Has the accepted devices that are written with rows of updates.
        executor: Runs the checks and writes; None: the caller's thread does.
        wake: Called in any thread when an update is checked and written, at most once before the next `completed`.
        events_waiting: Returns the number of events in the queue.
        most_bytes: Bytes of decoded updates that are kept in memory.
    """

    def __init__(  # noqa: PLR0913 - one keyword per part of the process
        self,
        blobs: BlobStore,
        registry: Registry,
        engine: Engine,
        *,
        requirements: Callable[[CarriedWork | None], UpdateRequirements],
        counters: DeviceCounters,
        executor: Executor | None = None,
        wake: Callable[[], None] = lambda: None,
        events_waiting: Callable[[], int] = lambda: 0,
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._blobs = blobs
        self._registry = registry
        self._engine = engine
        self._run = engine.spec.run
        self._requirements = requirements
        self._counters = counters
        self._decoded = DecodedCache(most_bytes)
        self._commits = UpdateCommits(blobs, registry, engine, counters, self._decoded.keep)
        self._wake = wake
        self._woken = False
        self._executor = executor
        self._ahead = ReadAhead(blobs)
        self._events_waiting = events_waiting
        self._writer: UpdateWriter[Checked | UpdateRefused] = UpdateWriter(self._write, self._wake_once, executor)

    def open_round(self, journal: RoundJournal, now: BootTime) -> None:
        """Write the journal of a round that begins or is resumed `now`."""
        self._counters.accepted.clear()
        self._counters.departed.clear()
        self._registry.rounds.open(self._run, journal, now)

    def pause_round(self, spent_s: float) -> None:
        """Write the seconds of its deadline that the open round has spent."""
        self._registry.rounds.pause(self._run, spent_s)

    def store(self, effect: StoreUpdate) -> Iterator[UpdateStored | UpdateRejected]:
        """Begin to check and write an update; yield completion events of this and other updates that are done."""
        most = min(MAX_IN_PROGRESS, max(1, IN_PROGRESS_BYTES // max(1, effect.manifest.raw_bytes)))
        if self._writer.in_progress >= most:
            yield from self.completed(most - 1)
        self._writer.submit(effect)
        yield from self.completed()

    def completed(self, most_left: int = MAX_IN_PROGRESS) -> Iterator[UpdateStored | UpdateRejected]:
        """Yield completion events of updates that are done; wait until at most `most_left` are in progress.

        If no wait is needed, no event is yielded while other events are queued and fewer than GROUP updates are done.
        """
        waiting = self._writer.in_progress
        if most_left >= waiting and self._events_waiting() and (waiting < GROUP or self._writer.done < GROUP):
            return
        self._woken = False
        current = self._engine.open
        number = None if current is None else current.round.number
        group = [one for one in self._writer.completed(most_left) if one[0].round == number]
        yield from self._commits.commit(group)

    def _wake_once(self) -> None:
        if not self._woken:
            self._woken = True
            self._wake()

    def holds(self, device: str) -> bool:
        """Return whether an update of `device` is in progress."""
        return self._writer.holds(device)

    def close_round(self, effect: AggregateUpdates) -> dict[str, StoredUpdate]:
        """Wait for updates in progress, which no longer count; return the updates that count, by device."""
        self._writer.discard()
        self._registry.rounds.close(self._run, effect.devices)
        committed = self._registry.rounds.committed(self._run, effect.round, effect.carried)
        wanted = [one for one in committed if self._decoded.of(one.device) is None]
        largest = max((one.raw_bytes for one in wanted), default=1)
        most = min(self._blobs.concurrency, max(1, IN_PROGRESS_BYTES // max(1, largest)))
        keys = {one.device: update_key(one.round, one.device) for one in wanted}
        order = [*(device for group in effect.groups for device in group.devices), *effect.sums] or sorted(keys)
        ahead = [keys[device] for device in order if device in keys]
        self._ahead = ReadAhead(self._blobs, ahead, self._executor, most)
        return {update.device: update for update in committed}

    def read(self, update: StoredUpdate, work: CarriedWork | None = None) -> Mapping[str, Array]:
        """Return the tensors of a committed update, from memory or from the disk; `work` is its carried work, if any."""
        if (known := self._decoded.of(update.device)) is not None:
            return known
        blob = load_update(self._ahead, update.round, update.device)
        return decode_and_validate_update(
            blob, self._requirements(work), encoding=update.encoding, raw_bytes=update.raw_bytes
        )[1]

    def read_masked(self, update: StoredUpdate, terms: SecureTerms) -> MaskedUpdate:
        """Return a committed masked update; its form was checked before it was stored."""
        blob = load_update(self._ahead, update.round, update.device)
        layout = round_layout(self._requirements(None).schema, terms, self._engine.spec.privacy)
        return read_masked_blob(blob, layout)

    def read_site_sum(self, update: StoredUpdate, terms: SecureTerms) -> GroupSum:
        """Return the committed sum of a site; it was checked before it was stored."""
        blob = load_update(self._ahead, update.round, update.device)
        needed = self._requirements(None)
        return read_site_sum(vector_layout(needed.schema, terms), blob, raw_bytes=update.raw_bytes, base=needed.base)

    def save_masking(self, effect: SaveGroupSteps) -> None:
        """Write steps of the groups of the open round."""
        # Once the groups are drawn, the next process asks no other device, so it would not learn who has left the count.
        self._counters.save_departed()
        self._registry.rounds.save_masking(self._run, effect.round, effect.entries)

    def finish_round(self, effect: SaveRecord) -> None:
        """Write the record of a round, whose model is saved; its files are deleted later."""
        number, carried = effect.record.round, effect.carried
        used = self._registry.rounds.committed(self._run, number, self._registry.rounds.carried(self._run))
        self._registry.rounds.finish(self._run, effect.record, carried)
        self._writer.discard()
        self._decoded.clear()
        self._ahead = ReadAhead(self._blobs)
        if self._engine.spec.carry is None:
            self._writer.run_later(lambda: drop_round(self._blobs, number))
            return
        # Devices with carried work may write into the folder of their round at any time, so only single files are deleted.
        waits = {(work.round, device) for device, work in carried.items()}
        gone = [(one.round, one.device) for one in used if (one.round, one.device) not in waits]
        unused = set(kept_rounds(self._blobs)) - {work.round for work in carried.values()}
        self._writer.run_later(lambda: self._drop(gone, unused))

    def _drop(self, gone: Sequence[tuple[int, str]], unused: Collection[int]) -> None:
        drop_updates(self._blobs, gone)
        for number in sorted(unused):
            drop_round(self._blobs, number)

    def _write(self, effect: StoreUpdate) -> Checked | UpdateRefused:
        """Check an update, then write its file."""
        manifest = effect.manifest
        try:
            checked = self._check(effect)
            store_update(self._blobs, effect.base_round, effect.device, effect.blob, manifest.digest)
        except UpdateRefused as error:
            return error
        return checked

    def _check(self, effect: StoreUpdate) -> Checked:
        manifest, terms = effect.manifest, self._requirements(effect.work)
        if effect.masked is None:
            registered = self._engine.fleet.registered(effect.device)
            report, tensors = decode_and_validate_update(
                effect.blob,
                terms,
                encoding=manifest.encoding,
                raw_bytes=manifest.raw_bytes,
                registered=registered,
                members=self._engine.fleet.members_of(effect.device),
            )
            return (report if self._engine.spec.privacy is None else without_figures(report)), tensors
        if not effect.masked.context:
            site = vector_layout(terms.schema, effect.masked.terms)
            total = read_site_sum(site, effect.blob, raw_bytes=manifest.raw_bytes, base=terms.base)
            registered = self._engine.fleet.members_of(effect.device)
            most = terms.limits.max_members
            check_site_sum(total, site, registered=registered, most=most, metric=terms.metric)
            return None, {}
        layout = round_layout(terms.schema, effect.masked.terms, self._engine.spec.privacy)
        check_masked_update(effect.blob, layout, context=effect.masked.context, base=terms.base)
        return None, {}
