"""Begins a run, or takes one up again: puts registry, checkpoint, link, engine and service together."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from fedpatch.coordinator.guard.quarantine import Quarantine
from fedpatch.coordinator.guard.revocations import Revocations
from fedpatch.coordinator.observability.metrics_endpoint import observed, of_others
from fedpatch.coordinator.observability.status_message import View
from fedpatch.coordinator.rounds.participant_transitions import RoundStart
from fedpatch.coordinator.rounds.run_engine import Engine, run_effects
from fedpatch.coordinator.rounds.run_events import Interrupted, Suspended
from fedpatch.coordinator.rounds.run_records import RoundRecord, RunInfo, RunSummary, last_user_accuracy, summary_of
from fedpatch.coordinator.rounds.run_spec import RunSpec, Stopped
from fedpatch.coordinator.runtime.aggregator import Aggregator
from fedpatch.coordinator.runtime.connection import REAL, Connection, Ports
from fedpatch.coordinator.runtime.device_counters import DeviceCounters
from fedpatch.coordinator.runtime.effect_runner import EffectRunner, printable
from fedpatch.coordinator.runtime.fleet_claim import fleet_lock_file
from fedpatch.coordinator.runtime.model_publisher import ModelPublisher
from fedpatch.coordinator.runtime.resume import reconcile, seen_devices, take_up_round
from fedpatch.coordinator.runtime.run_preparation import Prepared, run_spec
from fedpatch.coordinator.runtime.service import Service
from fedpatch.coordinator.runtime.update_store import THREADS, UpdateStore, UpdateWritten
from fedpatch.coordinator.settings import RunSettings
from fedpatch.coordinator.storage.checkpoint import export_model, load_checkpoint, save_checkpoint
from fedpatch.coordinator.storage.database import exists
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.shared.app.files import check_state_directory, make_directory, refusals_of
from fedpatch.shared.app.locks import FileLock
from fedpatch.shared.config.load import load, public_values
from fedpatch.shared.errors import FedpatchError, SchemaMismatch, StateError, UsageError
from fedpatch.shared.mqtt.broker_settings import BrokerSettings


def run_directory(state_dir: Path, run: str) -> Path:
    """Where a run keeps its checkpoints, updates and model."""
    return state_dir / "runs" / run


def _fleet_lock(state_dir: Path, fleet: str) -> FileLock:
    held = f"{state_dir}: another fedpatch is working with fleet {fleet!r}; wait for it, or end it first"
    with refusals_of(state_dir):
        check_state_directory(state_dir)
        return FileLock(fleet_lock_file(state_dir, fleet), held)


def run_or_go_on(
    settings: RunSettings, view: View, *, new: bool = False, unless_done: bool = False, ports: Ports = REAL
) -> RunSummary:
    """Takes up the fleet's last run if it did not come to its end and has these settings; else begins one.

    So a service that is started again goes on where it was. With `new` a run is begun in any case; with `unless_done` none
    where the last run has these settings and came to its end: what it came to is returned, and no broker is asked.
    """
    if new and unless_done:
        raise UsageError("--new begins a run in any case, and --unless-done does not: use one of them")
    registry_file = settings.state_dir.absolute() / REGISTRY_FILE
    if not new and exists(registry_file):
        with Registry(registry_file) as registry:
            last = registry.newest(settings.fleet)
            done = last is not None and last.status == "finished"
            in_vain = done and last is not None and summary_of(last, registry.rounds.records(last.id)).in_vain
            if last is not None and _same_terms(last, settings):
                if not done:
                    view.say(f"run {last.id} was not finished; going on with it (--new begins another)")
                    return _go_on(registry, last, settings, view, ports)
                if unless_done and not in_vain:
                    why = f"{last.stopped_because}; other settings, or --new, begin another"
                    view.say(f"run {last.id} with these settings has come to its end: {why}")
                    return summary_of(last, registry.rounds.records(last.id))
        if last is not None and not done:
            other = f"`fedpatch resume {last.id}` goes on with it"
            view.say(f"run {last.id} was not finished and has other settings, so a new one begins; {other}")
    return start_run(settings, view, ports)


def start_run(settings: RunSettings, view: View, ports: Ports = REAL) -> RunSummary:
    """A new run, to its end. Raises UsageError before anything is written, BrokerError when the broker cannot be reached."""
    prepared = ports.prepare(settings)
    state_dir = settings.state_dir.absolute()
    with ExitStack() as locks, ExitStack() as stack:
        # A broker that does not answer leaves no trace; but a coordinator at work is not to be disturbed even by connecting.
        fresh = not state_dir.exists()
        if not fresh:
            locks.enter_context(_fleet_lock(state_dir, settings.fleet))
        connection = stack.enter_context(Connection(settings, ports))
        if fresh:
            with refusals_of(state_dir):
                make_directory(state_dir)
            locks.enter_context(_fleet_lock(state_dir, settings.fleet))
        ports.remember(state_dir)
        with Registry(state_dir / REGISTRY_FILE) as registry:
            registry.abandon_running(settings.fleet)
            run = registry.create_run(
                created_at=ports.unix_time(),
                suffix=f"{ports.entropy.getrandbits(24):06x}",
                task=prepared.task.name,
                strategy=prepared.strategy.name,
                private=str(prepared.policy),
                settings=public_values(_from_anywhere(settings)),
                schema=prepared.schema.digest,
            )
            directory = run_directory(state_dir, run.id)
            make_directory(directory)
            save_checkpoint(directory, prepared.initial, prepared.public, {})
            view.say(f"run {run.id}: {prepared.task.name}, {prepared.strategy.name}, private {prepared.policy}")
            spec = run_spec(run.id, run.epoch, settings, prepared, connection.chunk_bytes)
            return _play(spec, settings, prepared, registry, connection, view)


def resume_run(  # noqa: PLR0913 - one keyword per choice of the user
    state_dir: Path,
    name: str,
    view: View,
    *,
    broker: str | None = None,
    password: str | None = None,
    password_file: Path | None = None,
    rounds: int | None = None,
    target_ua: float | None = None,
    metrics: str | None = None,
    encoding: str | None = None,
    insecure: bool = False,
    ports: Ports = REAL,
) -> RunSummary:
    """Takes a run up where it was, with its own settings except those given here."""
    state_dir = state_dir.absolute()
    with Registry(state_dir / REGISTRY_FILE) as registry:
        run = registry.run(name)
        changes: dict[str, Any] = {"broker": broker, "rounds": rounds, "target_ua": target_ua, "metrics": metrics}
        changes |= {"encoding": encoding, "insecure": insecure or None}
        changes["password_file"] = str(password_file.absolute()) if password_file else None
        flags = {**run.settings, **{name: value for name, value in changes.items() if value is not None}}
        settings = load(RunSettings, file=None, environ={}, flags={**flags, "state_dir": str(state_dir)})
        # A password that is given now replaces the file that the run began with.
        settings = replace(settings, password=password, password_file=None) if password else settings
        return _go_on(registry, run, settings, view, ports)


def _go_on(registry: Registry, run: RunInfo, settings: RunSettings, view: View, ports: Ports) -> RunSummary:
    state_dir = settings.state_dir.absolute()
    prepared = ports.prepare(settings)
    if prepared.schema.digest != run.schema:
        raise SchemaMismatch(
            f"task {run.task!r} has schema {prepared.schema.digest[:12]} now, but run {run.id} was begun with "
            f"{run.schema[:12]}; install the version of the task that it was begun with, or start a new run"
        )
    with _fleet_lock(state_dir, settings.fleet), Connection(settings, ports) as connection:
        reconcile(registry, run.id, run_directory(state_dir, run.id), prepared, view.say)
        registry.reopen(run.id)
        epoch = registry.next_epoch(run.id)
        last = max((record.round for record in registry.rounds.records(run.id)), default=0)
        view.say(f"run {run.id}: going on after round {last}, epoch {epoch}")
        if run.settings.get("encoding", settings.encoding) != settings.encoding:
            view.say(f"what travels is {settings.encoding} now; the run began with {run.settings['encoding']}")
        spec = run_spec(run.id, epoch, settings, prepared, connection.chunk_bytes)
        return _play(spec, settings, prepared, registry, connection, view)


def _same_terms(run: RunInfo, settings: RunSettings) -> bool:
    """Whether a run was begun with these settings, but for how things travel, where they are reached, and who is waited for."""
    anywhere = {one.name for one in fields(BrokerSettings)} | {"encoding", "state_dir", "ca_dir"}
    anywhere |= {"metrics", "metrics_max_devices", "devices", "wait_s", "deadline_s", "independent_every"}
    # A protection whose default has changed: a run of an earlier version goes on, protected from now on.
    anywhere |= {"norm_bound"}
    now = public_values(settings)
    return all(run.settings[name] == now[name] for name in now.keys() & run.settings.keys() - anywhere)


def _from_anywhere(settings: RunSettings) -> RunSettings:
    """What is kept for a resume, which may be called in another directory."""
    files = {name: getattr(settings, name) for name in ("ca_file", "cert_file", "key_file", "ca_dir", "password_file")}
    return replace(settings, **{name: path.absolute() for name, path in files.items() if path is not None})


def _play(
    spec: RunSpec, settings: RunSettings, prepared: Prepared, registry: Registry, connection: Connection, view: View
) -> RunSummary:
    """To the end, which is written down whatever it is; what is told is what lies on the disk, as a resume finds it."""
    directory = run_directory(settings.state_dir.absolute(), spec.run)
    stopped = Stopped.FAILED
    try:
        stopped = _play_rounds(spec, settings, prepared, registry, connection, view)
    except (FedpatchError, OSError) as error:
        view.say(f"the run cannot go on: {error}")
    model = _export(directory, prepared, view)
    records = registry.rounds.records(spec.run)
    user_accuracy = last_user_accuracy(records)
    try:
        registry.finish_run(spec.run, stopped_because=stopped, user_accuracy=user_accuracy, model=model)
    except StateError as error:  # it stays a run that was cut short, as after a power cut
        view.say(str(error))
    return RunSummary(spec.run, stopped.value, user_accuracy, model, records)


def _play_rounds(
    spec: RunSpec, settings: RunSettings, prepared: Prepared, registry: Registry, connection: Connection, view: View
) -> Stopped:
    state_dir = settings.state_dir.absolute()
    directory = run_directory(state_dir, spec.run)
    state = load_checkpoint(directory)[0]
    unfinished = take_up_round(registry, directory, spec, prepared, state, view.say, connection.ports.boot_time())
    records = registry.rounds.records(spec.run)
    quarantine = Quarantine(registry, settings.fleet, settings.quarantine_after, view.say, settings.max_devices)
    engine = _engine(spec, registry, connection, records, unfinished, quarantine.held)
    publisher = _publisher(settings.fleet, state_dir, connection)
    connection.door.expect(spec.max_blob_bytes, spec.chunk_bytes)
    revocations = Revocations(settings.ca_directory, settings.fleet)
    certificates = of_others(revocations, lambda: connection.broker_certificate_ends)

    def say(line: str) -> None:
        view.say(printable(line))

    counters = DeviceCounters(registry, settings.fleet, spec, quarantine, say, connection.ports.unix_time)
    aggregator = Aggregator(state, directory, prepared, spec, say)
    with ExitStack() as stack:
        stack.callback(_close, publisher)
        observer = stack.enter_context(observed(settings, engine, directory, view, certificates))
        updates = UpdateStore(
            directory,
            registry,
            engine,
            requirements=aggregator.requirements,
            counters=counters,
            executor=stack.enter_context(connection.ports.executor(THREADS, "fedpatch-store")),
            wake=lambda: connection.inbox.put(UpdateWritten()),
        )
        runner = EffectRunner(
            engine,
            connection=connection,
            publisher=publisher,
            aggregator=aggregator,
            updates=updates,
            counters=counters,
            say=say,
            observer=observer,
        )
        try:
            Service(
                engine,
                runner,
                connection=connection,
                publisher=publisher,
                view=view,
                revocations=revocations,
                quarantine=quarantine,
            ).run()
        except (FedpatchError, OSError) as error:
            event = Suspended() if isinstance(error, StateError | OSError) else Interrupted()
            with suppress(FedpatchError, OSError):
                run_effects(engine, engine.handle(event, now := connection.ports.clock()), runner, lambda: now)
            raise
    return engine.stopped or Stopped.FAILED


def _engine(
    spec: RunSpec,
    registry: Registry,
    connection: Connection,
    records: Sequence[RoundRecord],
    unfinished: RoundStart | None,
    holds: Mapping[str, str],
) -> Engine:
    """What other runs of the fleet have open is theirs: updates for that wait."""
    fleet = connection.fleet
    resumable = {run: number for run, number in registry.open_rounds(fleet).items() if run != spec.run}
    jitter = random.Random(connection.ports.entropy.getrandbits(64))
    seen = seen_devices(registry, spec, fleet) if spec.epoch > 1 else ()
    return Engine(
        spec, records=records, unfinished=unfinished, resumable=resumable, jitter=jitter, holds=holds, seen=seen
    )


def _publisher(fleet: str, state_dir: Path, connection: Connection) -> ModelPublisher:
    """Notes of another broker are for whoever comes back to it."""
    broker = hashlib.sha256(str(connection.link.broker).encode()).hexdigest()[:8]
    return ModelPublisher(
        connection.link,
        fleet,
        state_dir / f"published-{fleet}-{broker}.txt",
        retain=connection.established.retain_available,
        clock=connection.ports.clock,
        sleep=connection.ports.sleep,
    )


def _close(publisher: ModelPublisher) -> None:
    with suppress(FedpatchError, OSError):
        publisher.close()


def _export(directory: Path, prepared: Prepared, view: View) -> str:
    """Path of the global model for other programs; empty where the disk refuses, which costs no more than that."""
    path = directory / "model.npz"
    try:
        tensors = load_checkpoint(directory)[0].tensors
        export_model(path, {name: tensors[name] for name in prepared.public.names})
    except (FedpatchError, OSError) as error:
        view.say(str(error))
        return ""
    return str(path)
