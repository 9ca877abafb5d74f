"""The coordinator's event loop: take an event from the queue, give it to the engine, run the effects.

One thread owns all state. The link and the signal handlers only put events into the queue.
"""

from __future__ import annotations

import ctypes
import gc
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from queue import Empty
from typing import Any

from fedpatch.coordinator.guard.quarantine import Quarantine
from fedpatch.coordinator.guard.revocations import Revocations
from fedpatch.coordinator.guard.stop_request import StopRequest
from fedpatch.coordinator.observability.status_message import View, status_message
from fedpatch.coordinator.observability.status_publisher import StatusPublisher
from fedpatch.coordinator.rounds.held_devices import QUARANTINED, REVOKED
from fedpatch.coordinator.rounds.run_effects import CountEvent, Effect
from fedpatch.coordinator.rounds.run_engine import Engine, drive_engine
from fedpatch.coordinator.rounds.run_events import (
    ChunkReceived,
    DeviceMessage,
    DevicePresence,
    DevicesRevoked,
    HoldsChanged,
    Interrupted,
    LinkChanged,
    RunStarted,
    StopRequested,
    Suspended,
    TimePassed,
)
from fedpatch.coordinator.runtime.connection import Connection
from fedpatch.coordinator.runtime.decoded_cache import MOST_BYTES
from fedpatch.coordinator.runtime.effect_runner import EffectRunner
from fedpatch.coordinator.runtime.event_queue import AdmittedMessage, Deposed, Event, Interrupt, UpdateWritten
from fedpatch.coordinator.runtime.model_publisher import ModelPublisher
from fedpatch.coordinator.runtime.store_watch import watching
from fedpatch.coordinator.runtime.update_writer import MAX_IN_PROGRESS
from fedpatch.coordinator.storage.directory_guard import DirectoryGuard
from fedpatch.shared.errors import DamagedChunk, WireError
from fedpatch.shared.mqtt.client import Connected, Disconnected
from fedpatch.shared.wire.chunks import decode_chunk
from fedpatch.shared.wire.codec import UnknownMessage, decode
from fedpatch.shared.wire.messages import DeviceState
from fedpatch.shared.wire.vitals import Vitals

_log = logging.getLogger("fedpatch.coordinator")

# The view counts seconds also without events.
_IDLE_S = 0.5
_SHOW_EVERY_S = 0.1
_LOOK_EVERY_S = 0.05
# Other processes change the CA's record, the holds and the request to stop.
_POLL_EVERY_S = 1.0
# The share of the loop's time for the view.
_SHOW_SHARE = 0.02
_SHOW_AT_LEAST_EVERY_S = 2.0
# malloc.h
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# The greatest threshold that glibc accepts, and the size of a round's decoded updates (update_store.MOST_BYTES).
_MAPPED_FROM_BYTES, _KEPT_BYTES = 32 * 2**20, MOST_BYTES


class Service:
    """Runs one engine to its end.

    Args:
        engine: The engine of the run.
        runner: Runs its effects.
        connection: The connection to the broker, with the event queue.
        publisher: Publishes the global model.
        view: Shows progress and messages.
        revocations: The revoked devices.
        quarantine: The devices that are held back; None without a registry.
        stop_request: The operator's request to stop after a round; None without a directory.
        guard: Watches the state directory; None without one.

    Attributes:
        handlers: By type of event, the function that handles it and returns the effects.
    """

    handlers: Mapping[type[Event], Callable[[Any, float], list[Effect]]]

    def __init__(  # noqa: PLR0913 - one keyword per part of the process
        self,
        engine: Engine,
        runner: EffectRunner,
        *,
        connection: Connection,
        publisher: ModelPublisher,
        view: View,
        revocations: Revocations,
        quarantine: Quarantine | None = None,
        stop_request: StopRequest | None = None,
        guard: DirectoryGuard | None = None,
    ) -> None:
        self._engine = engine
        self._revocations = revocations
        self._runner = runner
        self._quarantine = quarantine
        self._stop_request = stop_request
        self._guard = guard
        self._connection = connection
        self._event_queue = connection.event_queue
        self._publisher = publisher
        self._view = view
        self._watchers = StatusPublisher(connection.link, connection.fleet, engine.spec)
        self._observer = runner.observer
        self._show_at = self._look_at = self._poll_at = 0.0
        # The engine's next deadline, as of the last event.
        self._deadline = engine.next_deadline()
        self.handlers = {
            AdmittedMessage: self._on_message,
            Connected: self._on_connected,
            Disconnected: self._on_disconnected,
            UpdateWritten: self._on_update_written,
            Interrupt: self._on_interrupt,
            Deposed: self._on_deposed,
        }

    def run(self) -> None:
        """Run until the engine has stopped; its `stopped` is the reason."""
        with self.started():
            while not self._engine.stopped:
                self.step()

    @contextmanager
    def started(self) -> Iterator[None]:
        """Start the engine; within the context, `step` handles events."""
        if self._engine.records:
            # The view needs the earlier rounds, so that it notices a round that closes at the start.
            self._view.show(status_message(self._engine, self._event_queue.clock(), phase="starting"))
        _keep_freed_memory()
        waits = self._event_queue.ending
        with _collecting_less(), watching(waits, self._watchers.publish_silence):
            self._run_effects(self._engine.handle(RunStarted(), self._event_queue.now_is_present()))
            self._deadline = self._engine.next_deadline()
            yield

    def step(self) -> None:
        """Handle the next event, or an idle moment."""
        self.take(self.next_event())

    def take(self, event: Event | None) -> None:
        """Handle an event, or an idle moment, and then the deadlines that are reached."""
        if event is not None:
            self._finish_updates(wait=isinstance(event, Interrupt))
            self._run_effects(self.handlers[type(event)](event, self._event_queue.now))
        else:
            self._runner.counters.flush()
            self._publisher.drain()
        self._tick()
        # While events wait, the steps below can wait for a moment too.
        if self._event_queue.waiting() and not self._engine.stopped and self._event_queue.clock() < self._look_at:
            return
        self._look_at = self._event_queue.clock() + _LOOK_EVERY_S
        if self._event_queue.now >= self._poll_at:
            self._poll(self._event_queue.now)
        for (device, reason), times in self._connection.ingress_filter.take_dropped().items():
            self._run_effects([CountEvent(device, "ignored", reason, times=times)])
        self._observer.look(self._event_queue.clock(), waiting=self._event_queue.waiting())
        self._show(self._event_queue.clock())

    def _run_effects(self, effects: Iterable[Effect]) -> None:
        """Run effects, and the effects that follow from their completion events."""
        drive_engine(self._engine, effects, self._runner, lambda: self._event_queue.now)

    def _finish_updates(self, *, wait: bool) -> None:
        """Handle the completion events of written updates; with `wait`, of all updates in progress."""
        for event in self._runner.updates.completed(0 if wait else MAX_IN_PROGRESS):
            self._run_effects(self._engine.handle(event, self._event_queue.now))

    def _tick(self) -> None:
        """Handle a deadline that is reached. An update that arrived by then counts, even if it is not written yet."""
        self._deadline, reached = self._engine.next_deadline(), self._event_queue.processed_until()
        if self._deadline is None or self._deadline > reached:
            self._event_queue.advance_to(reached)
            return
        self._finish_updates(wait=True)
        self._event_queue.advance_to(reached)
        self._run_effects(self._engine.handle(TimePassed(), self._event_queue.now))
        self._deadline = self._engine.next_deadline()

    def _show(self, now: float) -> None:
        """Show the status, less often in large rounds: building it takes time in proportion to the cohort."""
        if now >= self._show_at or self._engine.stopped:
            message = status_message(self._engine, now)
            self._view.show(message)
            self._watchers.publish(message, now)
            pause_s = max(_SHOW_EVERY_S, (self._event_queue.clock() - now) / _SHOW_SHARE)
            self._show_at = now + min(pause_s, _SHOW_AT_LEAST_EVERY_S)

    def _poll(self, now: float) -> None:
        """Handle changes by other processes: revoked devices, devices that are held back, the request to stop the run."""
        self._poll_at = now + _POLL_EVERY_S
        if self._guard is not None:
            self._guard.check()
        short_of_devices = self._engine.present < self._engine.required_devices()
        for line in (self._connection.drops.take(now), self._connection.refusals.take(now, short_of_devices)):
            if line:
                self._view.say(line)
        revoked = self._revocations.poll(self._engine.fleet.members)
        self._run_effects(self._engine.handle(DevicesRevoked(revoked), now))
        held = self._quarantine.poll() if self._quarantine is not None else None
        if held is not None:
            self._run_effects(self._engine.handle(HoldsChanged(held), now))
        if self._stop_request is not None and self._stop_request.poll():
            self._view.say("asked to stop: no round begins after the open one")
            self._run_effects(self._engine.handle(StopRequested(), now))

    def next_event(self) -> Event | None:
        """Wait for the next event, for half a second or until a deadline; return None if none has come."""
        deadline = self._deadline
        wait_s = _IDLE_S if deadline is None else min(_IDLE_S, max(0.0, deadline - self._event_queue.clock()))
        try:
            return self._event_queue.get(timeout=wait_s)
        except Empty:
            return None

    def _on_deposed(self, _: Deposed, now: float) -> list[Effect]:
        self._connection.must_lead()
        return []

    def _on_interrupt(self, _: Interrupt, now: float) -> list[Effect]:
        if self._connection.leader_epoch is not None:
            self._view.say("interrupted: saving; a standby goes on, and so does the devices' work")
            return self._engine.handle(Suspended(handed_over=True), now)
        goes_on = self._engine.spec.carry is not None
        work = "the devices' work goes on" if goes_on else "cancelling the devices' work"
        self._view.say(f"interrupted: {work}, saving")
        return self._engine.handle(Interrupted(), now)

    def _on_connected(self, event: Connected, now: float) -> list[Effect]:
        _log.info("connected, MQTT %s", event.protocol)
        self._publisher.retain = event.retain_available
        if self._connection.link.idle:
            # The broker may have lost its retained messages. Messages that still wait in the link are sent anyway.
            self._publisher.republish()
        self._connection.announce(online=True)
        self._watchers.connected()
        self._observer.link(connected=True)
        return self._engine.handle(LinkChanged(connected=True), now)

    def _on_disconnected(self, event: Disconnected, now: float) -> list[Effect]:
        self._view.say(f"broker: {event.reason}; trying again")
        self._watchers.disconnected(now)
        self._observer.link(connected=False)
        return self._engine.handle(LinkChanged(connected=False), now)

    def _on_update_written(self, _: UpdateWritten, now: float) -> list[Effect]:
        """Do nothing: `take` has handled the completion events of written updates before this event."""
        return []

    def _on_message(self, message: AdmittedMessage, now: float) -> list[Effect]:
        self._connection.ingress_filter.took(len(message.payload))
        topic = message.topic
        self._observer.received(topic.kind, len(message.payload))
        if self._runner.updates.holds(topic.device):
            # A message is handled after the update that its device sent before, as if that update had been written at once.
            self._finish_updates(wait=True)
        if topic.device in self._revocations.revoked:
            return [CountEvent(topic.device, "ignored", REVOKED)]
        try:
            if topic.kind == "update_chunk":
                return self._engine.handle(ChunkReceived(topic.device, decode_chunk(message.payload)), now)
            envelope = decode(message.payload)
            if topic.kind == "up":
                self._runner.counters.heard(topic.device)
            if topic.kind == "device_state" and isinstance(envelope.body, DeviceState):
                return self._on_state(topic.device, envelope.body, now)
            if topic.kind == "up" and isinstance(envelope.body, Vitals):
                self._observer.vitals(topic.device, envelope.body, now)
            elif topic.kind == "up":
                return self._engine.handle(DeviceMessage(topic.device, envelope), now)
        except WireError as error:
            return self._unreadable(topic.device, message.topic_name, error)
        return []

    def _unreadable(self, device: str, topic: str, error: WireError) -> list[Effect]:
        """Count a message that cannot be read; of the three kinds only the last one is an offence."""
        if isinstance(error, UnknownMessage):
            level, reason = logging.DEBUG, "unknown_message"
        elif isinstance(error, DamagedChunk):
            level, reason = logging.INFO, "damaged_chunk"
        else:
            held = self._engine.fleet.held(device) == QUARANTINED
            level, reason = logging.DEBUG if held else logging.WARNING, "not_ours"
        _log.log(level, "%s: ignored, %s", topic, error)
        return [CountEvent(self._known(device), "ignored", reason)]

    def _known(self, device: str) -> str:
        """Return the name under which an event is counted: "" for unknown devices, since names can be invented."""
        return device if device in self._engine.fleet.members else ""

    def _on_state(self, device: str, state: DeviceState, now: float) -> list[Effect]:
        effects = self._engine.handle(DevicePresence(device, state), now)
        fleet, ingress = self._engine.fleet, self._connection.ingress_filter
        while fleet.evicted:
            evicted = fleet.evicted.pop()
            ingress.forgets(evicted)
            if self._quarantine is not None:
                self._quarantine.forget(evicted)
        if device not in fleet.members:
            return [*effects, CountEvent("", "ignored", "fleet_full")]
        ingress.knows(device)
        self._runner.counters.note_presence(device, state)
        self._observer.presence(device)
        return effects


def _keep_freed_memory() -> None:
    """Let the C library (glibc) keep the memory of a round's updates for the next round.

    Otherwise glibc returns the memory after each round, and the kernel clears each page again: 6 % of a round's processor time.
    """
    with suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_THRESHOLD, _MAPPED_FROM_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


@contextmanager
def _collecting_less() -> Iterator[None]:
    """Exclude the objects that exist at the start of a run, mostly torch's, from garbage collection."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
