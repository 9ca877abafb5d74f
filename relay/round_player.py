"""Runs one round with the devices of the site, by the coordinator's engine and event loop, on a connection that stays open."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from fedpatch.coordinator.blobs.blob_store import FileBlobs
from fedpatch.coordinator.guard.quarantine import Quarantine
from fedpatch.coordinator.guard.revocations import Revocations
from fedpatch.coordinator.masking.masked_groups import RunGroups
from fedpatch.coordinator.observability.status_message import StatusMessage
from fedpatch.coordinator.rounds.held_devices import DRAINED
from fedpatch.coordinator.rounds.round_journal import RoundStart
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.rounds.run_engine import Engine, drive_engine
from fedpatch.coordinator.rounds.run_events import Interrupted, LinkChanged, Suspended
from fedpatch.coordinator.rounds.run_spec import RunSpec
from fedpatch.coordinator.runtime.connection import Connection
from fedpatch.coordinator.runtime.device_counters import DeviceCounters
from fedpatch.coordinator.runtime.effect_runner import EffectRunner
from fedpatch.coordinator.runtime.event_queue import Event, UpdateWritten
from fedpatch.coordinator.runtime.model_publisher import ModelPublisher
from fedpatch.coordinator.runtime.resumed_rounds import resume_round
from fedpatch.coordinator.runtime.run_places import run_directory
from fedpatch.coordinator.runtime.service import Service
from fedpatch.coordinator.runtime.update_store import THREADS, UpdateStore
from fedpatch.coordinator.storage.directory_guard import DirectoryGuard
from fedpatch.coordinator.storage.guarded_blobs import GuardedBlobs
from fedpatch.coordinator.storage.run_registry import Registry
from fedpatch.device_agent.job.job_effects import JobKey
from fedpatch.device_agent.job.training_messages import TrainProgress
from fedpatch.device_agent.runtime.training_supervisor import TrainerEvent
from fedpatch.relay.settings import RelaySettings
from fedpatch.relay.site_members import Needs, Presences
from fedpatch.relay.site_round import HubRound
from fedpatch.relay.site_update import SiteAggregator, SiteUpdate
from fedpatch.shared.app.files import make_directory, refusals_of
from fedpatch.shared.app.formatting import printable
from fedpatch.shared.errors import FedpatchError

_log = logging.getLogger("fedpatch.relay")

Interruption = Callable[[], Interrupted | Suspended | None]


@dataclass(frozen=True)
class PlayedRound:
    """The outcome of a round of the site.

    Attributes:
        record: Its record; None if no round began or the round was interrupted.
        answer: The relay's update, with its bytes; None without one.
    """

    record: RoundRecord | None
    answer: tuple[SiteUpdate, bytes] | None


def site_engine(
    spec: RunSpec,
    presences: Presences,
    needs: Needs,
    *,
    earlier: Sequence[RoundRecord] = (),
    unfinished: RoundStart | None,
    jitter: random.Random,
    holds: Mapping[str, str],
    groups: RunGroups | None = None,
) -> Engine:
    """Return the engine of a round with the devices that the round asks; for an unfinished round, with all that are online.

    The quorum is a share of the devices that the hub knows of. With others, such as unwilling ones, it could exceed the
    number of devices that can report.

    Args:
        presences: The devices of the site.
        needs: The needs of the hub's request.
        earlier: Records of the run's earlier rounds in the site; devices that were absent there need not report in this one.
        unfinished: The start of this round if a killed relay left it open; else None.
        jitter: Randomness of pauses.
        holds: Devices that are held back, each with the kind of the hold.
        groups: The masked groups of the run in the site.
    """
    engine = Engine(spec, earlier=earlier, unfinished=unfinished, jitter=jitter, holds=holds, groups=groups)
    for device in sorted(presences.asked(needs) if unfinished is None else presences.states):
        engine.fleet.update(device, engine.fleet.relevant(presences.states[device]))
    engine.note_restarted(presences.restarted)
    return engine


class RoundPlayer:
    """Runs the rounds of a relay, one at a time.

    Args:
        settings: The relay's settings.
        connection: The connection to the site's broker.
        registry: The registry of the site.
        publisher: Publishes models in the site.
        revocations: The revoked devices of the site.
        guard: Watches the state directory: nothing is written once it is lost.
        events: Takes the progress of a round.
        note: Takes each event of the connection before the round handles it.
    """

    def __init__(
        self,
        settings: RelaySettings,
        connection: Connection,
        registry: Registry,
        publisher: ModelPublisher,
        revocations: Revocations,
        guard: DirectoryGuard,
        *,
        events: Callable[[TrainerEvent], None],
        note: Callable[[Event], None],
    ) -> None:
        self._settings = settings
        self._connection = connection
        self._registry = registry
        self._publisher = publisher
        self._revocations = revocations
        self._guard = guard
        self._events = events
        self._note = note
        self._ports = connection.ports

    def play(
        self,
        hub_round: HubRound,
        presences: Presences,
        left_s: float,
        *,
        tells_members: bool,
        interruption: Interruption,
    ) -> PlayedRound:
        """Run the round of a request to its end; continue it if a killed relay left it open.

        Args:
            presences: The devices of the site.
            left_s: Time to the hub's deadline, in seconds.
            tells_members: Whether the hub knows `members` of a report.
            interruption: Returns the event that ends the round early; None while the round continues.

        Raises:
            StateError, OSError: The disk refused. The devices continue their work, so that the round can be resumed.
            BrokerError: The site's broker refuses the model.
        """
        command = hub_round.command
        directory = run_directory(self._settings.site_dir, command.key.run)
        self._guard.check()
        with refusals_of(directory):
            make_directory(directory)
        spec = hub_round.spec(self._settings, self._epoch_of(hub_round), left_s)
        quarantine = Quarantine(
            self._registry,
            self._settings.fleet,
            self._settings.quarantine_after,
            _say,
            self._settings.max_devices,
            always=dict.fromkeys(presences.circles, DRAINED),
        )
        unfinished = self._opening(hub_round, spec, directory)
        engine = site_engine(
            spec,
            presences,
            Needs.of(command.plan, command.secure, evaluates=command.evaluate),
            earlier=self._registry.rounds.records(command.key.run),
            unfinished=unfinished,
            jitter=random.Random(self._ports.entropy.getrandbits(64)),
            holds=quarantine.held,
            groups=RunGroups(spec.seed, self._registry.rounds.groups(command.key.run)),
        )
        presences.restarted.clear()
        aggregator = SiteAggregator(
            hub_round,
            directory,
            spec,
            _say,
            tells_members=tells_members,
            opened=lambda: engine.open,
            now=self._ports.clock,
        )
        self._conduct(
            hub_round, engine, aggregator, quarantine, connected=presences.connected, interruption=interruption
        )
        return PlayedRound(engine.records[-1] if engine.records else None, aggregator.answer)

    def _epoch_of(self, hub_round: HubRound) -> int:
        """Return the epoch of the round; the run of the hub is added to the registry at its first round here."""
        run, prepared = hub_round.command.key.run, hub_round.prepared
        if any(one.id == run for one in self._registry.runs()):
            self._registry.reopen(run)
            return self._registry.next_epoch(run)
        made = self._registry.create_run(
            created_at=self._ports.unix_time(),
            task=prepared.task.name,
            strategy=prepared.strategy.name,
            private=str(prepared.policy),
            settings={"fleet": self._settings.fleet, "parent": self._settings.up_fleet},
            schema=prepared.schema.digest,
            run=run,
        )
        return made.epoch

    def _opening(self, hub_round: HubRound, spec: RunSpec, directory: Path) -> RoundStart | None:
        """Return the start of this round if a killed relay left it open. Any other open round is rolled back."""
        run, number = spec.run, hub_round.command.key.round
        journal = self._registry.rounds.unfinished(run, self._ports.boot_time())
        again = any(record.round >= number for record in self._registry.rounds.records(run))
        # An evaluate round leaves nothing open, so an open round is not this one.
        other = journal is not None and (
            hub_round.command.evaluate or (journal.round, journal.base) != (number, hub_round.command.base)
        )
        if again or other:
            first = min(number, journal.round) if journal is not None else number
            self._registry.rounds.roll_back(run, first - 1)
        opening = resume_round(
            self._registry,
            FileBlobs(directory),
            spec,
            hub_round.prepared,
            hub_round.prepared.initial,
            _say,
            self._ports.boot_time(),
        )
        if opening is not None and opening.terms != hub_round.command.secure:
            # The hub has restarted the round with another cohort: sums under different terms cannot be added.
            self._registry.rounds.roll_back(run, number - 1)
            return None
        # The hub's deadline decides the remaining time.
        return None if opening is None else replace(opening, journal=replace(opening.journal, spent_s=0.0))

    def _conduct(
        self,
        hub_round: HubRound,
        engine: Engine,
        aggregator: SiteAggregator,
        quarantine: Quarantine,
        *,
        connected: bool,
        interruption: Interruption,
    ) -> None:
        """Run the coordinator's event loop until the round is over."""
        connection, settings, ports, spec = self._connection, self._settings, self._ports, engine.spec
        connection.ingress_filter.expect(spec.max_blob_bytes, spec.chunk_bytes)
        counters = DeviceCounters(self._registry, settings.fleet, spec, quarantine, _say, ports.unix_time)
        with ports.executor(THREADS, "fedpatch-store") as executor:
            updates = UpdateStore(
                GuardedBlobs(FileBlobs(run_directory(settings.site_dir, spec.run)), self._guard),
                self._registry,
                engine,
                requirements=aggregator.requirements,
                counters=counters,
                executor=executor,
                wake=partial(connection.event_queue.put, UpdateWritten()),
                events_waiting=connection.event_queue.waiting,
            )
            runner = EffectRunner(
                engine,
                connection=connection,
                publisher=self._publisher,
                aggregator=aggregator,
                updates=updates,
                counters=counters,
                say=_say,
            )
            service = Service(
                engine,
                runner,
                connection=connection,
                publisher=self._publisher,
                view=_SiteProgress(hub_round.command.key, self._events),
                revocations=self._revocations,
                quarantine=quarantine,
                guard=self._guard,
            )
            clock = connection.event_queue.now_is_present
            try:
                with service.started():
                    if not connected:
                        drive_engine(engine, engine.handle(LinkChanged(connected=False), clock()), runner, clock)
                    while not engine.stopped:
                        if (event := interruption()) is not None:
                            drive_engine(engine, engine.handle(event, clock()), runner, clock)
                        else:
                            self._step(service)
            except (FedpatchError, OSError):
                with suppress(FedpatchError, OSError):
                    drive_engine(engine, engine.handle(Suspended(), clock()), runner, clock)
                raise

    def _step(self, service: Service) -> None:
        """Have the next event noted, and then handled by the round."""
        event = service.next_event()
        if event is not None:
            self._note(event)
        service.take(event)


class _SiteProgress:
    """Reports the progress of the site's round to the hub: updates received, of those needed."""

    def __init__(self, key: JobKey, events: Callable[[TrainerEvent], None]) -> None:
        self._key = key
        self._events = events
        self._shown = 0

    def show(self, message: StatusMessage) -> None:
        """Report a further update to the agent."""
        status = message.status
        if status.reported > self._shown and status.needed:
            self._shown = status.reported
            self._events(TrainProgress(self._key, min(status.reported, status.needed), status.needed))

    def say(self, line: str) -> None:
        """Log a line."""
        _say(line)


def _say(line: str) -> None:
    _log.info("site: %s", printable(line))
