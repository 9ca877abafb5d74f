"""Performs what the engine decides: messages and the model to the broker, updates to the disk, the mean to the strategy."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from fedpatch.coordinator.aggregation.aggregate import AggregateResult, aggregate
from fedpatch.coordinator.aggregation.limit_settings import MAX_PARTS
from fedpatch.coordinator.aggregation.strategies import ServerState
from fedpatch.coordinator.aggregation.update_validation import decode_and_validate_update
from fedpatch.coordinator.cohort.offences import is_offence
from fedpatch.coordinator.guard.quarantine import Quarantine
from fedpatch.coordinator.observability.event_observer import NullObserver, Observer
from fedpatch.coordinator.observability.status_message import View
from fedpatch.coordinator.rounds.run_effects import (
    AggregateUpdates,
    CountEvent,
    Effect,
    EndRun,
    PublishModel,
    ResendChunks,
    RetractModel,
    SaveJournal,
    SavePause,
    SaveRecord,
    SendMessage,
    StoreUpdate,
)
from fedpatch.coordinator.rounds.run_engine import Engine
from fedpatch.coordinator.rounds.run_events import Aggregated, Event, ModelPublished, UpdateRejected, UpdateStored
from fedpatch.coordinator.rounds.run_records import RoundRecord, StoredUpdate, loss_warning
from fedpatch.coordinator.runtime.connection import Connection
from fedpatch.coordinator.runtime.delta_history import DeltaHistory
from fedpatch.coordinator.runtime.model_publisher import Blob, ModelPublisher
from fedpatch.coordinator.runtime.resume import pack_model, terms_of
from fedpatch.coordinator.runtime.run_preparation import Prepared
from fedpatch.coordinator.runtime.update_writer import MOST, THREADS, DecodedCache, UpdateWriter
from fedpatch.coordinator.storage.boot_clock import BootTime
from fedpatch.coordinator.storage.checkpoint import drop_round, load_update, save_checkpoint, store_update
from fedpatch.coordinator.storage.run_registry import Registry, Sighting
from fedpatch.shared.errors import UpdateRefused
from fedpatch.shared.tensors.arrays import Array
from fedpatch.shared.wire.messages import Body, DeviceState, UpdateReport, WorkRequest
from fedpatch.shared.wire.reason_codes import RefuseReason

Kept = tuple[UpdateReport, dict[str, Array]]
"""Of an update that is on the disk."""

_TOLD = ("declined", "failed", "refused")
_log = logging.getLogger("fedpatch.coordinator")
_TOLD_BOUNDED = 4
FAR_BEYOND = 10.0
"""Times its bound: an update that is so far beyond it is shown to the operator as it comes."""
_IF_OFTEN = (
    ". A device that is far beyond it in each round: look at its data, or fedpatch devices quarantine; honest ones that "
    "are held back: raise norm_bound"
)


class EffectRunner:
    """The hands of one run, whose files are in `directory`. `state` is the server's, after the last completed round.

    Its `observer` sees all that happens. Each update is checked and written at once, but for within `writing_beside`.
    """

    def __init__(
        self,
        engine: Engine,
        prepared: Prepared,
        state: ServerState,
        *,
        connection: Connection,
        publisher: ModelPublisher,
        registry: Registry,
        directory: Path,
        view: View,
    ) -> None:
        self.state = self._next = state
        self._engine = engine
        self._prepared = prepared
        self._connection = connection
        self._inbox = connection.inbox
        self._publisher = publisher
        self._registry = registry
        self._directory = directory
        self._view = view
        self._steps = DeltaHistory(directory, prepared, engine.spec)
        # Digest of the global model that the open round trains on.
        self.base = ""
        self.observer: Observer = NullObserver()
        self.quarantine: Quarantine | None = None
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._sightings: dict[str, Sighting] = {}
        self._accepted: set[str] = set()
        self.decoded = DecodedCache()
        self.storing = UpdateWriter(self._kept)
        self._lacking: set[str] = set()
        self._bounds_are_new = True

    def run_effect(self, effect: Effect) -> Iterator[Event]:
        """Run one effect; yield the completion events that are there by now, each made when it is asked for."""
        began_at = time.monotonic()
        yield from self._run(effect)
        self.observer.performed(effect, began_at, time.monotonic())

    @contextmanager
    def writing_beside(self, wake: Callable[[], None]) -> Iterator[None]:
        """Within, updates are checked and written in other threads; `settle` is to be called some time after each `wake`."""
        self.storing = UpdateWriter(self._kept, wake, THREADS)
        try:
            yield
        finally:
            self.storing.close()

    def completed(self, *, wait: bool) -> Iterator[Event]:
        """Yield completion events of the updates that are written by now; with `wait`, of all that are on their way."""
        yield from self._settled(0 if wait else MOST)

    def _run(self, effect: Effect) -> Iterable[Event]:
        match effect:
            case SendMessage():
                self.observer.sent(self._connection.send(effect.device, effect.envelope))
                self._tell_encoding(effect.device, effect.envelope.body)
            case CountEvent():
                self.count(effect)
            case PublishModel() | StoreUpdate() | AggregateUpdates():
                return self._work(effect)
            case SaveJournal() | SavePause() | SaveRecord():
                self._keep(effect)
            case ResendChunks():
                self._publisher.repair(effect.digest, effect.indices)
            case RetractModel():
                self._publisher.retract()
            case EndRun():
                self.flush_counts()
                if effect.detail:
                    self._tell(effect.detail)
        return ()

    def _work(self, effect: PublishModel | StoreUpdate | AggregateUpdates) -> Iterable[Event]:
        """Run an effect that the engine waits for."""
        match effect:
            case PublishModel():
                return [self._publish_model()]
            case StoreUpdate():
                return self._store(effect)
            case AggregateUpdates():
                return [self._aggregate(effect)]

    def _keep(self, effect: SaveJournal | SavePause | SaveRecord) -> None:
        """What the registry has to know at once."""
        run = self._engine.spec.run
        match effect:
            case SaveJournal():
                self._accepted.clear()
                self._registry.rounds.open(run, effect.ledger, BootTime.now())
            case SavePause():
                self._registry.rounds.pause(run, effect.spent_s)
            case SaveRecord():
                self._record(run, effect.record)

    def flush_counts(self) -> None:
        """Writes the counters; called when there is time, since each write waits for the disk."""
        fleet = self._connection.fleet
        if self._sightings:
            most = self._engine.spec.limits.max_devices
            self._registry.seen_devices(fleet, self._sightings.values(), most)
            self._sightings.clear()
        if self._counts:
            self._registry.count(fleet, *((*counted, times) for counted, times in self._counts.items()))
            self._counts.clear()
        if self._accepted:
            self._registry.rounds.accept(self._engine.spec.run, self._accepted)
            self._accepted.clear()

    def count(self, effect: CountEvent) -> None:
        """Adds to a device's counters with the next flush, and tells what a person should know."""
        self._counts[effect.device, effect.what, effect.reason] += effect.times
        if self.quarantine is not None:
            self.quarantine.note(effect)
        if effect.what == "accepted":
            self._accepted.add(effect.device)
        benched = ""
        if effect.what == "refused" and is_offence(effect.what, effect.reason):
            # Before it is said: a coordinator that takes up the round keeps to it. The device will not offend in it again.
            if self.quarantine is not None:
                self.quarantine.save()
            self._registry.rounds.bench(self._engine.spec.run, effect.device, effect.reason)
            benched = "; it is not asked again in this run"
        if effect.what in _TOLD:
            self._tell(f"{effect.device} {effect.what}: {effect.reason} {effect.detail}".rstrip() + benched)

    def see(self, device: str, state: DeviceState) -> None:
        """Takes note of a presence with the next flush: one wait for the disk, however many there are."""
        tasks = tuple(one.task for one in state.tasks)
        before = self._sightings.pop(device, None)
        if before is not None and not state.online:
            # A last will says nothing else; what the device had said is still to be written.
            self._registry.seen_devices(self._connection.fleet, [before])
        self._sightings[device] = Sighting(device, time.time(), state.online, state.version, tasks)

    def _tell_encoding(self, device: str, body: Body) -> None:
        """Once of each device that lacks the run's encoding: it works as ever, but a person may want to know why."""
        if not isinstance(body, WorkRequest) or device in self._lacking:
            return
        spec, fleet = self._engine.spec, self._engine.fleet
        if spec.encoding not in (body.encoding, fleet.encoding(device)):
            self._lacking.add(device)
            self._tell(f"{device} does not know {spec.encoding}; it is asked for {body.encoding}, which saves nothing")

    def _tell(self, line: str) -> None:
        """A line that may hold a device's own words, and this is a person's terminal."""
        self._view.say("".join(char if char.isprintable() else "?" for char in line))

    def _publish_model(self) -> ModelPublished:
        blob, manifest = pack_model(self.state, self._prepared, self._engine.spec)
        steps = self._steps.path_to(self.state, manifest.size_bytes)
        self._publisher.publish(Blob(blob, manifest), [blob for blob, _ in steps])
        self.base = manifest.digest
        self._inbox.now_is_present()
        return ModelPublished(manifest, tuple(delta for _, delta in steps))

    def _store(self, effect: StoreUpdate) -> Iterator[Event]:
        yield from self._settled(MOST - 1)
        self.storing.submit(effect)
        yield from self._settled(MOST)

    def _settled(self, most_left: int) -> Iterator[Event]:
        for effect, kept in self.storing.completed(most_left):
            if (event := self._stored(effect, kept)) is not None:
                yield event

    def _kept(self, effect: StoreUpdate) -> Kept | UpdateRefused:
        """Checks first, then the disk; in a thread of its own."""
        manifest = effect.manifest
        try:
            registered = self._engine.fleet.registered(effect.device)
            kept = self._read(effect.blob, manifest.encoding, manifest.raw_bytes, registered)
            store_update(self._directory, effect.round, effect.device, effect.blob, manifest.digest)
        except UpdateRefused as error:
            return error
        return kept

    def _stored(self, effect: StoreUpdate, kept: Kept | UpdateRefused) -> UpdateStored | UpdateRejected | None:
        """The registry's row, and only then `committed`."""
        manifest, device, current = effect.manifest, effect.device, self._engine.open
        if current is None or current.round.number != effect.round:
            return None
        try:
            if isinstance(kept, UpdateRefused):
                raise kept
            report, tensors = kept
            if current.round.awaits(device):  # of others nothing is to be found after a crash that was not promised
                update = StoredUpdate(
                    effect.round, device, manifest.digest, manifest.raw_bytes, report.num_examples, manifest.encoding
                )
                self._registry.rounds.add_update(self._engine.spec.run, update, self._accepted)
                self._accepted.clear()
                self.decoded.keep(device, tensors)
        except UpdateRefused as error:
            reason = RefuseReason(error.reason)
            return UpdateRejected(effect.round, device, manifest.digest, reason, str(error))
        return UpdateStored(effect.round, device, manifest.digest, report)

    def _read(
        self, blob: bytes, encoding: str, raw_bytes: int, registered: int | None = None
    ) -> tuple[UpdateReport, dict[str, Array]]:
        spec = self._engine.spec
        terms = terms_of(self._prepared, self.base, model=self.state.tensors, limits=spec.limits)
        return decode_and_validate_update(blob, terms, encoding=encoding, raw_bytes=raw_bytes, registered=registered)

    def _aggregate(self, effect: AggregateUpdates) -> Aggregated:
        """Folds in one update at a time, in the order of device names: the same updates give the same bits."""
        self.storing.discard()
        self._registry.rounds.close(self._engine.spec.run)
        stored = {
            update.device: update for update in self._registry.rounds.updates(self._engine.spec.run, effect.round)
        }

        def read(device: str) -> Mapping[str, Array]:
            if (known := self.decoded.of(device)) is not None:
                return known
            update = stored[device]
            return self._read(load_update(self._directory, effect.round, device), update.encoding, update.raw_bytes)[1]

        folded = aggregate(
            effect.devices,
            {device: stored[device].num_examples for device in effect.devices},
            read,
            schema=self._prepared.travelling,
            base=self.state.tensors,
            limits=self._engine.spec.limits,
            plan=self._prepared.plan,
            past=self.state.references,
        )
        self._tell_bounded(folded, stored)
        aimed = self._prepared.strategy.finish(self.state, folded.mean, self._prepared.public)
        aimed = replace(aimed, references=folded.references)
        self._next = self._steps.apply(self.state, aimed, self.base)
        self._inbox.now_is_present()
        return Aggregated(folded.bounded(), folded.bounded_devices())

    def _tell_bounded(self, folded: AggregateResult, stored: Mapping[str, StoredUpdate]) -> None:
        if folded.clipped:
            farthest = sorted(folded.clipped.items(), key=lambda one: (-max(one[1].values()), one[0]))
            words = [f"{device}: {_parts_words(times)}" for device, times in farthest[:_TOLD_BOUNDED]]
            if more := len(farthest) - len(words):
                words.append(f"{more} more, see fedpatch show")
            text = f"updates pulled back to norm_bound: {'; '.join(words)}"
            # Honest devices are a little beyond it now and then; the record of the round names them all the same.
            if max(farthest[0][1].values()) < FAR_BEYOND:
                _log.info("%s", text)
            else:
                self._tell(f"{text}{_IF_OFTEN if self._bounds_are_new else ''}")
                self._bounds_are_new = False
        for device, weight in folded.capped.items():
            count = stored[device].num_examples
            self._tell(
                f"{device} bounded: its {count} examples count as {weight}; raise max_num_examples if it has that many"
            )

    def _record(self, run: str, record: RoundRecord) -> None:
        """Model and record become durable together, in the checkpoint; the registry may lag behind by a crash."""
        if record.outcome == "aggregated":
            save_checkpoint(self._directory, self._next, self._prepared.public, {"record": record.to_dict()})
            self._steps.commit()
            self.state = self._next
        self.flush_counts()
        self._registry.rounds.finish(run, record)
        if warning := loss_warning([record]):
            self._tell(f"warning: {warning}")
        self.storing.discard()
        self.storing.afterwards(lambda: drop_round(self._directory, record.round))
        self.decoded.clear()


def _parts_words(times: Mapping[str, float]) -> str:
    """The parts that went farthest beyond their bounds, e.g. `weights (31 times the bound)`."""
    farthest = sorted(times, key=lambda part: (-times[part], part))[:MAX_PARTS]
    return ", ".join(f"{part} ({times[part]:.3g} times the bound)" for part in farthest)
