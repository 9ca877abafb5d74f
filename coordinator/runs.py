"""Begins a run, or takes one up again: puts registry, checkpoint, link, engine and service together."""

from __future__ import annotations

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
from coordinator.run_spec import Stopped
from coordinator.service import Service
from coordinator.settings import RunSettings
from coordinator.snapshot import View
from coordinator.state_dirs import remember
from coordinator.strategies import ServerState
from shared.config import load, public_values
from shared.errors import FedpatchError, SchemaMismatch
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
    with ExitStack() as stack:
        # A broker that does not answer leaves no trace; but a coordinator at work is not to be disturbed even by connecting.
        fresh = not state_dir.exists()
        if not fresh:
            stack.enter_context(_fleet_lock(state_dir, settings.fleet))
        connection = stack.enter_context(Connection(settings))
        if fresh:
            state_dir.mkdir(parents=True, exist_ok=True)
            stack.enter_context(_fleet_lock(state_dir, settings.fleet))
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
            return _play(run.id, run.epoch, settings, prepared, prepared.initial, registry, connection, view)


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
        state, _, meta = load_checkpoint(run_directory(state_dir, run.id))
        with _fleet_lock(state_dir, settings.fleet), Connection(settings) as connection:
            _catch_up(registry, run.id, meta)
            registry.reopen(run.id)
            epoch = registry.next_epoch(run.id)
            view.say(f"run {run.id}: going on after round {len(registry.rounds(run.id))}, epoch {epoch}")
            return _play(run.id, epoch, settings, prepared, state, registry, connection, view)


def _from_anywhere(settings: RunSettings) -> RunSettings:
    """What is kept for a resume, which may be called in another directory."""
    return replace(settings, ca_file=settings.ca_file.absolute()) if settings.ca_file else settings


def _play(
    run: str,
    epoch: int,
    settings: RunSettings,
    prepared: Prepared,
    state: ServerState,
    registry: Registry,
    connection: Connection,
    view: View,
) -> RunSummary:
    chunk_bytes = chunk_bytes_within(settings.chunk_kib * 1024, connection.established.max_packet_bytes)
    spec = run_spec(run, epoch, settings, prepared, chunk_bytes)
    engine = Engine(spec, records=registry.rounds(run), jitter=random.Random(secrets.randbits(64)))
    directory = run_directory(settings.state_dir.absolute(), run)
    _drop_unfinished(registry, run, directory, engine.last_round + 1)
    note = settings.state_dir.absolute() / f"published-{settings.fleet}.msgpack"
    publisher = ModelPublisher(connection.link, settings.fleet, note)
    performer = Performer(
        engine,
        prepared,
        state,
        connection=connection,
        publisher=publisher,
        registry=registry,
        directory=directory,
        view=view,
    )
    service = Service(engine, performer, connection=connection, publisher=publisher, registry=registry, view=view)
    try:
        service.run()
        stopped = engine.stopped or Stopped.FAILED
    except (FedpatchError, OSError) as error:
        stopped = Stopped.FAILED
        view.say(f"the run cannot go on: {error}")
        with suppress(FedpatchError, OSError):
            performer.perform(engine.interrupt(time.monotonic()))
    finally:
        with suppress(FedpatchError, OSError):
            publisher.close()
    model = _export(directory, prepared, performer.state, view)
    user_accuracy = last_user_accuracy(engine.records)
    registry.finish_run(run, stopped_because=stopped, user_accuracy=user_accuracy, model=model)
    return RunSummary(run, stopped.value, user_accuracy, model, engine.records)


def _export(directory: Path, prepared: Prepared, state: ServerState, view: View) -> str:
    """Path of the global model for other programs; empty where the disk refuses, which costs no more than that."""
    path = directory / "model.npz"
    try:
        export_model(path, {name: state.tensors[name] for name in prepared.public.names})
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
