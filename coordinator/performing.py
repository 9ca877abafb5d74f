"""Performs what the engine decides: messages and the model to the broker, updates to the disk, the mean to the strategy."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path

from coordinator.aggregation import WeightedMean
from coordinator.checkpoint import drop_round, load_update, save_checkpoint, store_update
from coordinator.connection import Connection
from coordinator.effects import (
    Aggregate,
    Count,
    Effect,
    Finish,
    Open,
    Pause,
    PublishModel,
    Record,
    Republish,
    RetractModel,
    Send,
    Store,
)
from coordinator.engine import Engine
from coordinator.intake import read_update
from coordinator.moments import Moment
from coordinator.observing import Observer, Unobserved
from coordinator.preparation import Prepared
from coordinator.publisher import ModelPublisher
from coordinator.records import RoundRecord, StoredUpdate
from coordinator.recovery import pack_model, terms_of
from coordinator.registry import Registry
from coordinator.snapshot import View
from coordinator.strategies import ServerState
from shared.errors import UpdateRefused
from shared.messages import Manifest, UpdateReport
from shared.reasons import RefuseReason
from shared.tensors import Array

_TOLD = ("declined", "failed", "refused")


class Performer:
    """The hands of one run, whose files are in `directory`. `state` is the server's, after the last completed round.

    Its `observer` sees all that happens.
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
        self._publisher = publisher
        self._registry = registry
        self._directory = directory
        self._view = view
        # Digest of the global model that the open round trains on.
        self.base = ""
        self.observer: Observer = Unobserved()
        self._counts: list[Count] = []
        self._accepted: set[str] = set()

    def perform(self, effects: list[Effect]) -> None:
        """All of `effects`, and those that follow from them."""
        queue = deque(effects)
        while queue:
            effect, began_at = queue.popleft(), time.monotonic()
            queue.extend(self._do(effect))
            self.observer.performed(effect, began_at, time.monotonic())

    def _do(self, effect: Effect) -> list[Effect]:
        match effect:
            case Send():
                self.observer.sent(self._connection.send(effect.device, effect.envelope))
            case Count():
                self.count(effect)
            case PublishModel() | Store() | Aggregate():
                return self._work(effect)
            case Open() | Pause() | Record():
                self._keep(effect)
            case Republish():
                self._publisher.republish(effect.indices)
            case RetractModel():
                self._publisher.retract()
            case Finish():
                self.flush_counts()
                if effect.detail:
                    self._tell(effect.detail)
        return []

    def _work(self, effect: PublishModel | Store | Aggregate) -> list[Effect]:
        """What the engine waits for; its answer is more effects."""
        match effect:
            case PublishModel():
                return self._engine.model_published(self._publish_model(effect.round), time.monotonic())
            case Store():
                return self._store(effect)
            case Aggregate():
                return self._aggregate(effect)

    def _keep(self, effect: Open | Pause | Record) -> None:
        """What the registry has to know at once."""
        run = self._engine.spec.run
        match effect:
            case Open():
                self._accepted.clear()
                self._registry.rounds.open(run, effect.ledger, Moment.now())
            case Pause():
                self._registry.rounds.pause(run, effect.spent_s)
            case Record():
                self._record(run, effect.record)

    def flush_counts(self) -> None:
        """Writes the counters; called when there is time, since each write waits for the disk."""
        if self._counts:
            self._registry.count(self._connection.fleet, *((one.device, one.what, one.reason) for one in self._counts))
            self._counts.clear()
        if self._accepted:
            self._registry.rounds.accept(self._engine.spec.run, self._accepted)
            self._accepted.clear()

    def count(self, effect: Count) -> None:
        """Adds to a device's counters with the next flush, and tells what a person should know."""
        self._counts.append(effect)
        if effect.what == "accepted":
            self._accepted.add(effect.device)
        if effect.what in _TOLD:
            self._tell(f"{effect.device} {effect.what}: {effect.reason} {effect.detail}".rstrip())

    def _tell(self, line: str) -> None:
        """A line that may hold a device's own words, and this is a person's terminal."""
        self._view.say("".join(char if char.isprintable() else "?" for char in line))

    def _publish_model(self, number: int) -> Manifest:
        blob, manifest = pack_model(self.state, self._prepared, self._engine.spec, number)
        self._publisher.publish(blob, manifest)
        self.base = manifest.digest
        return manifest

    def _store(self, effect: Store) -> list[Effect]:
        """Checks first, then the disk, and only then `committed`."""
        manifest, device = effect.manifest, effect.device
        try:
            report, _ = self._read(effect.blob, manifest.raw_bytes)
            store_update(self._directory, effect.round, device, effect.blob)
            update = StoredUpdate(effect.round, device, manifest.digest, manifest.raw_bytes, report.num_examples)
            self._registry.rounds.add_update(self._engine.spec.run, update, self._accepted)
        except UpdateRefused as error:
            reason = RefuseReason(error.reason)
            return self._engine.refused(device, manifest.digest, reason, str(error), time.monotonic())
        self._accepted.clear()
        return self._engine.stored(device, manifest.digest, report, time.monotonic())

    def _read(self, blob: bytes, raw_bytes: int) -> tuple[UpdateReport, dict[str, Array]]:
        terms = terms_of(self._prepared, self.base)
        return read_update(blob, terms, encoding=self._engine.spec.encoding, raw_bytes=raw_bytes)

    def _aggregate(self, effect: Aggregate) -> list[Effect]:
        """Folds in one update at a time, in the order of device names: the same updates give the same bits."""
        self._registry.rounds.close(self._engine.spec.run)
        stored = {
            update.device: update for update in self._registry.rounds.updates(self._engine.spec.run, effect.round)
        }
        mean = WeightedMean(self._prepared.travelling)
        for device in effect.devices:
            blob = load_update(self._directory, effect.round, device)
            report, tensors = self._read(blob, stored[device].raw_bytes)
            mean.add(tensors, report.num_examples)
        self._next = self._prepared.strategy.finish(self.state, mean.result(), self._prepared.public)
        return self._engine.aggregated(time.monotonic())

    def _record(self, run: str, record: RoundRecord) -> None:
        """Model and record become durable together, in the checkpoint; the registry may lag behind by a crash."""
        if record.outcome == "aggregated":
            save_checkpoint(self._directory, self._next, self._prepared.public, {"record": record.to_dict()})
            self.state = self._next
        self.flush_counts()
        self._registry.rounds.finish(run, record)
        drop_round(self._directory, record.round)
