"""Starts or resumes a run: connects registry, checkpoint, link, engine and service, and runs the rounds."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from fedpatch.coordinator.aggregation.gaussian_noise import values_of
from fedpatch.coordinator.aggregation.server_state import ServerState
from fedpatch.coordinator.blobs.blob_store import BlobStore, open_blobs
from fedpatch.coordinator.blobs.served_models import MARGIN_S, ServedModels, open_served
from fedpatch.coordinator.guard.quarantine import Quarantine
from fedpatch.coordinator.guard.revocations import Revocations
from fedpatch.coordinator.guard.stop_request import StopRequest, forget_stop
from fedpatch.coordinator.masking.group_drawing import group_sizes
from fedpatch.coordinator.masking.run_groups import RunGroups
from fedpatch.coordinator.observability.event_observer import joined
from fedpatch.coordinator.observability.metrics_endpoint import observed, of_others, waiting_as_standby
from fedpatch.coordinator.observability.round_tracing import require_tracing, traced
from fedpatch.coordinator.observability.round_tracking import tracked
from fedpatch.coordinator.observability.status_message import View
from fedpatch.coordinator.pki.masking_authority import require_revocations
from fedpatch.coordinator.rounds.participant_transitions import CommittedUpdate, RoundStart
from fedpatch.coordinator.rounds.round_record import RoundRecord, last_user_accuracy
from fedpatch.coordinator.rounds.run_engine import Engine, drive_engine
from fedpatch.coordinator.rounds.run_events import Interrupted, Suspended
from fedpatch.coordinator.rounds.run_spec import RunSpec
from fedpatch.coordinator.rounds.run_summary import RunInfo, RunSummary, summary_of
from fedpatch.coordinator.rounds.termination import Stopped
from fedpatch.coordinator.runtime.aggregator import Aggregator
from fedpatch.coordinator.runtime.connection import Connection
from fedpatch.coordinator.runtime.device_counters import DeviceCounters
from fedpatch.coordinator.runtime.effect_runner import EffectRunner
from fedpatch.coordinator.runtime.event_queue import EventQueue, UpdateWritten
from fedpatch.coordinator.runtime.model_publisher import BlobNote, FileNote, ModelPublisher
from fedpatch.coordinator.runtime.ports import REAL, Ports
from fedpatch.coordinator.runtime.resume import (
    devices_of_last_run,
    reconcile,
    rest_of_pause,
    resume_round,
    return_words,
    seen_devices,
    waiting_updates,
)
from fedpatch.coordinator.runtime.run_preparation import Prepared, privacy_policy, run_spec, secure_policy
from fedpatch.coordinator.runtime.service import Service
from fedpatch.coordinator.runtime.standby_link import StandbyLink
from fedpatch.coordinator.runtime.update_store import THREADS, UpdateStore
from fedpatch.coordinator.settings import RunSettings
from fedpatch.coordinator.storage.checkpoint import (
    drop_round,
    export_model,
    kept_rounds,
    load_checkpoint,
    save_checkpoint,
)
from fedpatch.coordinator.storage.database.leadership import Leadership
from fedpatch.coordinator.storage.database.opening import choose_database, exists
from fedpatch.coordinator.storage.database.transactions import in_use
from fedpatch.coordinator.storage.directory_guard import DirectoryGuard
from fedpatch.coordinator.storage.epoch_folders import BlobPlaces
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.coordinator.storage.state_dirs import fleet_lock_file, refuse_run_of_hub
from fedpatch.shared.app.files import check_state_directory, make_directory, refusals_of
from fedpatch.shared.app.formatting import duration, printable
from fedpatch.shared.app.locks import FileLock
from fedpatch.shared.config.load import load, public_values
from fedpatch.shared.errors import (
    FedpatchError,
    LeadershipGivenUp,
    LeadershipLost,
    SchemaMismatch,
    StateDirectoryLost,
    StateError,
    StateUnreadable,
    StoreUnavailable,
    UsageError,
)
from fedpatch.shared.masking.group_context import threshold_of
from fedpatch.shared.mqtt.broker_settings import BrokerSettings
from fedpatch.shared.privacy.gaussian import noise_ratio
from fedpatch.shared.privacy.plan import MOST_RATIO, spread_of
from fedpatch.shared.tensors.encodings import KEEP
from fedpatch.shared.trackers.tracking import make_trackers

MAY_CHANGE: Final = frozenset(
    {
        *(option.name for option in fields(BrokerSettings)),
        *("state_dir", "state", "ca_dir", "standby", "encoding", "devices", "wait_s", "deadline_s"),
        *("independent_every", "evaluate_every", "evaluate_participation"),
        *("metrics", "metrics_max_devices", "tracker", "traces", "models_store", "models_url"),
        # Their defaults have changed: a run of an earlier version continues with the present defaults.
        *("norm_bound", "chunk_kib"),
    }
)
"""Settings that may change during a run: a run is resumed although they differ."""


def run_directory(state_dir: Path, run: str) -> Path:
    """Return the directory of a run's checkpoints, updates and model."""
    return state_dir / "runs" / run


def fleet_lock(state_dir: Path, fleet: str) -> FileLock:
    """Lock a fleet in the state directory of its coordinator; raise UsageError if another process has the lock."""
    with refusals_of(state_dir):
        check_state_directory(state_dir)
        return FileLock(fleet_lock_file(state_dir, fleet), in_use(state_dir, fleet))


def run_or_go_on(
    settings: RunSettings, view: View, *, new: bool = False, unless_done: bool = False, ports: Ports = REAL
) -> RunSummary:
    """Resume the fleet's last run if it is unfinished and has these settings; else start a new one.

    So a service that is restarted continues its run.

    Args:
        settings: The settings of the run.
        view: Shows progress and messages.
        new: Start a new run in any case.
        unless_done: If the last run has these settings and is finished, return its summary and connect to no broker.
        ports: The environment of the coordinator.

    Returns:
        The summary of the run at its end.

    Raises:
        UsageError: Settings do not fit together, or another coordinator is running.
        BrokerError: The broker does not answer.
        StateError: The state directory cannot be used.
    """
    if new and unless_done:
        raise UsageError("--new always starts a run, --unless-done does not: use one of them")
    registry_file = settings.state_dir.absolute() / REGISTRY_FILE
    choose_database(registry_file, settings.state)
    if settings.standby and ports.leadership is None:
        return _run_with_standbys(settings, view, ports, new=new, unless_done=unless_done)
    if not new and exists(registry_file):
        with Registry(registry_file, patient=ports.leadership is not None) as registry:
            last = registry.newest(settings.fleet)
            if last is not None:
                refuse_run_of_hub(last, settings.state_dir)
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


def _run_with_standbys(settings: RunSettings, view: View, ports: Ports, *, new: bool, unless_done: bool) -> RunSummary:
    """Wait for the lead and run; after the lead was given up to a standby, wait again."""
    waited = False
    while True:
        try:
            with _leading(settings, view, ports, again=waited) as (led, has_waited):
                waited = waited or has_waited
                # A run that the previous leader has completed meanwhile is not started again.
                new, unless_done = new and not waited, unless_done or waited
                return run_or_go_on(settings, view, new=new, unless_done=unless_done, ports=led)
        except LeadershipGivenUp as error:
            view.say(str(error))
            waited = True


@contextmanager
def _leading(settings: RunSettings, view: View, ports: Ports, *, again: bool = False) -> Iterator[tuple[Ports, bool]]:
    """Wait until this coordinator leads its fleet, with the model built; yield its ports, and whether it had to wait.

    Args:
        settings: The settings of the run.
        view: Shows messages.
        ports: The environment of the coordinator.
        again: Whether this coordinator has led the fleet already.
    """
    assert settings.state is not None
    prepared = _checked(settings, ports)
    state_dir = settings.state_dir.absolute()
    if not again:  # a former leader retries its store
        open_blobs(settings.blobs, state_dir / "new").check()
    with refusals_of(state_dir):
        make_directory(state_dir)
    choose_database(state_dir / REGISTRY_FILE, settings.state)
    with Leadership(settings.state, settings.fleet) as leadership:
        queue = EventQueue(ports.clock, ports.queue())
        begun = False
        while not begun:
            with (
                ports.interrupts(queue),
                waiting_as_standby(settings, view),
                StandbyLink(settings, ports, view) as link,
            ):
                again = leadership.wait(view.say, queue.ending, link.connected, again=again)
            Registry(state_dir / REGISTRY_FILE, patient=True).close()  # creates or migrates the tables
            begun = leadership.begin()
        view.say(f"leading fleet {settings.fleet!r}, epoch {leadership.epoch}")
        yield replace(ports, prepare=lambda _: prepared, leadership=leadership), again


def _checked(settings: RunSettings, ports: Ports) -> Prepared:
    """Return the parts that follow from the settings; each check raises before anything is written."""
    require_revocations(settings)
    make_trackers(settings.tracker)
    require_tracing(settings)
    return ports.prepare(settings)


def start_run(settings: RunSettings, view: View, ports: Ports = REAL) -> RunSummary:
    """Start a new run and execute it to its end.

    Args:
        settings: The settings of the run.
        view: Shows progress and messages.
        ports: The environment of the coordinator.

    Returns:
        The summary of the run.

    Raises:
        UsageError: Settings do not fit together, or another coordinator is running. Nothing is written.
        BrokerError: The broker does not answer. Nothing is written.
        StateError, StoreUnavailable: The first checkpoint cannot be written; the run can be resumed.
    """
    prepared = _checked(settings, ports)
    state_dir = settings.state_dir.absolute()
    if ports.leadership is None:  # with standbys the store is checked before the wait; a leader retries its store
        open_blobs(settings.blobs, state_dir / "new").check()
    if (served := open_served(settings.models_store, settings.models_url, settings.fleet, MARGIN_S)) is not None:
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
            registry.lead(settings.fleet, connection.leader_epoch, connection.event_queue.ending)
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
            try:
                _save_first(run_directory(state_dir, run.id), _places(settings, run.id, connection), prepared)
            except (StateError, StoreUnavailable):
                with suppress(FedpatchError):
                    registry.abandon_running(settings.fleet)  # a resume makes the missing parts
                raise
            view.say(f"run {run.id}: {prepared.task.name}, {prepared.strategy.name}, private {prepared.policy}")
            if settings.dp != "off":
                view.say(_privacy_outlook(settings, prepared))
            spec = run_spec(
                run.id, run.epoch, settings, prepared, connection.chunk_bytes, leader_epoch=connection.leader_epoch
            )
            return _play(spec, settings, prepared, registry, connection, view)


def _save_first(directory: Path, places: BlobPlaces, prepared: Prepared) -> None:
    """Make the directory of a new run and write its first checkpoint."""
    with refusals_of(directory):
        make_directory(directory)
    save_checkpoint(places.own(), prepared.initial, prepared.public, {})


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
        state_dir: The state directory.
        name: Name of the run.
        view: Shows progress and messages.
        broker: URL of the broker.
        password: The password for the broker; it replaces a file that the run was started with.
        password_file: File with the password.
        rounds: Number of rounds after which the run ends.
        target_ua: User accuracy at which the run ends.
        metrics: Address of the metrics endpoint.
        encoding: Encoding of models and updates.
        insecure: Accept a broker without TLS.
        ports: The environment of the coordinator.

    Returns:
        The summary of the run.

    Raises:
        SchemaMismatch: The task has another schema than when the run was started.
        UsageError, BrokerError, StateError: As `run_or_go_on` does.
    """
    state_dir = state_dir.absolute()
    with Registry(state_dir / REGISTRY_FILE) as registry:
        run = registry.run(name)
        changes: dict[str, Any] = {"broker": broker, "rounds": rounds, "target_ua": target_ua, "metrics": metrics}
        changes |= {"encoding": encoding, "insecure": insecure or None}
        settings = _settings_of(run, state_dir, changes, password, password_file)
        return _go_on(registry, run, settings, view, ports)


def evaluate_run(  # noqa: PLR0913 - one keyword per choice of the user
    state_dir: Path,
    name: str,
    view: View,
    *,
    broker: str | None = None,
    password: str | None = None,
    password_file: Path | None = None,
    participation: float = 1.0,
    insecure: bool = False,
    ports: Ports = REAL,
) -> RoundRecord:
    """Execute one evaluate round of a run that is not running: devices measure its model with their patches.

    The status of the run does not change; a round that is interrupted leaves no record.

    Args:
        state_dir: The state directory.
        name: Name of the run.
        view: Shows progress and messages.
        broker: URL of the broker.
        password: The password for the broker; it replaces a file that the run was started with.
        password_file: File with the password.
        participation: Share of the fleet that is asked, above 0 and at most 1.
        insecure: Accept a broker without TLS.
        ports: The environment of the coordinator.

    Returns:
        The record of the round.

    Raises:
        UsageError: The run hides the figures of single devices, has an open round, or another coordinator is running; or
            `participation` is not a share.
        FedpatchError: No device came.
        KeyboardInterrupt: The operator ended the round.
        SchemaMismatch, BrokerError, StateError: As `resume_run` does.
    """
    if not 0.0 < participation <= 1.0:
        raise UsageError(f"participation {participation:g} is no share; it must be above 0 and at most 1")
    state_dir = state_dir.absolute()
    with Registry(state_dir / REGISTRY_FILE) as registry:
        run = registry.run(name)
        changes = {"broker": broker, "insecure": insecure or None, "encoding": _encoding_to_evaluate(run)}
        settings = _settings_of(run, state_dir, changes, password, password_file)
        if hidden := next(replace(settings, late="refuse").unevaluable(), None):
            raise UsageError(
                f"run {run.id} has {hidden[2]} = {getattr(settings, hidden[2])}; an evaluate round {hidden[1]}"
            )
        _require_no_open_work(registry, run, ports)
        settings = replace(settings, tracker=(), traces=None, metrics=None)
        with _taken_up(registry, run, settings, view, ports) as (spec, prepared, connection):
            view.say(f"run {run.id}: measuring without training, epoch {spec.epoch}")
            spec = replace(
                spec, evaluates_only=True, evaluate_participation=participation, carry=None, time_limit_s=None
            )
            guard = _guard(settings, spec.run, registry)
            opening = _take_up(spec, settings, prepared, registry, connection, guard, view)
            stopped = _play_rounds(spec, settings, prepared, registry, connection, view, opening)
        last = registry.rounds.records(run.id)[-1:]
    if stopped is Stopped.INTERRUPTED:
        raise KeyboardInterrupt
    if stopped is Stopped.FAILED or not last:
        raise FedpatchError(f"run {run.id} was not evaluated: no device came")
    return last[0]


def _require_no_open_work(registry: Registry, run: RunInfo, ports: Ports) -> None:
    """Raise UsageError for a run with an open round, which an evaluation would continue, or with carried work."""
    finished = run.status == "finished"
    carried = {} if finished else registry.rounds.carried(run.id)
    if carried or registry.rounds.unfinished(run.id, ports.boot_time()) is not None:
        # A run that was resumed with fewer rounds, or a lower target, is finished although a round is open.
        more = " with more --rounds or another --target-ua" if finished else ""
        raise UsageError(f"run {run.id} has open work at its devices; `fedpatch resume {run.id}`{more} first")


def _encoding_to_evaluate(run: RunInfo) -> str | None:
    """Return the encoding that replaces one which is now refused with `late = carry`: an evaluation carries no work."""
    if run.settings.get("late") != "carry" or run.settings.get("encoding") not in KEEP:
        return None
    return RunSettings.encoding


def _settings_of(
    run: RunInfo, state_dir: Path, changes: Mapping[str, Any], password: str | None, password_file: Path | None
) -> RunSettings:
    """Return the settings of a run, changed where a value is given. UsageError for the run of a hub."""
    refuse_run_of_hub(run, state_dir)
    changes = {**changes, "password_file": str(password_file.absolute()) if password_file else None}
    flags = {**run.settings, **{name: value for name, value in changes.items() if value is not None}}
    flags |= {"state_dir": str(state_dir), "standby": False}  # a run that a user resumes waits for no leader
    settings = load(RunSettings, file=None, environ={}, flags=flags)
    # A password that is given now replaces the file that the run began with.
    return replace(settings, password=password, password_file=None) if password else settings


def _go_on(registry: Registry, run: RunInfo, settings: RunSettings, view: View, ports: Ports) -> RunSummary:
    make_trackers(settings.tracker)
    require_tracing(settings)
    with _taken_up(registry, run, settings, view, ports) as (spec, prepared, connection):
        registry.reopen(run.id)
        last = max((record.round for record in registry.rounds.records(run.id)), default=0)
        view.say(f"run {run.id}: going on after round {last}, epoch {spec.epoch}")
        if run.settings.get("encoding", settings.encoding) != settings.encoding:
            view.say(f"what travels is {settings.encoding} now; the run began with {run.settings['encoding']}")
        return _play(spec, settings, prepared, registry, connection, view)


@contextmanager
def _taken_up(
    registry: Registry, run: RunInfo, settings: RunSettings, view: View, ports: Ports
) -> Iterator[tuple[RunSpec, Prepared, Connection]]:
    """Lock the fleet, connect, and begin a new epoch of a run; yield its terms, its prepared parts and the connection."""
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
        places, before = _places(settings, run.id, connection), registry.run(run.id).epoch
        reconcile(registry, run.id, places.move_in(before), prepared, view.say)
        with refusals_of(directory):
            make_directory(directory)
        earlier = places.earlier(before)
        epoch = registry.next_epoch(run.id)
        places.drop(earlier)
        spec = run_spec(run.id, epoch, settings, prepared, connection.chunk_bytes, leader_epoch=connection.leader_epoch)
        yield spec, prepared, connection


def _places(settings: RunSettings, run: str, connection: Connection, guard: DirectoryGuard | None = None) -> BlobPlaces:
    directory = run_directory(settings.state_dir.absolute(), run)
    return BlobPlaces(settings.blobs, directory, connection.leader_epoch, connection.event_queue.ending, guard)


def _guard(settings: RunSettings, run: str, registry: Registry) -> DirectoryGuard:
    """Watch the state directory; from now on the registry checks it before each change."""
    state_dir = settings.state_dir.absolute()
    lock = fleet_lock_file(state_dir, settings.fleet)  # in a new file a second coordinator would get the lock too
    guard = DirectoryGuard(state_dir, state_dir / REGISTRY_FILE, run_directory(state_dir, run), lock)
    registry.guard(guard.check)
    return guard


def _same_terms(run: RunInfo, settings: RunSettings) -> bool:
    """Return whether a run has these settings, apart from settings that may change during a run."""
    now = public_values(settings)
    # A run of a version without `dp` had no noise, and its rounds would be missing in the privacy account.
    if run.settings.get("dp", "off") != settings.dp or run.settings.get("blobs") != settings.blobs:
        return False
    return all(run.settings[name] == now[name] for name in now.keys() & run.settings.keys() - MAY_CHANGE)


def _privacy_outlook(settings: RunSettings, prepared: Prepared) -> str:
    """Return the epsilon of a device in all rounds, and the ratio of noise and clip for the smallest fleet."""
    spec = privacy_policy(settings)
    assert spec is not None
    devices = max(settings.min_cohort, int(settings.participation * settings.devices))
    ratio = noise_ratio(spec.noise_multiplier, values_of(prepared.travelling), devices)
    if settings.masked:
        secure = secure_policy(settings)
        sizes = group_sizes(max(devices, secure.least), size=secure.size, least=secure.least)
        honest = [(size, threshold_of(secure.threshold, size) - secure.colluders) for size in sizes]
        ratio *= math.sqrt(spread_of(honest))
    verdict = "" if ratio <= MOST_RATIO else "; little or nothing will be learnt unless the fleet is larger"
    epsilon, rounds = spec.epsilon(settings.rounds), settings.rounds
    return (
        f"dp: epsilon {epsilon:.4g} at delta {settings.delta:g} of a device in all {rounds} rounds; "
        f"the noise on the mean is {ratio:.2g} times the clip{verdict}"
    )


def _from_anywhere(settings: RunSettings) -> RunSettings:
    """Return the settings with absolute paths, since a resume may be called in another directory."""
    files = {name: getattr(settings, name) for name in ("ca_file", "cert_file", "key_file", "ca_dir", "password_file")}
    return replace(settings, **{name: path.absolute() for name, path in files.items() if path is not None})


def _play(
    spec: RunSpec, settings: RunSettings, prepared: Prepared, registry: Registry, connection: Connection, view: View
) -> RunSummary:
    """Run the rounds and record the outcome. The summary is read back from disk, as a resume would find it."""
    stopped, model = Stopped.FAILED, ""
    guard = _guard(settings, spec.run, registry)
    blobs = _places(settings, spec.run, connection, guard).own()
    opening: _Opening | None = None
    try:
        opening = _take_up(spec, settings, prepared, registry, connection, guard, view)
        stopped = _play_rounds(spec, settings, prepared, registry, connection, view, opening)
    except (StateUnreadable, StateDirectoryLost):
        raise  # the run stays unfinished, and the same command goes on with it
    except StoreUnavailable as error:
        if opening is None:
            raise
        view.say(f"the run cannot go on: {error}")
        if connection.event_queue.ending.is_set():
            stopped = Stopped.INTERRUPTED
    except LeadershipLost:
        raise
    except (FedpatchError, OSError) as error:
        view.say(f"the run cannot go on: {error}")
        model = _export(blobs, prepared, view)
    else:
        model = _export(blobs, prepared, view)
    connection.must_lead()
    records = registry.rounds.records(spec.run)
    user_accuracy = last_user_accuracy(records)
    try:
        _drop_unused_updates(blobs, stopped)
        registry.finish_run(spec.run, stopped_because=stopped, user_accuracy=user_accuracy, model=model)
    except StateDirectoryLost:
        raise
    except StateError as error:  # the run stays unfinished, as after a power cut
        view.say(str(error))
    return RunSummary(spec.run, stopped.value, user_accuracy, model, records, spec.private)


def _drop_unused_updates(blobs: BlobStore, stopped: Stopped) -> None:
    """Delete updates that no round used: a coordinator that was killed as it saved the last round has left them."""
    if stopped not in (Stopped.INTERRUPTED, Stopped.FAILED):
        for number in kept_rounds(blobs):
            drop_round(blobs, number)


@dataclass(frozen=True)
class _Opening:
    """The state of a run with which its first round begins or goes on, read from disk and store.

    Attributes:
        state: The server's state after the last completed round.
        unfinished: The round that was open.
        waiting: Committed updates that wait for the next version, by device.
        rest_s: Seconds until the next round may begin.
        guard: Watches the state directory.
    """

    guard: DirectoryGuard
    state: ServerState
    unfinished: RoundStart | None
    waiting: dict[str, CommittedUpdate]
    rest_s: float


def _take_up(
    spec: RunSpec,
    settings: RunSettings,
    prepared: Prepared,
    registry: Registry,
    connection: Connection,
    guard: DirectoryGuard,
    view: View,
) -> _Opening:
    """Read the state of a run.

    Raises:
        StateUnreadable, StoreUnavailable: A file or blob cannot be read now; no round, update or status is changed.
    """
    blobs = _places(settings, spec.run, connection, guard).own()
    state, _, meta = load_checkpoint(blobs)
    present = connection.ports.boot_time()
    unfinished = resume_round(registry, blobs, spec, prepared, state, view.say, present)
    rest_s = rest_of_pause(meta, spec, present) if unfinished is None else 0.0
    if rest_s:
        view.say(f"the next round begins in {duration(rest_s)}, by round_interval_s")
    waiting = waiting_updates(registry, blobs, spec, prepared, view.say) if unfinished is None else {}
    return _Opening(guard, state, unfinished, waiting, rest_s)


def _play_rounds(
    spec: RunSpec,
    settings: RunSettings,
    prepared: Prepared,
    registry: Registry,
    connection: Connection,
    view: View,
    opening: _Opening,
) -> Stopped:
    state_dir = settings.state_dir.absolute()
    directory = run_directory(state_dir, spec.run)
    guard = opening.guard
    blobs = _places(settings, spec.run, connection, guard).own()
    state, unfinished, waiting, rest_s = opening.state, opening.unfinished, opening.waiting, opening.rest_s
    records = registry.rounds.records(spec.run)
    registry.none_online(settings.fleet)
    quarantine = Quarantine(registry, settings.fleet, settings.quarantine_after, view.say, settings.max_devices)
    engine = _engine(spec, registry, connection, records, unfinished, quarantine.held, waiting, rest_s)
    served = open_served(settings.models_store, settings.models_url, settings.fleet, spec.policy.deadline_s + MARGIN_S)
    publisher = make_publisher(settings.fleet, state_dir, connection, blobs=blobs, served=served, guard=guard)
    connection.ingress_filter.expect(spec.max_blob_bytes, spec.chunk_bytes)
    revocations = Revocations(settings.ca_directory, settings.fleet)
    certificates = of_others(revocations, lambda: connection.broker_certificate_ends)

    def say(line: str) -> None:
        view.say(printable(line))

    if words := return_words(spec, unfinished):
        say(words)
    counters = DeviceCounters(registry, settings.fleet, spec, quarantine, say, connection.ports.unix_time)
    entropy = connection.ports.entropy
    aggregator = Aggregator(state, blobs, directory, prepared, spec, say, opening=unfinished, entropy=entropy)
    with ExitStack() as stack:
        stack.callback(_close, publisher, connection)
        trackers = stack.enter_context(tracked(settings, engine, say))
        tracer = stack.enter_context(traced(settings, spec, say))
        meter = stack.enter_context(
            observed(settings, engine, directory, view, certificates, connection.event_queue.ending)
        )
        updates = UpdateStore(
            blobs,
            registry,
            engine,
            requirements=aggregator.requirements,
            counters=counters,
            executor=stack.enter_context(connection.ports.executor(max(THREADS, blobs.concurrency), "fedpatch-store")),
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
        try:
            Service(
                engine,
                runner,
                connection=connection,
                publisher=publisher,
                view=view,
                revocations=revocations,
                quarantine=quarantine,
                stop_request=StopRequest(directory),
                guard=guard,
            ).run()
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
    return engine.stopped or Stopped.FAILED


def _engine(
    spec: RunSpec,
    registry: Registry,
    connection: Connection,
    records: Sequence[RoundRecord],
    unfinished: RoundStart | None,
    holds: Mapping[str, str],
    waiting: Mapping[str, CommittedUpdate],
    rest_s: float,
) -> Engine:
    """Return the engine of the run. Updates for open rounds of the fleet's other runs wait for a resume of these runs."""
    fleet = connection.fleet
    resumable = {run: number for run, number in registry.open_rounds(fleet).items() if run != spec.run}
    jitter = random.Random(connection.ports.entropy.getrandbits(64))
    now = connection.ports.unix_time()
    seen = seen_devices(registry, spec, fleet, now) if spec.epoch > 1 else []
    last_run = seen or devices_of_last_run(registry, spec, fleet, now)
    carried = registry.rounds.carried(spec.run) if spec.carry is not None else {}
    return Engine(
        spec,
        records=records,
        unfinished=unfinished,
        resumable=resumable,
        jitter=jitter,
        holds=holds,
        seen=seen,
        last_run=last_run,
        carried={device: work for device, work in carried.items() if device not in waiting},
        waiting=waiting,
        rest_s=rest_s,
        groups=RunGroups(spec.seed, registry.rounds.groups(spec.run)),
    )


def make_publisher(
    fleet: str,
    state_dir: Path,
    connection: Connection,
    *,
    blobs: BlobStore | None = None,
    served: ServedModels | None = None,
    guard: DirectoryGuard | None = None,
) -> ModelPublisher:
    """Return the publisher of a fleet.

    Each broker has its own note file, so that the blobs that another broker retains are not forgotten.

    Args:
        fleet: Name of the fleet.
        state_dir: Directory of the note file.
        connection: The connection to the broker.
        blobs: Blob store of the run, where a leader with standbys keeps the note.
        served: Store from which devices fetch models by URL.
        guard: Watches `state_dir`: the note is not written once it is lost.
    """
    broker = hashlib.sha256(str(connection.link.broker).encode()).hexdigest()[:8]
    name = f"published-{fleet}-{broker}.txt"
    file = FileNote(state_dir / name, guard.check) if guard is not None else state_dir / name
    return ModelPublisher(
        connection.link,
        fleet,
        BlobNote(blobs, name) if blobs is not None and connection.leader_epoch is not None else file,
        served=served,
        retain=connection.established.retain_available,
        clock=connection.ports.clock,
        sleep=connection.ports.sleep,
    )


def _close(publisher: ModelPublisher, connection: Connection) -> None:
    with suppress(FedpatchError, OSError):
        connection.must_lead()
        publisher.close()


def _export(blobs: BlobStore, prepared: Prepared, view: View) -> str:
    """Write the global model for other programs and return its path or URL; "" if this fails; the run does not fail."""
    try:
        tensors = load_checkpoint(blobs)[0].tensors
        return export_model(blobs, {name: tensors[name] for name in prepared.public.names})
    except (FedpatchError, OSError) as error:
        view.say(str(error))
        return ""
