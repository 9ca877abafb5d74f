"""The owner of each effect of a run's engine, in one table: updates, global model, counters, connection or operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from fedpatch.coordinator.observability.event_observer import NullObserver, Observer
from fedpatch.coordinator.rounds.learning_alone import loss_warning
from fedpatch.coordinator.rounds.run_effects import (
    AggregateUpdates,
    CheckLink,
    CountEvent,
    Effect,
    EndRun,
    ExcludeDevice,
    PublishModel,
    ResendChunks,
    RetractModel,
    SaveGroupSteps,
    SaveJournal,
    SaveRecord,
    SaveSpentTime,
    SendMessage,
    StoreUpdate,
)
from fedpatch.coordinator.rounds.run_engine import Engine
from fedpatch.coordinator.rounds.run_events import Aggregated, Event, ModelPublished
from fedpatch.coordinator.runtime.aggregator_port import AggregatorPort
from fedpatch.coordinator.runtime.connection import Connection
from fedpatch.coordinator.runtime.device_counters import DeviceCounters
from fedpatch.coordinator.runtime.model_publisher import ModelPublisher
from fedpatch.coordinator.runtime.operator_notices import OperatorNotices
from fedpatch.coordinator.runtime.update_store import UpdateStore
from fedpatch.coordinator.storage.checkpoint import pause_of


class EffectRunner:
    """The EffectHandler of a run.

    Args:
        engine: The engine that returned the effects.
        connection: Sends messages to devices.
        publisher: Keeps the chunks of the global model on the broker.
        aggregator: Owns the global model.
        updates: Owns the open round on the disk: its journal, updates and record.
        counters: Owns the counters of devices.
        say: Shows a line to the operator.
        observer: Receives each effect with its duration.

    Attributes:
        owners: By type of effect, the function that runs it and returns its completion events; None for an effect without any.
    """

    owners: Mapping[type[Effect], Callable[[Any], Iterable[Event] | None]]

    def __init__(
        self,
        engine: Engine,
        *,
        connection: Connection,
        publisher: ModelPublisher,
        aggregator: AggregatorPort,
        updates: UpdateStore,
        counters: DeviceCounters,
        say: Callable[[str], None],
        observer: Observer | None = None,
    ) -> None:
        self.updates = updates
        self.counters = counters
        self.observer = NullObserver() if observer is None else observer
        self._engine = engine
        self._connection = connection
        self._publisher = publisher
        self._aggregator = aggregator
        self._say = say
        self._notices = OperatorNotices(engine, say)
        self.owners = {
            SendMessage: self._send,
            PublishModel: self._publish,
            ResendChunks: self._resend_chunks,
            RetractModel: self._retract_model,
            CheckLink: self._check_link,
            StoreUpdate: updates.store,
            AggregateUpdates: self._aggregate,
            SaveJournal: self._save_journal,
            SaveGroupSteps: updates.save_masking,
            SaveSpentTime: self._save_spent_time,
            SaveRecord: self._save_record,
            CountEvent: counters.count,
            ExcludeDevice: counters.exclude,
            EndRun: self._end,
        }

    def run_effect(self, effect: Effect) -> Iterator[Event]:
        """Run one effect; yield the completion events that are available now, each made on demand."""
        clock = self._connection.event_queue.clock
        began_at = clock()
        self._notices.show_false_presence()
        yield from self.owners[type(effect)](effect) or ()
        self.observer.performed(effect, began_at, clock())

    def _send(self, effect: SendMessage) -> None:
        self.observer.sent(self._connection.send(effect.device, effect.envelope))
        self._notices.show_lacking_encoding(effect.device, effect.envelope.body)

    def _publish(self, effect: PublishModel) -> list[ModelPublished]:
        self._notices.show_left_out(effect.round)
        if effect.trains:
            self._aggregator.leave_used_base()
        event = self._aggregator.publish(self._publisher, chunks=effect.chunks)
        self._connection.event_queue.now_is_present()
        return [event]

    def _resend_chunks(self, effect: ResendChunks) -> None:
        self._publisher.repair(effect.digest, effect.indices)

    def _retract_model(self, _: RetractModel) -> None:
        self._publisher.retract()

    def _check_link(self, effect: CheckLink) -> None:
        self._say(f"round {effect.round}: no device has answered; checking the link to the broker")
        self._connection.check_link(effect.within_s)

    def _aggregate(self, effect: AggregateUpdates) -> list[Aggregated]:
        stored = self.updates.close_round(effect)
        current = self._engine.open
        target = 0 if current is None else current.round.policy.target
        if (terms := effect.terms) is not None:
            event = self._aggregator.aggregate_masked(
                effect.groups,
                terms,
                lambda device: self.updates.read_masked(stored[device], terms),
                target=target,
                sites={relay: self.updates.read_site_sum(stored[relay], terms) for relay in effect.sums},
            )
        else:
            event = self._aggregator.aggregate(
                effect.devices,
                {device: stored[device].num_examples for device in effect.devices},
                lambda device: self.updates.read(stored[device], effect.carried.get(device)),
                target,
                effect.carried,
                round_number=effect.round,
                members={} if current is None else current.members,
            )
        self._connection.event_queue.now_is_present()
        return [event]

    def _save_journal(self, effect: SaveJournal) -> None:
        self.updates.open_round(effect.journal, self._connection.ports.boot_time())

    def _save_spent_time(self, effect: SaveSpentTime) -> None:
        self.updates.pause_round(effect.spent_s)

    def _save_record(self, effect: SaveRecord) -> None:
        """Save the model and the record together, in a checkpoint; the registry may be a round behind after a crash."""
        record = effect.record
        if record.outcome == "aggregated":
            pause = pause_of(effect.rest_s, self._connection.ports.boot_time()) if effect.rest_s else {}
            self._aggregator.save(record, pause)
        self.counters.flush()
        self.updates.finish_round(effect)
        if warning := loss_warning([record], self._engine.spec.private):
            self._say(f"warning: {warning}")

    def _end(self, effect: EndRun) -> None:
        self.counters.flush()
        if effect.detail:
            self._say(effect.detail)
