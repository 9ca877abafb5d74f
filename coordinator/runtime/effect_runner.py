"""Runs the engine's effects: each goes to the owner of its work (updates, global model, counters, connection, registry)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from fedpatch.coordinator.observability.event_observer import NullObserver, Observer
from fedpatch.coordinator.rounds.false_presence import MUTE_ROUNDS
from fedpatch.coordinator.rounds.learning_alone import loss_warning
from fedpatch.coordinator.rounds.missing_devices import left_out_words
from fedpatch.coordinator.rounds.run_effects import (
    AggregateUpdates,
    CheckLink,
    CountEvent,
    Effect,
    EndRun,
    PublishModel,
    ResendChunks,
    RetractModel,
    SaveGroupSteps,
    SaveJournal,
    SavePause,
    SaveRecord,
    SendMessage,
    StoreUpdate,
)
from fedpatch.coordinator.rounds.run_engine import Engine
from fedpatch.coordinator.rounds.run_events import Aggregated, Event
from fedpatch.coordinator.runtime.aggregator import Aggregator
from fedpatch.coordinator.runtime.connection import Connection
from fedpatch.coordinator.runtime.device_counters import DeviceCounters
from fedpatch.coordinator.runtime.model_publisher import ModelPublisher
from fedpatch.coordinator.runtime.update_store import UpdateStore
from fedpatch.coordinator.storage.checkpoint import pause_of
from fedpatch.shared.wire.messages import Body, WorkRequest


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
    """

    def __init__(
        self,
        engine: Engine,
        *,
        connection: Connection,
        publisher: ModelPublisher,
        aggregator: Aggregator,
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
        # Devices without the run's encoding that were shown to the operator.
        self._lacking: set[str] = set()
        self._told: list[str] = []
        self._left_out = ""

    def run_effect(self, effect: Effect) -> Iterator[Event]:
        """Run one effect; yield the completion events that are available now, each made on demand."""
        clock = self._connection.event_queue.clock
        began_at = clock()
        self._tell_of_false_presence()
        yield from self._run(effect)
        self.observer.performed(effect, began_at, clock())

    def _run(self, effect: Effect) -> Iterable[Event]:
        match effect:
            case SendMessage():
                self.observer.sent(self._connection.send(effect.device, effect.envelope))
                self._show_lacking_encoding(effect.device, effect.envelope.body)
            case CountEvent():
                self.counters.count(effect)
            case PublishModel() | StoreUpdate() | AggregateUpdates():
                return self._run_awaited(effect)
            case SaveJournal() | SaveGroupSteps() | SavePause() | SaveRecord():
                self._save(effect)
            case ResendChunks():
                self._publisher.repair(effect.digest, effect.indices)
            case RetractModel():
                self._publisher.retract()
            case CheckLink():
                self._say(f"round {effect.round}: no device has answered; checking the link to the broker")
                self._connection.check_link(effect.within_s)
            case EndRun():
                self.counters.flush()
                if effect.detail:
                    self._say(effect.detail)
        return ()

    def _run_awaited(self, effect: PublishModel | StoreUpdate | AggregateUpdates) -> Iterable[Event]:
        """Run an effect that the engine waits for."""
        match effect:
            case PublishModel():
                self._show_left_out(effect.round)
                if effect.trains:
                    self._aggregator.leave_used_base()
                event = self._aggregator.publish(self._publisher, chunks=effect.chunks)
                self._connection.event_queue.now_is_present()
                return [event]
            case StoreUpdate():
                return self.updates.store(effect)
            case AggregateUpdates():
                return [self._aggregate(effect)]

    def _aggregate(self, effect: AggregateUpdates) -> Aggregated:
        stored = self.updates.close_round(effect)
        current = self._engine.open
        target = 0 if current is None else current.round.policy.target
        if (terms := effect.terms) is not None:
            event = self._aggregator.aggregate_masked(
                effect.groups,
                terms,
                lambda device: self.updates.read_masked(stored[device], terms),
                target=target,
                round_number=effect.round,
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
        return event

    def _save(self, effect: SaveJournal | SaveGroupSteps | SavePause | SaveRecord) -> None:
        """Save the data from which another process can resume the run."""
        match effect:
            case SaveJournal():
                self.updates.open_round(effect.ledger, self._connection.ports.boot_time())
            case SaveGroupSteps():
                self.updates.save_masking(effect)
            case SavePause():
                self.updates.pause_round(effect.spent_s)
            case SaveRecord():
                self._save_record(effect)

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

    def _tell_of_false_presence(self) -> None:
        """Tell the operator once of ids that several agents use, and of devices that are shown online and do not answer."""
        words = self._engine.fleet.false_presence.words(MUTE_ROUNDS)
        for line in words:
            if line not in self._told:
                self._say(f"warning: {line}")
        self._told = words

    def _show_left_out(self, round_number: int) -> None:
        """Show which devices are not asked because of their version or abilities, again only where this changes."""
        words = left_out_words(self._engine.fleet)
        if words and words != self._left_out:
            self._say(f"round {round_number} is without {words}")
        self._left_out = words

    def _show_lacking_encoding(self, device: str, body: Body) -> None:
        """Show once for each device that it lacks the run's encoding: it takes part, but its updates are larger."""
        if not isinstance(body, WorkRequest) or device in self._lacking:
            return
        spec, fleet = self._engine.spec, self._engine.fleet
        if body.secure is None and spec.encoding not in (body.encoding, fleet.encoding(device)):
            self._lacking.add(device)
            self._say(f"{device} does not know {spec.encoding}; it is asked for {body.encoding}, which saves nothing")
