"""Begins a run, or takes one up again: puts registry, checkpoint, link, engine and service together."""

from __future__ import annotations

import hashlib
import random
import secrets
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from coordinator.checkpoint import drop_round, export_model, load_checkpoint, save_checkpoint
from coordinator.connection import Connection
from coordinator.engine import Engine
from coordinator.performing import Performer
from coordinator.preparation import Prepared, prepare, run_spec
from coordinator.publisher import ModelPublisher
from coordinator.records import RoundRecord, RunSummary, last_user_accuracy
from coordinator.registry import REGISTRY_FILE, Registry
from coordinator.run_spec import RunSpec, Stopped
from coordinator.service import Service
from coordinator.settings import RunSettings
from coordinator.snapshot import View
from coordinator.state_dirs import remember
from shared.config import load, public_values
from shared.errors import FedpatchError, SchemaMismatch
from shared.files import remove_unfinished
from shared.locks import FileLock
from shared.transfer import chunk_bytes_within


def run_directory(state_dir: Path, run: str) -> Path:
    """Where a run keeps its checkpoints, updates and model."""
    return state_dir / "runs" / run


def _fleet_lock(state_dir: Path, fleet: str) -> FileLock:
    held = f"{state_dir}: another fedpatch is working with fleet {fleet!r}; wait for it, or end it first"
    return FileLock(state_dir / f"fleet-{fleet}.lock", held)


def start_run(settings: RunSettings, view: View) -> RunSummary:
    """A new run, to its end. Raises UsageError before anything is written, BrokerError when the broker cannot be reached."""
    prepared = prepare(settings)
    state_dir = settings.state_dir.absolute()
    with ExitStack() as locks, ExitStack() as stack:
        # A broker that does not answer leaves no trace; but a coordinator at work is not to be disturbed even by connecting.
        fresh = not state_dir.exists()
        if not fresh:
            locks.enter_context(_fleet_lock(state_dir, settings.fleet))
        connection = stack.enter_context(Connection(settings))
        chunk_bytes = _chunk_bytes(settings, connection)
        if fresh:
            state_dir.mkdir(parents=True, exist_ok=True)
            locks.enter_context(_fleet_lock(state_dir, settings.fleet))
        remember(state_dir)
        with Registry(state_dir / REGISTRY_FILE) as registry:
            run = registry.create_run(
                created_at=time.time(),
                task=prepared.task.name,
                strategy=prepared.strategy.name,
                private=str(prepared.policy),
                settings=public_values(_from_anywhere(settings)),
                schema=prepared.schema.digest,
            )
            directory = run_directory(state_dir, run.id)
            directory.mkdir(parents=True)
            save_checkpoint(directory, prepared.initial, prepared.public, {})
            view.say(f"run {run.id}: {prepared.task.name}, {prepared.strategy.name}, private {prepared.policy}")
            spec = run_spec(run.id, run.epoch, settings, prepared, chunk_bytes)
            return _play(spec, settings, prepared, registry, connection, view)


def resume_run(
    state_dir: Path,
    name: str,
    view: View,
    *,
    broker: str | None = None,
    password: str | None = None,
    rounds: int | None = None,
    target_ua: float | None = None,
) -> RunSummary:
    """Takes a run up after its last completed round, with its own settings except those given here."""
    state_dir = state_dir.absolute()
    with Registry(state_dir / REGISTRY_FILE) as registry:
        run = registry.run(name)
        changes: dict[str, Any] = {"broker": broker, "rounds": rounds, "target_ua": target_ua}
        flags = {**run.settings, **{name: value for name, value in changes.items() if value is not None}}
        settings = load(RunSettings, file=None, environ={}, flags={**flags, "state_dir": str(state_dir)})
        settings = replace(settings, password=password)
        prepared = prepare(settings)
        if prepared.schema.digest != run.schema:
            raise SchemaMismatch(
                f"task {run.task!r} has schema {prepared.schema.digest[:12]} now, but run {run.id} was begun with "
                f"{run.schema[:12]}; install the version of the task that it was begun with, or start a new run"
            )
        with _fleet_lock(state_dir, settings.fleet), Connection(settings) as connection:
            chunk_bytes = _chunk_bytes(settings, connection)
            _catch_up(registry, run.id, load_checkpoint(run_directory(state_dir, run.id))[2])
            registry.reopen(run.id)
            epoch = registry.next_epoch(run.id)
            view.say(f"run {run.id}: going on after round {len(registry.rounds(run.id))}, epoch {epoch}")
            spec = run_spec(run.id, epoch, settings, prepared, chunk_bytes)
            return _play(spec, settings, prepared, registry, connection, view)


def _from_anywhere(settings: RunSettings) -> RunSettings:
    """What is kept for a resume, which may be called in another directory."""
    return replace(settings, ca_file=settings.ca_file.absolute()) if settings.ca_file else settings


def _chunk_bytes(settings: RunSettings, connection: Connection) -> int:
    return chunk_bytes_within(settings.chunk_kib * 1024, connection.established.max_packet_bytes)


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
    records = registry.rounds(spec.run)
    user_accuracy = last_user_accuracy(records)
    registry.finish_run(spec.run, stopped_because=stopped, user_accuracy=user_accuracy, model=model)
    return RunSummary(spec.run, stopped.value, user_accuracy, model, records)


def _play_rounds(
    spec: RunSpec, settings: RunSettings, prepared: Prepared, registry: Registry, connection: Connection, view: View
) -> Stopped:
    state_dir = settings.state_dir.absolute()
    directory = run_directory(state_dir, spec.run)
    engine = Engine(spec, records=registry.rounds(spec.run), jitter=random.Random(secrets.randbits(64)))
    _drop_unfinished(registry, spec.run, directory, engine.last_round + 1)
    remove_unfinished(state_dir)
    # Notes of another broker are for whoever comes back to it.
    broker = hashlib.sha256(str(connection.link.broker).encode()).hexdigest()[:8]
    publisher = ModelPublisher(connection.link, settings.fleet, state_dir / f"published-{settings.fleet}-{broker}.txt")
    performer = Performer(
        engine,
        prepared,
        load_checkpoint(directory)[0],
        connection=connection,
        publisher=publisher,
        registry=registry,
        directory=directory,
        view=view,
    )
    try:
        Service(engine, performer, connection=connection, publisher=publisher, registry=registry, view=view).run()
    except (FedpatchError, OSError):
        with suppress(FedpatchError, OSError):
            performer.perform(engine.interrupt(time.monotonic()))
        raise
    finally:
        with suppress(FedpatchError, OSError):
            publisher.close()
    return engine.stopped or Stopped.FAILED


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


def _drop_unfinished(registry: Registry, run: str, directory: Path, number: int) -> None:
    """Forgets what a predecessor left of a round that is played again."""
    registry.drop_updates(run, number)
    drop_round(directory, number)


def _catch_up(registry: Registry, run: str, meta: Mapping[str, Any]) -> None:
    """Model and record are saved together in the checkpoint; a crash may have kept the record from the registry."""
    if "record" in meta:
        record = RoundRecord.from_dict(meta["record"])
        if record.round > max((known.round for known in registry.rounds(run)), default=0):
            registry.add_round(run, record)
