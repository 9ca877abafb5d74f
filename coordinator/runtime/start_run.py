"""The start of a new run: checks before anything is written, the row of the run, its first checkpoint."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import replace

from fedpatch.coordinator.blobs.blob_store import open_blobs
from fedpatch.coordinator.blobs.served_models import open_served
from fedpatch.coordinator.observability.round_tracing import require_tracing
from fedpatch.coordinator.observability.status_message import View
from fedpatch.coordinator.pki.masking_authority import require_revocations
from fedpatch.coordinator.rounds.run_summary import RunInfo, RunSummary
from fedpatch.coordinator.runtime.connected_run import ConnectedRun
from fedpatch.coordinator.runtime.connection import Connection
from fedpatch.coordinator.runtime.ports import REAL, Ports
from fedpatch.coordinator.runtime.privacy_outlook import privacy_outlook
from fedpatch.coordinator.runtime.run_outcome import play_to_the_end
from fedpatch.coordinator.runtime.run_places import blob_places, fleet_lock, run_directory
from fedpatch.coordinator.runtime.run_preparation import Prepared, run_spec
from fedpatch.coordinator.settings import RunSettings
from fedpatch.coordinator.storage.checkpoint import save_checkpoint
from fedpatch.coordinator.storage.database.opening import choose_database
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.shared.app.files import make_directory, refusals_of
from fedpatch.shared.config.load import public_values
from fedpatch.shared.errors import FedpatchError, StateError, StoreUnavailable
from fedpatch.shared.trackers.tracking import make_trackers


def check_and_prepare(settings: RunSettings, ports: Ports) -> Prepared:
    """Return the parts that follow from the settings; each check raises before anything is written."""
    require_revocations(settings)
    make_trackers(settings.tracker)
    require_tracing(settings)
    return ports.prepare(settings)


def start_run(settings: RunSettings, view: View, ports: Ports = REAL) -> RunSummary:
    """Start a new run and execute it to its end.

    Returns:
        The summary of the run.

    Raises:
        UsageError: Settings do not fit together, or another coordinator is running. Nothing is written.
        BrokerError: The broker does not answer. Nothing is written.
        StateError, StoreUnavailable: The first checkpoint cannot be written; the run can be resumed.
    """
    prepared = check_and_prepare(settings, ports)
    state_dir = settings.state_dir.absolute()
    if ports.leadership is None:  # with standbys the store is checked before the wait; a leader retries its store
        open_blobs(settings.blobs, state_dir / "new").check()
    if (served := open_served(settings.models_store, settings.models_url, settings.fleet)) is not None:
        served.check()
    choose_database(state_dir / REGISTRY_FILE, settings.state)
    with ExitStack() as locks, ExitStack() as stack:
        # An existing directory is locked before the connection, so that a running coordinator is not disturbed. A new directory
        # is made after the connection, so that nothing is left behind if the broker does not answer.
        fresh = not state_dir.exists()
        if not fresh:
            locks.enter_context(fleet_lock(state_dir, settings.fleet))
        connection = stack.enter_context(Connection(settings, ports))
        if fresh:
            with refusals_of(state_dir):
                make_directory(state_dir)
            locks.enter_context(fleet_lock(state_dir, settings.fleet))
            choose_database(state_dir / REGISTRY_FILE, settings.state)
        with Registry(state_dir / REGISTRY_FILE, patient=ports.leadership is not None) as registry:
            run = _create_run(settings, prepared, registry, connection)
            view.say(f"run {run.id}: {prepared.task.name}, {prepared.strategy.name}, private {prepared.policy}")
            if settings.dp != "off":
                view.say(privacy_outlook(settings, prepared))
            spec = run_spec(
                run.id, run.epoch, settings, prepared, connection.chunk_bytes, leader_epoch=connection.leader_epoch
            )
            return play_to_the_end(ConnectedRun(spec, settings, prepared, registry, connection, view))


def _create_run(settings: RunSettings, prepared: Prepared, registry: Registry, connection: Connection) -> RunInfo:
    """Write the row of a new run, its directory and its first checkpoint."""
    ports = connection.ports
    registry.lead(settings.fleet, connection.leader_epoch, connection.event_queue.ending)
    registry.abandon_running(settings.fleet)
    run = registry.create_run(
        created_at=ports.unix_time(),
        suffix=f"{ports.entropy.getrandbits(24):06x}",
        task=prepared.task.name,
        strategy=prepared.strategy.name,
        private=str(prepared.policy),
        settings=public_values(with_absolute_paths(settings)),
        schema=prepared.schema.digest,
    )
    directory = run_directory(settings.state_dir.absolute(), run.id)
    try:
        with refusals_of(directory):
            make_directory(directory)
        save_checkpoint(blob_places(settings, run.id, connection).own(), prepared.initial, prepared.public, {})
    except (StateError, StoreUnavailable):
        with suppress(FedpatchError):
            registry.abandon_running(settings.fleet)  # a resume makes the missing parts
        raise
    return run


def with_absolute_paths(settings: RunSettings) -> RunSettings:
    """Return the settings with absolute paths, since a resume may be called in another directory."""
    files = {name: getattr(settings, name) for name in ("ca_file", "cert_file", "key_file", "ca_dir", "password_file")}
    return replace(settings, **{name: path.absolute() for name, path in files.items() if path is not None})
