"""The site's side of a relay: a coordinator in a thread of its own, which runs one round for each request of the hub.

The site takes a TrainCommand of the relay's agent (`site_trainer`) and answers with Trained, Evaluated, TrainCancelled or
TrainFailed. Its connection to the site's broker stays open between rounds, so that the hub knows the number of devices.
"""

from __future__ import annotations

import logging
import re
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Self

from fedpatch.coordinator.blobs.served_models import open_served
from fedpatch.coordinator.guard.revocations import Revocations
from fedpatch.coordinator.rounds.auto_deadline import LONGEST_DEADLINE_S
from fedpatch.coordinator.rounds.run_events import Interrupted, Suspended
from fedpatch.coordinator.runtime.connection import Connection
from fedpatch.coordinator.runtime.event_queue import AdmittedMessage, Event, UpdateWritten
from fedpatch.coordinator.runtime.fleet_publisher import make_publisher
from fedpatch.coordinator.runtime.model_publisher import ModelPublisher
from fedpatch.coordinator.runtime.ports import REAL
from fedpatch.coordinator.runtime.run_places import fleet_lock, run_directory
from fedpatch.coordinator.storage.database.value_checks import RUN_ID
from fedpatch.coordinator.storage.directory_guard import DirectoryGuard
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.coordinator.storage.state_dirs import fleet_lock_file
from fedpatch.device_agent.job.training_messages import (
    Evaluated,
    Ready,
    TrainCancelled,
    TrainCommand,
    Trained,
    TrainFailed,
)
from fedpatch.device_agent.runtime.training_supervisor import TrainerEvent
from fedpatch.relay.round_player import RoundPlayer
from fedpatch.relay.settings import RelaySettings
from fedpatch.relay.site_deadlines import LEAST_S
from fedpatch.relay.site_members import Presences, SiteSummary
from fedpatch.relay.site_round import HubRound, SiteModel
from fedpatch.relay.site_update import SiteUpdate, plain_failure, site_evaluation
from fedpatch.shared.app.files import make_directory, read_state, refusals_of, write_atomic
from fedpatch.shared.errors import BrokerError, FedpatchError, SchemaMismatch, StateError, WireError
from fedpatch.shared.mqtt.client import Connected, Disconnected
from fedpatch.shared.wire.chunk_sizes import chunk_bytes_within
from fedpatch.shared.wire.codec import decode
from fedpatch.shared.wire.messages import DeviceState
from fedpatch.shared.wire.reason_codes import FailReason

_log = logging.getLogger("fedpatch.relay")

# The shortest time between two presences to the hub, so that a starting site does not flood it.
_TELL_EVERY_S = 0.5
_IDLE_S = 0.5
_SETTLE_S = 5.0
_QUIET_S = 1.0
_MAX_RUN_LENGTH = 64
_ID_FILE = "relay-id"


def is_usable_run(run: str) -> bool:
    """Return whether the name of a hub's run can be the name of a folder here, and be in a registry."""
    return len(run) <= _MAX_RUN_LENGTH and RUN_ID.fullmatch(run) is not None


def relay_id(directory: Path) -> str:
    """Return the relay's id in paths (DeviceState.path), which is drawn once and kept in its state directory."""
    file = directory / _ID_FILE
    with suppress(FileNotFoundError, UnicodeDecodeError):
        if re.fullmatch(r"[0-9a-f]{16}", found := read_state(file).decode("ascii").strip()):
            return found
    made = secrets.token_hex(8)
    with refusals_of(directory):
        write_atomic(file, f"{made}\n".encode())
    return made


@dataclass(frozen=True)
class _HubRequest:
    """A request of the hub, with its number and whether the hub knows `members` of a report."""

    number: int
    command: TrainCommand
    tells_members: bool


class Site:
    """A context manager: inside it the site's coordinator is connected, and no other coordinator of its fleet is running.

    Args:
        settings: The relay's settings.
        model: Its task.
        events: Takes the events for the agent, in any thread.
        on_fault: Called in the site's thread if the site's coordinator cannot continue.

    Attributes:
        summary: The site as the agent last received it.
        busy: Whether the agent has a job; `relay_owner` sets it. During a job the figures of the presence only grow: the hub
            refuses an update of more devices and examples than the relay has registered.

    Raises:
        BrokerError: The site's broker does not answer.
        UsageError: Another coordinator of the site's fleet is running.
        StoreUnavailable, StateError: The store of served models cannot be written.
        StateError: The record of the site's CA cannot be read.
    """

    def __init__(
        self,
        settings: RelaySettings,
        model: SiteModel,
        events: Callable[[TrainerEvent], None],
        on_fault: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._model = model
        self._events = events
        self._on_fault = on_fault
        self.busy = False
        with refusals_of(settings.site_dir):
            make_directory(settings.site_dir)
        self._presences = Presences(
            relay_id(settings.site_dir),
            model.task.name,
            model.schema.digest,
            max_members=settings.max_members,
            max_devices=settings.max_devices,
            min_cohort=settings.min_cohort,
        )
        self.summary: SiteSummary = self._presences.summary()
        self._told: SiteSummary | None = None
        self._seen = self.summary
        self._tell_at = self._began_at = self._seen_at = 0.0
        self._ports = replace(REAL, interrupts=lambda _: nullcontext())
        self._open = ExitStack()
        # Requests with their numbers; the numbers of the last request and of the last cancelled one. So a cancelled round
        # ends even if the next request has arrived.
        self._requests: SimpleQueue[_HubRequest] = SimpleQueue()
        self._last = self._cancelled_to = self._playing = 0
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="site", daemon=True)

    def __enter__(self) -> Self:
        settings = self._settings.downwards
        # No deadline of a hub is known yet; most are shorter. Where a URL has expired, the chunks come by MQTT.
        store, url = settings.models_store, settings.models_url
        self._served = open_served(store, url, settings.fleet, LONGEST_DEADLINE_S)
        if self._served is not None:
            self._served.check()
        self._revocations = Revocations(settings.ca_directory, settings.fleet)
        with ExitStack() as stack:
            stack.enter_context(fleet_lock(settings.state_dir, settings.fleet))
            self._connection = stack.enter_context(Connection(settings, self._ports))
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._wake()
        if self._thread.is_alive():
            self._thread.join()
        self._open.close()

    # ---- methods that the agent's thread calls

    def start(self) -> None:
        """Start the thread, unless it runs."""
        if self._thread.ident is None:
            self._thread.start()

    def play(self, command: TrainCommand, *, tells_members: bool = False) -> None:
        """Begin the round of the site for a request.

        Args:
            command: The request, as the agent passes it to training.
            tells_members: Whether the hub knows `members` of a report.
        """
        self.busy = True
        self._last += 1
        self._requests.put(_HubRequest(self._last, command, tells_members))
        self._wake()

    def cancel(self) -> None:
        """End the current round: the hub does not want its update any more."""
        self._cancelled_to = self._last
        self._wake()

    # ---- the thread

    def _wake(self) -> None:
        self._connection.event_queue.put(UpdateWritten())

    def _run(self) -> None:
        try:
            site_dir, fleet = self._settings.site_dir, self._settings.fleet
            with Registry(site_dir / REGISTRY_FILE) as registry:
                guard = DirectoryGuard(site_dir, site_dir / REGISTRY_FILE, fleet_lock_file(site_dir, fleet))
                registry.guard(guard.check)
                registry.abandon_running(fleet)
                with ExitStack() as stack:
                    publisher = make_publisher(fleet, site_dir, self._connection, served=self._served, guard=guard)
                    stack.callback(_close, publisher)
                    self._loop(registry, publisher, guard)
        except BaseException as error:
            _log.critical(
                "the site's coordinator cannot go on: %s", error, exc_info=not isinstance(error, FedpatchError)
            )
            self._on_fault()

    def _loop(self, registry: Registry, publisher: ModelPublisher, guard: DirectoryGuard) -> None:
        queue = self._connection.event_queue
        self._began_at = time.monotonic()
        while not self._closing.is_set():
            self._connection.must_lead()
            guard.check()
            self._tell(registry)
            with suppress(Empty):
                event = queue.get(timeout=_IDLE_S)
                self._note(event)
                self._take(event, publisher)
            publisher.drain()
            with suppress(Empty):
                request = self._requests.get_nowait()
                self._playing = request.number
                self._play(request, registry, publisher, guard)

    def _take(self, event: Event, publisher: ModelPublisher) -> None:
        """Handle an event between two rounds, of which `_note` has taken the presences."""
        connection = self._connection
        match event:
            case Connected():
                publisher.retain = event.retain_available
                if connection.link.idle:
                    publisher.republish()
                connection.announce(online=True)
            case Disconnected(reason=reason):
                _log.warning("site: broker: %s; trying again", reason)
            case AdmittedMessage():
                connection.ingress_filter.took(len(event.payload))
                connection.ingress_filter.take_dropped()

    def _note(self, event: Event) -> None:
        """Note presences and the state of the connection, during rounds and between them."""
        match event:
            case Connected():
                self._presences.connected = True
                self._fit_chunks(event.max_packet_bytes)
            case Disconnected():
                self._presences.connected = False
            case AdmittedMessage() if event.topic.kind == "device_state":
                self._note_presence(event.topic.device, event.payload)

    def _note_presence(self, device: str, payload: bytes) -> None:
        with suppress(WireError):
            body = decode(payload).body
            if isinstance(body, DeviceState):
                self._presences.note(device, body)
                self._connection.ingress_filter.knows(device)

    def _fit_chunks(self, max_packet_bytes: int | None) -> None:
        """Make the chunks of the next rounds smaller if the broker came back with a lower limit."""
        connection = self._connection
        try:
            connection.chunk_bytes = chunk_bytes_within(connection.chunk_bytes, max_packet_bytes)
        except BrokerError as error:
            _log.error("site: %s", error)

    def _tell(self, registry: Registry, *, at_once: bool = False) -> None:
        """Have the agent publish the site's figures if they have changed, at most every _TELL_EVERY_S unless `at_once`."""
        now, presences = time.monotonic(), self._presences
        if now < self._tell_at and not at_once:
            return
        self._tell_at = now + _TELL_EVERY_S
        presences.held = self._revocations.poll(presences.states) | registry.holds.held(self._settings.fleet).keys()
        found = presences.summary()
        if self._told is not None and self.busy:
            found = found.at_least(self._told)
        if found == self._told:
            return
        # The presences of the site arrive right after the connection. Until then the relay is a starting device: a hub
        # that repeats the request of a killed relay waits for it. A decline sent earlier, such as one of a masked round for
        # lack of a group, would be the relay's answer to that request.
        if self._told is None and now < self._began_at + _SETTLE_S and not self._is_settled(found, now):
            return
        self._told = self.summary = found
        schema = self._model.schema
        _log.info(
            "site: %d devices, %d training examples%s",
            found.members if found.num_examples else 0,
            found.num_examples,
            f"; not willing: {found.unwilling}" if found.unwilling else "",
        )
        self._events(
            Ready(
                self._model.task.name,
                schema.digest,
                found.num_examples,
                schema.specs,
                schema.frozen,
                members=found.members,
            )
        )

    def _is_settled(self, found: SiteSummary, now: float) -> bool:
        """Return whether the site is willing, and no presence has changed it for a while."""
        if found != self._seen:
            self._seen, self._seen_at = found, now
        return found.unwilling is None and now >= self._seen_at + _QUIET_S

    # ---- a round

    @property
    def _is_cancelled(self) -> bool:
        return self._playing <= self._cancelled_to

    def _interruption(self) -> Interrupted | Suspended | None:
        """Return Interrupted after the hub's cancel, Suspended when the relay ends (devices continue), else None."""
        if self._closing.is_set():
            return Suspended()
        return Interrupted() if self._is_cancelled else None

    def _play(self, request: _HubRequest, registry: Registry, publisher: ModelPublisher, guard: DirectoryGuard) -> None:
        key = request.command.key
        try:
            self._events(self._played(request, registry, publisher, guard))
        except (SchemaMismatch, WireError) as error:
            self._events(TrainFailed(key, FailReason.DOWNLOAD, str(error)))
        except (StateError, OSError) as error:
            self._events(TrainFailed(key, FailReason.STORAGE, str(error)))
        except FedpatchError as error:
            self._events(TrainFailed(key, FailReason.TRAINING, str(error)))

    def _played(
        self, request: _HubRequest, registry: Registry, publisher: ModelPublisher, guard: DirectoryGuard
    ) -> TrainerEvent:
        """Run the round of a request and return the agent's event."""
        command, tells_members = request.command, request.tells_members
        key = command.key
        if self._is_cancelled:
            return TrainCancelled(key)
        if not is_usable_run(key.run):
            return TrainFailed(key, FailReason.STORAGE, f"the run's name {key.run!r} cannot be that of a folder here")
        directory = run_directory(self._settings.site_dir, key.run)
        if not command.evaluate and (known := SiteUpdate.find(directory, command)) is not None:
            _log.info("%s round %d: the site's update is there already", key.run, key.round)
            return self._deliver(command, *known)
        left_s = command.ends_at - time.monotonic()
        if left_s < LEAST_S:
            return TrainFailed(
                key, FailReason.DEADLINE, f"{max(0.0, left_s):.0f} s are too short for a round of the site"
            )
        hub_round = HubRound.of(command, self._model, self._connection.chunk_bytes)
        self._tell(registry, at_once=True)
        player = RoundPlayer(
            self._settings,
            self._connection,
            registry,
            publisher,
            self._revocations,
            guard,
            events=self._events,
            note=self._note,
        )
        played = player.play(
            hub_round, self._presences, left_s, tells_members=tells_members, interruption=self._interruption
        )
        if played.answer is not None:
            return self._deliver(command, *played.answer)
        if self._interruption() is not None:
            return TrainCancelled(key)
        record, least = played.record, self._settings.min_cohort
        if record is not None and record.outcome == "evaluated":
            if record.reported >= least:
                evaluation = site_evaluation(record, command.base, least=least, tells_members=tells_members)
                return Evaluated(key, evaluation)
            return TrainFailed(key, FailReason.DEADLINE, f"{record.reported} of {least} devices of the site measured")
        words = plain_failure(record) if record is not None else "no round began: the devices of the site are gone"
        unwilling = record is None or record.declined > 0 or not record.accepted
        late = record is not None and record.failure == "quorum_missed" and record.accepted >= record.needed
        reason = FailReason.DEADLINE if late else FailReason.UNWILLING if unwilling else FailReason.TRAINING
        return TrainFailed(key, reason, f"the round of the site failed: {words}")

    def _deliver(self, command: TrainCommand, answer: SiteUpdate, blob: bytes) -> Trained:
        """Write the update to the path in the command."""
        path = Path(command.update_path)
        with refusals_of(path):
            make_directory(path.parent)
            write_atomic(path, blob)
        return Trained(command.key, answer.manifest, answer.report)


def _close(publisher: ModelPublisher) -> None:
    with suppress(FedpatchError, OSError):
        publisher.close()
