"""The resume of a run: its settings with the changes of the operator, and a new epoch on a connection of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedpatch.coordinator.blobs.blob_store import open_blobs
from fedpatch.coordinator.guard.stop_request import forget_stop
from fedpatch.coordinator.observability.round_tracing import require_tracing
from fedpatch.coordinator.observability.status_message import View
from fedpatch.coordinator.pki.masking_authority import require_revocations
from fedpatch.coordinator.rounds.run_summary import RunInfo, RunSummary
from fedpatch.coordinator.runtime.changeable_settings import former_encoding, former_terms
from fedpatch.coordinator.runtime.connected_run import ConnectedRun
from fedpatch.coordinator.runtime.connection import Connection
from fedpatch.coordinator.runtime.ports import REAL, Ports
from fedpatch.coordinator.runtime.resumed_rounds import reconcile
from fedpatch.coordinator.runtime.run_outcome import play_to_the_end
from fedpatch.coordinator.runtime.run_places import blob_places, fleet_lock, run_directory
from fedpatch.coordinator.runtime.run_preparation import run_spec
from fedpatch.coordinator.settings import RunSettings
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.coordinator.storage.state_dirs import refuse_run_of_hub
from fedpatch.shared.app.files import make_directory, refusals_of
from fedpatch.shared.config.load import load
from fedpatch.shared.errors import SchemaMismatch, UsageError
from fedpatch.shared.trackers.tracking import make_trackers


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
    """Resume a run with its own settings, except the settings that are given here.

    Args:
        name: Name of the run.
        password: The password for the broker; it replaces a file that the run was started with.
        rounds: Number of rounds after which the run ends.
        target_ua: User accuracy at which the run ends.
        insecure: Accept a broker without TLS.

    Returns:
        The summary of the run.

    Raises:
        SchemaMismatch: The task has another schema than when the run was started.
        UsageError, BrokerError, StateError: As `run_or_resume` does.
    """
    state_dir = state_dir.absolute()
    with Registry(state_dir / REGISTRY_FILE) as registry:
        run = registry.run(name)
        changes: dict[str, Any] = {"broker": broker, "rounds": rounds, "target_ua": target_ua, "metrics": metrics}
        changes |= {"encoding": encoding, "insecure": insecure or None}
        settings = settings_of(run, state_dir, changes, password, password_file)
        return resume_registered(registry, run, settings, view, ports)


def settings_of(
    run: RunInfo, state_dir: Path, changes: Mapping[str, Any], password: str | None, password_file: Path | None
) -> RunSettings:
    """Return the settings of a run, changed where a value is given.

    Args:
        run: The run, with the settings that it began with.
        changes: New values of settings by name; None leaves a setting as it is.
        password: A password for the broker, in place of the file that the run began with.

    Raises:
        UsageError: The run is that of a hub, or used a setting that only earlier versions have.
    """
    refuse_run_of_hub(run, state_dir)
    if former := former_terms(run):
        named = ", ".join(f"{name} = {value}" for name, value in former.items())
        raise UsageError(
            f"run {run.id} has {named}, which only earlier versions of fedpatch know; resume it with the version that began "
            "it, or begin a new run"
        )
    if changes.get("encoding") is None and (used := former_encoding(run)):
        raise UsageError(
            f"run {run.id} has encoding = {used}, which only earlier versions of fedpatch know; resume it with "
            f"--encoding {RunSettings.encoding}"
        )
    stored = {name: value for name, value in run.settings.items() if name not in RunSettings.former}
    changes = {**changes, "password_file": str(password_file.absolute()) if password_file else None}
    flags = {**stored, **{name: value for name, value in changes.items() if value is not None}}
    flags |= {"state_dir": str(state_dir), "standby": False}  # a run that a user resumes waits for no leader
    settings = load(RunSettings, file=None, environ={}, flags=flags)
    # A password that is given now replaces the file that the run began with.
    return replace(settings, password=password, password_file=None) if password else settings


def resume_registered(registry: Registry, run: RunInfo, settings: RunSettings, view: View, ports: Ports) -> RunSummary:
    """Resume a run of an open registry; raises as `resume_run`.

    Args:
        settings: Its settings from now on.
    """
    make_trackers(settings.tracker)
    require_tracing(settings)
    with connected_again(registry, run, settings, view, ports) as connected:
        registry.reopen(run.id)
        last = max((record.round for record in registry.rounds.records(run.id)), default=0)
        view.say(f"run {run.id}: going on after round {last}, epoch {connected.spec.epoch}")
        if run.settings.get("encoding", settings.encoding) != settings.encoding:
            view.say(f"what travels is {settings.encoding} now; the run began with {run.settings['encoding']}")
        return play_to_the_end(connected)


@contextmanager
def connected_again(
    registry: Registry, run: RunInfo, settings: RunSettings, view: View, ports: Ports
) -> Iterator[ConnectedRun]:
    """Lock the fleet, connect, and begin a new epoch of a run.

    Args:
        registry: The open registry.
        settings: Its settings from now on.
    """
    state_dir = settings.state_dir.absolute()
    # Each of these checks raises before anything is written.
    require_revocations(settings)
    prepared = ports.prepare(settings)
    if prepared.schema.digest != run.schema:
        raise SchemaMismatch(
            f"task {run.task!r} has schema {prepared.schema.digest[:12]} now, but run {run.id} was begun with "
            f"{run.schema[:12]}; install the version of the task that it was begun with, or start a new run"
        )
    directory = run_directory(state_dir, run.id)
    if ports.leadership is None:
        open_blobs(settings.blobs, directory).check()
    with ExitStack() as stack:
        stack.enter_context(fleet_lock(state_dir, settings.fleet))
        forget_stop(directory)
        connection = stack.enter_context(Connection(settings, ports))
        registry.lead(settings.fleet, connection.leader_epoch, connection.event_queue.ending)
        places, before = blob_places(settings, run.id, connection), registry.run(run.id).epoch
        reconcile(registry, run.id, places.move_in(before), prepared, view.say)
        with refusals_of(directory):
            make_directory(directory)
        earlier = places.earlier(before)
        epoch = registry.next_epoch(run.id)
        places.drop(earlier)
        spec = run_spec(run.id, epoch, settings, prepared, connection.chunk_bytes, leader_epoch=connection.leader_epoch)
        yield ConnectedRun(spec, settings, prepared, registry, connection, view)
