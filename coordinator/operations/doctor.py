"""The checks of `fedpatch doctor`: installation, task, disk, broker and devices.

The checks do not disturb a running coordinator: they build no model beside it, and connect as a client of their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from fedpatch.coordinator.blobs.blob_store import open_blobs
from fedpatch.coordinator.blobs.served_models import open_served
from fedpatch.coordinator.cohort.over_selection import invitations
from fedpatch.coordinator.find_strategy import find_strategy
from fedpatch.coordinator.operations.failing_devices import devices_without_storage
from fedpatch.coordinator.pki.certificate_status import check_authority
from fedpatch.coordinator.pki.masking_authority import check_masking
from fedpatch.coordinator.rounds.encoding_for_device import encoding_for
from fedpatch.coordinator.runtime.fleet_claim import body_of, client_id
from fedpatch.coordinator.runtime.run_preparation import Prepared, prepare
from fedpatch.coordinator.setting_conflicts.rounds_and_transfer import MAX_CHUNKS_IN_FLIGHT
from fedpatch.coordinator.settings import RunSettings
from fedpatch.coordinator.storage.content_checks import check_stored
from fedpatch.coordinator.storage.database.opening import examine_database, url_of
from fedpatch.coordinator.storage.leadership import leader_in_words
from fedpatch.coordinator.storage.run_journal import RUNS, journals
from fedpatch.coordinator.storage.run_registry import REGISTRY_FILE, Registry
from fedpatch.coordinator.storage.state_dirs import is_locked_here
from fedpatch.shared import __version__
from fedpatch.shared.app.formatting import size
from fedpatch.shared.diagnostics.broker_behaviour import Asked, check_broker
from fedpatch.shared.diagnostics.broker_rights import AclParty
from fedpatch.shared.diagnostics.checks import Checkup, error_text
from fedpatch.shared.diagnostics.host import Space, check_clock, check_memory, check_state_dir, check_versions
from fedpatch.shared.diagnostics.own_certificate import check_own_certificate
from fedpatch.shared.errors import FedpatchError, problem_and_remedy
from fedpatch.shared.mqtt.events import Received
from fedpatch.shared.mqtt.url import parse_broker_url
from fedpatch.shared.tensors.packing import max_blob_bytes
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.features import (
    EVALUATE_FEATURE,
    MASKED_FEATURE,
    SHARED_ID_FEATURE,
    SIGNED_FEATURE,
    SUMS_FEATURE,
    URL_FEATURE,
)
from fedpatch.shared.wire.masking_messages import ThresholdRule
from fedpatch.shared.wire.messages import CoordinatorState, DeviceState
from fedpatch.shared.wire.plan_terms import CONTROL, PLAN_TERMS

# Measured with fedavg-adam and a model of 26 MB (77 MB with its moments): a run took 10.5 times the 77 MB, in addition to the
# memory of the process with torch loaded.
RUN_FACTOR = 11

_LEAST_DISK_BYTES = 16 * 2**20
_SHOWN_DEVICES = 5


def examine(settings: RunSettings, checkup: Checkup) -> None:
    """Run all checks of a coordinator."""
    broker = parse_broker_url(settings.broker)
    directory = settings.state_dir.absolute()
    check_versions("coordinator", checkup)
    check_own_certificate(settings, "coordinator", "", checkup)
    check_authority(settings, checkup)
    check_masking(settings, checkup)
    running = is_locked_here(directory, settings.fleet)  # without locks `state_dir` fails
    prepared = None
    if running:
        why = f"a coordinator is at work with fleet {settings.fleet} in {directory}"
        checkup.skip("task", f"{why}, and has built its model; none is built beside it")
        checkup.skip("memory", f"{why}, and has taken what it needs")
    else:
        prepared = _check_task(settings, checkup)
    check_state_dir(directory, _space(settings, prepared), checkup, private=False, parts=(RUNS, REGISTRY_FILE))
    _check_blobs(settings, directory, checkup)
    _check_leader(settings, checkup)
    _check_models_store(settings, checkup)
    newest = 0.0
    if _check_database(settings, directory, checkup):
        check_stored(directory, checkup)
        newest = _newest_time(directory)
    check_clock(checkup, tls=broker.tls, newest=newest)
    _check_device_storage(settings, directory, checkup)
    asked = _check_broker(settings, checkup)
    if asked is None:
        checkup.skip("devices", "the broker was not asked for them")
        return
    _check_other_coordinator(settings, asked, checkup, running)
    _check_devices(settings, prepared, asked, checkup)


def _check_task(settings: RunSettings, checkup: Checkup) -> Prepared | None:
    """Run the check `task` and, if the model could be built, `memory`."""
    checkup.say(f"building the model of task {settings.task} (torch takes its time)")
    try:
        prepared = prepare(settings)
    except FedpatchError as error:
        remedy = (
            "correct the setting that is named; `fedpatch tasks` lists what is installed, and why one cannot be used"
        )
        checkup.fail("task", error_text(error), remedy)
        return None
    except Exception as error:  # the code of a user's task may raise anything
        text = f"the model of task {settings.task} cannot be built: {type(error).__name__}: {error}"
        checkup.fail("task", " ".join(text.split()), "correct build_model() of the task")
        return None
    model = size(prepared.public.nbytes)
    text = f"{prepared.task.name} with {prepared.strategy.name}, private {prepared.policy}: {model} of model are shared"
    checkup.good("task", f"{text}, schema {prepared.schema.digest[:12]}")
    if prepared.schema.frozen.names:
        checkup.good("frozen", f"{prepared.schema.frozen}; devices have these values from the task")
    needed = RUN_FACTOR * prepared.travelling.nbytes
    check_memory(needed, f"a run that sends {size(prepared.travelling.nbytes)} to a device", checkup)
    return prepared


def _space(settings: RunSettings, prepared: Prepared | None) -> Space:
    """Return the disk space that two checkpoints and the updates of a cohort need."""
    if prepared is None:
        return Space(_LEAST_DISK_BYTES, _LEAST_DISK_BYTES, "checkpoints and updates")
    cohort = invitations(settings.devices * settings.participation, settings.over_select)
    # A server's state is the shared model and, with fedadam and fedavg-adam, two moments of each value.
    needed = 2 * 3 * prepared.public.nbytes + cohort * max_blob_bytes(prepared.travelling)
    least = max(_LEAST_DISK_BYTES, needed)
    return Space(least, least, f"two checkpoints and the updates of {cohort} devices")


def _check_blobs(settings: RunSettings, directory: Path, checkup: Checkup) -> None:
    """Check a store that the settings name: write and delete an object or a file."""
    if settings.blobs is None:
        return
    try:
        open_blobs(settings.blobs, directory / "doctor").check()
    except FedpatchError as error:
        checkup.fail("blobs", *problem_and_remedy(error_text(error)))
    else:
        checkup.good("blobs", f"{settings.blobs} can be written")


def _check_device_storage(settings: RunSettings, directory: Path, checkup: Checkup) -> None:
    """Fail for devices that could store no round lately; there is no finding without one."""
    try:
        names = devices_without_storage(directory, settings.fleet)
    except FedpatchError:
        return  # the check `registry` has failed
    if names:
        text = f"{_names(names)}: could not use their disk or state for the last round (reason storage)"
        remedy = "run `fedpatch-agent doctor` there: it names the disk or the file, and the remedy"
        checkup.fail("device_storage", text, remedy)


def _check_database(settings: RunSettings, directory: Path, checkup: Checkup) -> bool:
    """Check that a coordinator can write its registry in PostgreSQL; there is no finding without a database.

    Returns:
        Whether there may be something stored to read back.
    """
    path = directory / REGISTRY_FILE
    try:
        has_tables = examine_database(path, settings.state)
        url = settings.state or url_of(path)
    except FedpatchError as error:
        checkup.fail("database", *problem_and_remedy(error_text(error)))
        return False
    if has_tables is None:
        return True
    checkup.good("database", f"{url} can be written" + ("" if has_tables else "; it is empty: a run makes its tables"))
    return has_tables or bool(journals(directory))


def _newest_time(directory: Path) -> float:
    """Return the newest unix time in the registry: of the beginning of a run, or of a message of a device; 0 for none."""
    try:
        with Registry(directory / REGISTRY_FILE, readonly=True) as registry:
            times = [*(run.created_at for run in registry.runs()), *(one.last_seen for one in registry.devices())]
    except FedpatchError:
        return 0.0  # the check `registry` has failed, or there is none
    return max(times, default=0.0)


def _check_leader(settings: RunSettings, checkup: Checkup) -> None:
    """Check which coordinator leads a fleet with standbys."""
    if settings.state is None or not settings.standby:
        return
    try:
        checkup.good(
            "leader", leader_in_words(settings.state, settings.fleet) or "no coordinator has led the fleet yet"
        )
    except FedpatchError as error:
        checkup.fail("leader", *problem_and_remedy(error_text(error)))


def _check_models_store(settings: RunSettings, checkup: Checkup) -> None:
    """Check the store of models that devices fetch by URL, as `_check_blobs` does; devices may still not reach it."""
    try:
        served = open_served(settings.models_store, settings.models_url, settings.fleet)
        if served is None:
            return
        served.check()
    except FedpatchError as error:
        checkup.fail("models_store", *problem_and_remedy(error_text(error)))
    else:
        checkup.good("models_store", f"{settings.models_store} can be written")


def _check_broker(settings: RunSettings, checkup: Checkup) -> Asked | None:
    user = settings.username or parse_broker_url(settings.broker).username
    side = AclParty("coordinator", settings.fleet, "", client_id(settings.fleet), user)
    asked = check_broker(settings, side, settings.chunk_kib * 1024, checkup)
    if asked is not None:
        under_way = settings.upload_slots * settings.upload_window
        text = (
            f"no broker publishes its queue length for a client (mosquitto: 1000); uploads keep {under_way} under way"
        )
        checkup.skip("queue", f"{text}, never more than {MAX_CHUNKS_IN_FLIGHT}")
    return asked


def _check_other_coordinator(settings: RunSettings, asked: Asked, checkup: Checkup, running: bool) -> None:
    """Check that no other coordinator serves the fleet: both would use the same devices."""
    topic = topics.coordinator_state(settings.fleet)
    states = [body for one in asked.presence if one.topic == topic and (body := body_of(one))]
    if not (running or settings.standby) and states and isinstance(states[-1], CoordinatorState) and states[-1].online:
        text = f"a coordinator is shown at work in fleet {settings.fleet}, and not in {settings.state_dir.absolute()}"
        remedy = "end it before you begin a run, or give each its own --fleet"
        checkup.warn("coordinator", text, f"{remedy}; if it ended together with its broker, the next run clears this")


def _check_devices(settings: RunSettings, prepared: Prepared | None, asked: Asked, checkup: Checkup) -> None:
    """Run the check `devices`, one for devices that are not ready, and one for each kind of mismatch."""
    online = dict(_online(settings.fleet, asked.presence))
    if not online:
        remedy = (
            f"start `fedpatch-agent run --fleet {settings.fleet}` at this broker; there, run `fedpatch-agent doctor`"
        )
        checkup.warn("devices", f"no device is online in fleet {settings.fleet}", remedy)
        return
    text = f"{len(online)} online in fleet {settings.fleet}: {_names(online)}"
    if len(online) < settings.devices:
        remedy = "start the others, or let a run begin with fewer (--devices)"
        checkup.warn("devices", f"{text}; a run waits for {settings.devices}", remedy)
    else:
        checkup.good("devices", text)
    if shared := _shared_ids(settings.fleet, asked.presence):
        remedy = "give each agent its own --device-id (a cloned card has that of its first device), or see the log of its agent"
        checkup.warn("device_id", f"{_names(shared)}: several agents use this id", remedy)
    if starting := [name for name, state in online.items() if not state.tasks]:
        text = (
            f"{_names(starting)}: still loading the task, or a relay that waits for its devices; ask again in a minute"
        )
        checkup.skip("device_starting", f"{text}, and if it stays so, see the log of the agent there")
    for name, names, words, remedy in _misfits(settings, prepared, online):
        checkup.warn(name, f"{_names(names)} {words}", remedy)


def _online(fleet: str, presence: Sequence[Received]) -> Iterator[tuple[str, DeviceState]]:
    for one in presence:
        topic = topics.parse_topic(fleet, one.topic)
        body = body_of(one)
        if topic and topic.kind == "device_state" and isinstance(body, DeviceState) and body.online:
            yield topic.device, body


def _shared_ids(fleet: str, presence: Sequence[Received]) -> list[str]:
    """Return the devices whose agent says so, or that came online with the nonces of two starts while the doctor listened."""
    online = list(_online(fleet, presence))
    said = {device for device, state in online if SHARED_ID_FEATURE in state.features}
    boots: dict[str, set[str]] = {}
    for device, state in online:
        boots.setdefault(device, set()).add(state.boot)
    return sorted(said | {device for device, seen in boots.items() if len(seen) > 1})


def _misfits(
    settings: RunSettings, prepared: Prepared | None, online: dict[str, DeviceState]
) -> Iterator[tuple[str, list[str], str, str]]:
    """Yield name, devices, problem and remedy of each kind of mismatch."""
    other_version = [name for name, state in online.items() if state.version != __version__]
    if other_version:
        remedy = "install the same version everywhere: what changed between them may matter"
        yield "device_version", other_version, f"run another fedpatch than {__version__}", remedy
    asked = {name: encoding_for(settings.model_encoding, state.encodings) for name, state in online.items()}
    no_encoding = [name for name, encoding in asked.items() if encoding != settings.model_encoding]
    if no_encoding:
        instead = " or ".join(sorted({asked[name] for name in no_encoding}))
        words = f"lacks {settings.model_encoding} and will be asked for {instead}: it takes part, but saves no bytes"
        yield "device_encoding", no_encoding, words, "install a newer fedpatch there, or leave it so"
    relays = {name for name, state in online.items() if SUMS_FEATURE in state.features}
    maskless = [name for name, state in online.items() if MASKED_FEATURE not in state.features and name not in relays]
    if settings.masked and maskless:
        remedy = "install fedpatch[agent] of this version with cryptography there, or set secure = off"
        yield "device_masking", maskless, "cannot mask updates, and will not be asked", remedy
    unsigned = [name for name, state in online.items() if SIGNED_FEATURE not in state.features]
    unsigned = [name for name in unsigned if name not in maskless and name not in relays]
    if settings.masked and settings.threshold == ThresholdRule.TWO_THIRDS and unsigned:
        remedy = "give them certificates (fedpatch device add, fedpatch-agent enrol), or set threshold = half"
        yield "device_signing", unsigned, "cannot sign their masking keys, and will not be asked", remedy
    yield from _lacking_features(settings, online)
    if prepared is None:
        return
    task, schema = prepared.task.name, prepared.schema.digest
    schemas = {name: {one.task: one.schema for one in state.tasks} for name, state in online.items()}
    without = [name for name, known in schemas.items() if known and task not in known]  # without any it is starting
    if without:
        remedy = f"start their agents with --task {task}, or give them another --fleet"
        yield "device_task", without, f"cannot train {task}, and will not be asked", remedy
    others = [name for name, known in schemas.items() if known.get(task, schema) != schema]
    if others:
        frozen = ", with the same frozen values" if prepared.schema.frozen.names else ""
        words = f"built another model for {task} (schema {schemas[others[0]][task][:12]}, here {schema[:12]}), and will decline"
        yield "device_schema", others, words, f"install the same version of the task {task}{frozen} there and here"


def _lacking_features(
    settings: RunSettings, online: dict[str, DeviceState]
) -> Iterator[tuple[str, list[str], str, str]]:
    """Yield the mismatches of `_misfits` for features that a part of the rounds needs."""
    for term in PLAN_TERMS:
        old = [name for name, state in online.items() if term not in state.features]
        if getattr(settings, term) and old:
            remedy = f"install fedpatch {__version__} there, or leave {term} out"
            yield f"device_{term}", old, f"does not know {term}, and will not be asked", remedy
    old = [name for name, state in online.items() if CONTROL not in state.features]
    if CONTROL in find_strategy(settings.strategy).moments and old:
        remedy = f"install fedpatch {__version__} there, or use strategy fedavg"
        yield "device_control", old, "does not know control variates, and will not be asked", remedy
    old = [name for name, state in online.items() if URL_FEATURE not in state.features]
    if settings.models_store and old:
        remedy = f"install fedpatch {__version__} there and leave models_by_url on, or leave it so"
        yield "device_url", old, "fetches no models by URL, and gets them through the broker", remedy
    unmeasured = [name for name, state in online.items() if EVALUATE_FEATURE not in state.features]
    if settings.evaluate_every and unmeasured:
        words = "cannot measure without training, and will not be asked in evaluate rounds"
        remedy = "install this version there (a relay needs min_cohort willing devices that have it), or leave it so"
        yield "device_evaluation", unmeasured, words, remedy


def _names(names: Sequence[str] | dict[str, DeviceState]) -> str:
    shown = ", ".join(sorted(names)[:_SHOWN_DEVICES])
    return shown if len(names) <= _SHOWN_DEVICES else f"{shown} and {len(names) - _SHOWN_DEVICES} more"
