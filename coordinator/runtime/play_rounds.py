"""The rounds of a run: the parts of the process around its engine, and the event for the engine when one of them fails."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from functools import partial

from fedpatch.coordinator.blobs.served_models import open_served
from fedpatch.coordinator.guard.quarantine import Quarantine
from fedpatch.coordinator.guard.revocations import Revocations
from fedpatch.coordinator.guard.stop_request import StopRequest
from fedpatch.coordinator.observability.event_observer import joined
from fedpatch.coordinator.observability.metrics_endpoint import observed, of_others
from fedpatch.coordinator.observability.round_tracing import traced
from fedpatch.coordinator.observability.round_tracking import tracked
from fedpatch.coordinator.rounds.run_engine import Engine, drive_engine
from fedpatch.coordinator.rounds.run_events import Interrupted, Suspended
from fedpatch.coordinator.rounds.termination import Stopped
from fedpatch.coordinator.runtime.aggregator import Aggregator
from fedpatch.coordinator.runtime.connected_run import ConnectedRun
from fedpatch.coordinator.runtime.connection import Connection
from fedpatch.coordinator.runtime.device_counters import DeviceCounters
from fedpatch.coordinator.runtime.effect_runner import EffectRunner
from fedpatch.coordinator.runtime.engine_at_start import engine_at_start
from fedpatch.coordinator.runtime.event_queue import UpdateWritten
from fedpatch.coordinator.runtime.fleet_publisher import make_publisher
from fedpatch.coordinator.runtime.model_publisher import ModelPublisher
from fedpatch.coordinator.runtime.resumed_rounds import return_words
from fedpatch.coordinator.runtime.run_opening import RunOpening
from fedpatch.coordinator.runtime.run_places import run_directory
from fedpatch.coordinator.runtime.service import Service
from fedpatch.coordinator.runtime.update_store import THREADS, UpdateStore
from fedpatch.coordinator.storage.directory_guard import DirectoryGuard
from fedpatch.shared.app.formatting import printable
from fedpatch.shared.errors import (
    FedpatchError,
    LeadershipLost,
    StateDirectoryLost,
    StateError,
    StateUnreadable,
    StoreUnavailable,
)


def play_rounds(run: ConnectedRun, opening: RunOpening) -> Stopped:
    """Run the rounds until the engine stops, and return its reason.

    Raises:
        LeadershipLost: Another coordinator leads the fleet.
        FedpatchError, OSError: A part of the process has failed.
    """
    spec, settings, registry, connection = run.spec, run.settings, run.registry, run.connection
    ports, guard, blobs = connection.ports, opening.guard, opening.blobs
    state_dir = settings.state_dir.absolute()
    directory = run_directory(state_dir, spec.run)
    registry.none_online(settings.fleet)
    quarantine = Quarantine(registry, settings.fleet, settings.quarantine_after, run.view.say, settings.max_devices)
    engine = engine_at_start(run, opening, quarantine.held)
    served = open_served(settings.models_store, settings.models_url, settings.fleet, spec.policy.deadline_s)
    publisher = make_publisher(settings.fleet, state_dir, connection, blobs=blobs, served=served, guard=guard)
    connection.ingress_filter.expect(spec.max_blob_bytes, spec.chunk_bytes)
    revocations = Revocations(settings.ca_directory, settings.fleet)
    certificates = of_others(revocations, lambda: connection.broker_certificate_ends)

    def say(line: str) -> None:
        run.view.say(printable(line))

    if words := return_words(spec, opening.unfinished):
        say(words)
    counters = DeviceCounters(registry, settings.fleet, spec, quarantine, say, ports.unix_time)
    aggregator = Aggregator(
        opening.state,
        blobs,
        directory,
        run.prepared,
        spec,
        say,
        opening=opening.unfinished,
        entropy=ports.entropy,
    )
    with ExitStack() as stack:
        stack.callback(_close, publisher, connection)
        trackers = stack.enter_context(tracked(settings, engine, say))
        tracer = stack.enter_context(traced(settings, spec, say))
        meter = stack.enter_context(
            observed(settings, engine, directory, run.view, certificates, connection.event_queue.ending)
        )
        updates = UpdateStore(
            blobs,
            registry,
            engine,
            requirements=aggregator.requirements,
            counters=counters,
            executor=stack.enter_context(ports.executor(max(THREADS, blobs.concurrency), "fedpatch-store")),
            wake=partial(connection.event_queue.put, UpdateWritten()),
            events_waiting=connection.event_queue.waiting,
        )
        runner = EffectRunner(
            engine,
            connection=connection,
            publisher=publisher,
            aggregator=aggregator,
            updates=updates,
            counters=counters,
            say=say,
            observer=joined(meter, trackers, tracer),
        )
        service = Service(
            engine,
            runner,
            connection=connection,
            publisher=publisher,
            view=run.view,
            revocations=revocations,
            quarantine=quarantine,
            stop_request=StopRequest(directory),
            guard=guard,
        )
        _serve(service, engine, runner, connection, guard)
    return engine.stopped or Stopped.FAILED


def _serve(
    service: Service, engine: Engine, runner: EffectRunner, connection: Connection, guard: DirectoryGuard
) -> None:
    """Run the service. If it fails, devices continue their work where a resume can take it, else they are cancelled."""
    try:
        service.run()
        guard.check()
    except (FedpatchError, OSError) as error:
        connection.must_lead()
        if isinstance(error, LeadershipLost):
            raise
        if not isinstance(error, StateUnreadable):
            guard.check()  # it is the cause of other errors
        if isinstance(error, StateDirectoryLost):
            raise
        event = Suspended() if isinstance(error, StateError | StoreUnavailable | OSError) else Interrupted()
        with suppress(FedpatchError, OSError):
            drive_engine(engine, engine.handle(event, now := connection.ports.clock()), runner, lambda: now)
        raise


def _close(publisher: ModelPublisher, connection: Connection) -> None:
    with suppress(FedpatchError, OSError):
        connection.must_lead()
        publisher.close()
