"""`fedpatch-agent doctor`: checks that the device has all that an agent needs, and that the broker permits the agent's work.

The task and its data are loaded by a training process, as for an agent, so this process imports neither torch nor numpy. A
running agent is not disturbed: its task is not loaded a second time, and the doctor's connections have client ids of their
own.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from fedpatch.device_agent.cli.admission_preview import look
from fedpatch.device_agent.job.training_messages import Ready, SetupFailed
from fedpatch.device_agent.models.store import MODELS_DIRECTORY, ModelStore
from fedpatch.device_agent.policy.floor_status import DAMAGED, least_without_model
from fedpatch.device_agent.policy.owner_limits import OwnerLimits
from fedpatch.device_agent.policy.privacy_budget import RESTORED_ACCOUNT
from fedpatch.device_agent.policy.usage import usage_problem
from fedpatch.device_agent.runtime.agent_composition import setup_of
from fedpatch.device_agent.runtime.begun_anew import is_foreign, loss_in_words, may_be_lost
from fedpatch.device_agent.runtime.model_fetcher import ModelFetcher
from fedpatch.device_agent.runtime.presence import Identity
from fedpatch.device_agent.runtime.training_supervisor import Died, Trainer, TrainerEvent
from fedpatch.device_agent.settings import AgentSettings
from fedpatch.device_agent.state.history import read_history
from fedpatch.device_agent.state.lost_directory import loss_of
from fedpatch.device_agent.state.machine import clone_problem
from fedpatch.device_agent.state.status_file import LOCK_NAME, former_boots, host_as_device_id, read_standing
from fedpatch.device_agent.state.storage_check import PATCHES, SPOOL, stored_problems
from fedpatch.shared.app.files import refusals_of
from fedpatch.shared.app.formatting import size
from fedpatch.shared.app.locks import is_held
from fedpatch.shared.diagnostics.broker_behaviour import Asked, check_broker
from fedpatch.shared.diagnostics.broker_rights import AclParty
from fedpatch.shared.diagnostics.checks import Checkup, error_text
from fedpatch.shared.diagnostics.host import (
    Space,
    check_clock,
    check_memory,
    check_state_dir,
    check_versions,
    resident_memory,
)
from fedpatch.shared.diagnostics.own_certificate import check_own_certificate
from fedpatch.shared.diagnostics.probe import Probe
from fedpatch.shared.errors import (
    BrokerError,
    FedpatchError,
    StateError,
    StateUnreadable,
    UsageError,
    WireError,
    problem_and_remedy,
)
from fedpatch.shared.mqtt.events import Received
from fedpatch.shared.mqtt.url import parse_broker_url
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.chunk_sizes import DEFAULT_CHUNK_KIB
from fedpatch.shared.wire.codec import decode, encode
from fedpatch.shared.wire.messages import Cancel, CoordinatorState, DeviceState, Envelope, Progress
from fedpatch.shared.wire.reason_codes import JobPhase

TASK_TIMEOUT_S = 120.0
ANSWER_TIMEOUT_S = 4.0

# Measured with fedavg-adam and a model of 26 MB: rounds took 18 times its size, beyond the memory of the loaded process.
TRAINING_FACTOR = 18
_SMALL_MODEL_BYTES = 5e6
_LEAST_DISK_BYTES = 16 * 2**20


def examine(settings: AgentSettings, checkup: Checkup, root: Path = Path("/")) -> None:
    """Run all checks of a device; its conditions are read below `root`. UsageError if a topic cannot hold the device's name."""
    identity = Identity.new(settings.fleet, settings.device_id or host_as_device_id())
    broker = parse_broker_url(settings.broker)
    directory = settings.state_dir.absolute()
    checkup.good("device", f"this is {identity.device} of fleet {identity.fleet}")
    check_versions("agent", checkup)
    check_clock(checkup, tls=broker.tls, newest=_newest_time(directory))
    check_own_certificate(settings, "device", identity.device, checkup)
    _check_models_ca(settings, checkup)
    model_bytes = settings.max_model_mib * 2**20
    space = Space(_LEAST_DISK_BYTES, 3 * model_bytes, "a model, an update and a patch")
    check_state_dir(directory, space, checkup, private=True, parts=(PATCHES, MODELS_DIRECTORY))
    _check_machine(directory, checkup, root)
    _check_agent(directory, checkup)
    _check_stored(directory, checkup, settings.private)
    _check_personal(directory, checkup)
    _check_preferences(settings, checkup, root)
    running = _is_running(directory)
    if running:
        checkup.skip("task", f"{_running_agent(directory)}; it is not loaded a second time")
        checkup.skip("memory", "an agent is at work here, and has taken what it needs")
        _check_private(_private_of_agent(settings, directory), checkup)
        _check_network(_status_of_agent(directory).get("network_open"), checkup)
        _check_broker(settings, identity, checkup, running)
        return
    # Importing torch takes a Raspberry Pi half a minute; the broker is checked meanwhile.
    with _loading(settings, identity, checkup) as loading:
        _check_broker(settings, identity, checkup, running)
        if loading is not None:
            _check_task(settings, *loading, checkup, directory / PATCHES)


def _newest_time(directory: Path) -> float:
    """Return the newest unix time in the device's history; 0 without one."""
    with suppress(StateError):
        return max((entry.at for entry in read_history(directory)), default=0.0)
    return 0.0  # the check `stored` finds a file that cannot be read


def _check_machine(directory: Path, checkup: Checkup, root: Path) -> None:
    """Warn if another machine began the state directory; there is no finding without a problem."""
    with suppress(StateError):  # the check `stored` finds a file that cannot be read
        if found := clone_problem(directory, root):
            checkup.warn("state_machine", *found)


def _check_agent(directory: Path, checkup: Checkup) -> None:
    """Check that a running agent has its state directory and accepts rounds; there is no finding without a problem."""
    if (lost := loss_of(directory)) is not None:
        checkup.fail("agent", *lost)
        return
    if not _is_running(directory):
        return
    with suppress(FedpatchError):
        if declines := str(read_standing(directory).status.get("declines") or ""):
            text, remedy = problem_and_remedy(declines)
            checkup.fail("agent", f"the agent declines every round: {text}", remedy)


def _check_models_ca(settings: AgentSettings, checkup: Checkup) -> None:
    """Check the CA of the server of models; without the setting there is no finding."""
    if settings.models_ca_file is None or not settings.models_by_url:
        return
    try:
        ModelFetcher.of(settings, settings.models_ca_file, lambda _: None)
    except UsageError as error:
        _refused("models_ca_file", error, checkup)
    else:
        checkup.good("models_ca_file", f"{settings.models_ca_file} has CA certificates")


def _check_stored(directory: Path, checkup: Checkup, private: str = "") -> None:
    """Check that the agent's files are as the agent wrote them; there is no finding if nothing was stored yet."""
    found = False
    try:
        with refusals_of(directory):
            for declines, text, remedy in _lasting_problems(directory, private):
                found = True
                (checkup.fail if declines else checkup.warn)("stored", text, remedy)
            stored = any((directory / name).exists() for name in (PATCHES, SPOOL))
    except StateError as error:
        _refused("stored", error, checkup)
        return
    if stored and not found:
        checkup.good(
            "stored",
            "patches, records, models trained alone, held model, waiting update and personal models are what was "
            "written",
        )


def _lasting_problems(directory: Path, private: str) -> list[tuple[bool, str, str]]:
    """Return the problems that two looks find: between two reads of one look, a running agent may replace the files."""
    found = None
    with suppress(FileNotFoundError):
        found = list(_problems(directory, private))
    if found == []:
        return found
    return [one for one in _problems(directory, private) if found is None or one in found]


def _problems(directory: Path, private: str) -> Iterator[tuple[bool, str, str]]:
    yield from stored_problems(directory, private)
    try:
        if problem := usage_problem(directory):
            yield False, problem, "restore it from a backup; else today's allowance begins anew when the agent starts"
    except StateUnreadable as error:  # the agent does not start
        yield True, *problem_and_remedy(str(error))


def _check_personal(directory: Path, checkup: Checkup) -> None:
    """Warn of a personal model that was made without validation data: then test data must keep it from becoming worse."""
    with suppress(FedpatchError):
        store = ModelStore(directory / MODELS_DIRECTORY)
        for task in store.tasks():
            present = next((one.metadata for one in store.versions(task) if one.current), None)
            if present is not None and not present.validation_examples:
                text = f"the personal model of {task} was made without validation data; its figure may be a little too high"
                remedy = "give the device more examples, or the task a validation part (validation_share)"
                checkup.warn("personal_model", text, remedy)


def _refused(name: str, error: FedpatchError, checkup: Checkup) -> None:
    """Add the finding that files cannot be read; the error's message ends with the remedy."""
    checkup.fail(name, *problem_and_remedy(error_text(error)))


def _check_preferences(settings: AgentSettings, checkup: Checkup, root: Path) -> None:
    """Show why work would be declined now: the device is in order, but its owner may wonder why nothing happens."""
    try:
        found = look(settings, root)
    except StateError as error:
        _refused("preferences", error, checkup)
        return
    for words in found.differences:
        checkup.warn("settings", *problem_and_remedy(words))
    why_not, with_these = found.why_not, " with these settings" if found.differences else ""
    if not why_not:
        checkup.good("preferences", "; ".join([f"work would be accepted now{with_these}", *found.terms]))
        return
    remedy = (
        "nothing, if that is meant; `fedpatch-agent conditions` shows the facts, "
        "docs/reference/preferences.md lists the settings"
    )
    checkup.warn("preferences", f"work would be declined now{with_these}: {'; '.join(why_not)}", remedy)
    if found.verdict == RESTORED_ACCOUNT and not found.of_agent:  # `stored` finds a damaged one
        checkup.fail("privacy_account", *problem_and_remedy(found.damage))


def _check_private(private: Mapping[str, Any], checkup: Checkup) -> None:
    """Check the private floor: the tensors that stay on this device for any request."""
    words = str(private["words"])
    if private["source"] == DAMAGED:
        text, remedy = problem_and_remedy(words)
        if "Set `private`" in words:  # else only the right to read it is missing, and the error has the remedy
            text, remedy = words, "docs/reference/preferences.md says what `private` may be"
        checkup.fail("private", text, remedy)
    elif private["below_default"]:
        remedy = "nothing, if that is meant; else set `private` to affine or all, or leave it out"
        checkup.warn("private", f"{words}; a request may have gamma and beta, trained on this device's data", remedy)
    elif private["keeps_nothing"]:
        remedy = "name what is to stay: private = names:<glob,...>; `none` says that nothing is meant to"
        checkup.warn("private", f"{words}; the setting keeps no tensor of this model", remedy)
    else:
        checkup.good("private", words)


def _check_network(open_since: str | None, checkup: Checkup) -> None:
    """Check that the kernel closes the network of the training process; no finding for an agent whose task is not loaded."""
    if open_since:
        remedy = "use a kernel with CONFIG_SECCOMP_FILTER on x86_64, aarch64 or 32-bit ARM, or train only tasks that you trust"
        checkup.warn("network", f"the task's code can open connections, since {open_since}", remedy)
    elif open_since is not None:
        checkup.good(
            "network", "the training process has no network: the kernel refuses each connection of the task's code"
        )


def _private_of_agent(settings: AgentSettings, directory: Path) -> Mapping[str, Any]:
    """Return the private values in the status of the running agent; until it has them, those known without its model."""
    if private := _status_of_agent(directory).get("private"):
        return dict(private)
    return least_without_model(settings.private, directory / PATCHES)


def _is_running(directory: Path) -> bool:
    try:
        return is_held(directory / LOCK_NAME)
    except (OSError, StateError):  # without locks `state_dir` has failed
        return False


def _status_of_agent(directory: Path) -> Mapping[str, Any]:
    """Return the status of the running agent; empty if it is damaged."""
    with suppress(FedpatchError):
        return read_standing(directory).status
    return {}


def _running_agent(directory: Path) -> str:
    status = _status_of_agent(directory)
    tasks = [f"{one['task']} with {one['num_examples']} training examples" for one in status.get("tasks", ())]
    return f"an agent is at work here: {', '.join(tasks) or 'its task is being loaded'}"


@contextmanager
def _loading(
    settings: AgentSettings, identity: Identity, checkup: Checkup
) -> Iterator[tuple[Trainer, SimpleQueue[TrainerEvent]] | None]:
    """Start the training process, and yield it with the queue of its events; None if `task` has failed before."""
    checkup.say(f"loading task {settings.task} with data {settings.data} (torch takes its time)")
    answers: SimpleQueue[TrainerEvent] = SimpleQueue()
    with tempfile.TemporaryDirectory(prefix="fedpatch-doctor-") as nowhere:
        try:
            setup = setup_of(settings, Path(nowhere), identity.device)
        except UsageError as error:
            _refused("task", error, checkup)
            yield None
            return
        trainer = Trainer(setup, answers.put)
        try:
            trainer.start()
            yield trainer, answers
        finally:
            trainer.stop()


def _check_task(
    settings: AgentSettings, trainer: Trainer, answers: SimpleQueue[TrainerEvent], checkup: Checkup, patch_dir: Path
) -> None:
    """Run the check `task` and, if the task could be loaded, the checks `private` and `memory`."""
    checkup.say("waiting for the training process")
    what = f"task {settings.task} with data {settings.data}"
    try:
        answer = answers.get(timeout=TASK_TIMEOUT_S)
    except Empty:
        remedy = "see with --debug what it does; a first import from a slow SD card may take this long, so try again"
        checkup.fail("task", f"{what} was not loaded within {TASK_TIMEOUT_S:g} s", remedy)
        return
    match answer:
        case Ready():
            examples = f"{answer.num_examples} training examples and some to test with"
            checkup.good("task", f"{answer.task} is loaded: {examples}, schema {answer.schema[:12]}")
            _check_validation(answer, settings, checkup)
            if answer.frozen.names:
                checkup.good("frozen", f"{answer.frozen}; they never travel")
            limits = OwnerLimits(
                patch_dir, private=settings.private, max_steps=settings.max_steps, max_epochs=settings.max_epochs
            )
            limits.take(answer)
            _check_private(limits.status(), checkup)
            _check_network(answer.network_open, checkup)
            _check_memory(trainer, checkup)
        case SetupFailed(exit_code=UsageError.exit_code):
            remedy = "correct --task, --data or --private; `fedpatch tasks` lists what is installed, and why one cannot be used"
            checkup.fail("task", answer.detail, remedy)
        case SetupFailed():
            remedy = (
                f"put the data set below {trainer.setup.data_root} (or name its place with --data-root), or correct --data; "
                f"`fedpatch-agent check-task {settings.task} --data SPEC` names every problem"
            )
            checkup.fail("task", answer.detail, remedy)
        case Died():
            remedy = (
                "see its output with --debug; SIGILL means a torch for another processor, SIGKILL too little memory"
            )
            checkup.fail("task", f"{what}: {answer.detail}", remedy)
        case _:
            raise WireError(f"training channel: {type(answer).__name__} in answer to Setup")


def _check_validation(ready: Ready, settings: AgentSettings, checkup: Checkup) -> None:
    """Warn if no validation examples choose the personal model; no finding without personal models."""
    if not settings.keep_models:
        return
    if ready.num_validation:
        checkup.good("validation", f"{ready.num_validation} validation examples choose the personal model")
        return
    text = (
        f"{ready.task} has no validation examples with data {settings.data}: test data must choose the personal model"
    )
    remedy = "give the device more examples, or the data a validation part (validation_share of the task, or ,validation=0.1)"
    checkup.warn("validation", text, remedy)


def _check_memory(trainer: Trainer, checkup: Checkup) -> None:
    resident = resident_memory(trainer.pid) if trainer.pid is not None else None
    held = f", which holds {size(resident)}," if resident else ""
    what = f"beside the loaded training process{held} a model of {size(_SMALL_MODEL_BYTES)}"
    check_memory(TRAINING_FACTOR * _SMALL_MODEL_BYTES, what, checkup)


def _check_broker(settings: AgentSettings, identity: Identity, checkup: Checkup, running: bool) -> None:
    user = settings.username or parse_broker_url(settings.broker).username
    side = AclParty("device", identity.fleet, identity.device, identity.client_id, user)
    asked = check_broker(settings, side, DEFAULT_CHUNK_KIB * 1024, checkup)
    if asked is None:
        checkup.skip("coordinator", "the broker was not asked for it")
        return
    checkup.skip("queue", "no broker publishes its queue length for a client; dropped ones are requested again")
    if "coordinator_state" in asked.foreign and not asked.reached.loopback:
        remedy = f"give the broker the rules of `fedpatch broker acl --fleet {identity.fleet}`, and every device its own user"
        checkup.warn("access", "the broker lets a device speak as the coordinator: there are no access rules", remedy)
    _check_name(asked, identity, settings.state_dir.absolute(), checkup, running=running)
    _check_coordinator(settings, side, asked, checkup)


def _check_name(asked: Asked, identity: Identity, directory: Path, checkup: Checkup, *, running: bool) -> None:
    """Warn if an agent of this name is online, or was started last, that does not use our state directory."""
    state = _last(asked.presence, topics.device_state(identity.fleet, identity.device))
    if running or not isinstance(state, DeviceState):
        return
    boots = former_boots(directory)
    if is_foreign(state, boots) and may_be_lost(directory, boots):
        checkup.warn("state_lasts", *loss_in_words(identity.device, directory))
    if state.online:
        text = (
            f"an agent named {identity.device} is online in fleet {identity.fleet}, and not with this state directory"
        )
        remedy = "give every device its own --device-id; if it runs here, name its --state-dir"
        checkup.warn("device_name", text, remedy)


def _check_coordinator(settings: AgentSettings, side: AclParty, asked: Asked, checkup: Checkup) -> None:
    state = _last(asked.presence, topics.coordinator_state(side.fleet))
    if not isinstance(state, CoordinatorState):
        text = f"no coordinator was ever seen in fleet {side.fleet} on this broker"
        remedy = "begin a run with `fedpatch run`; if one is going on, compare the fleet's name and the access rules"
        checkup.warn("coordinator", text, f"{remedy} (topic read {topics.coordinator_state(side.fleet)})")
    elif not state.online:
        checkup.good("coordinator", f"none is at work in fleet {side.fleet} now; an agent waits for one")
    else:
        # Without access rules, the question can use a name that no device has, so that the coordinator counts no device.
        name = side.stranger if "coordinator_state" in asked.foreign else side.device
        took_s = _ask_coordinator(settings, side, name)
        if took_s is not None:
            checkup.good(
                "coordinator", f"one is at work in fleet {side.fleet}, and answered {name} in {1e3 * took_s:.0f} ms"
            )
        else:
            text = (
                f"one is shown at work in fleet {side.fleet}, but did not answer {name} within {ANSWER_TIMEOUT_S:g} s"
            )
            remedy = (
                "ask again, it may be busy; if it ended together with its broker, the next run clears this; else make the "
                "acl_file anew with `fedpatch broker acl` and look at its log"
            )
            checkup.warn("coordinator", text, remedy)


def _ask_coordinator(settings: AgentSettings, side: AclParty, name: str) -> float | None:
    """Report work on a run that does not exist, which the coordinator cancels. Return the seconds; None without an answer."""
    question = Envelope(Progress(JobPhase.TRAINING, 0, 0), run=side.stranger)
    down = topics.down(side.fleet, name)
    try:
        with Probe(settings, side.probe_id("c")) as probe:
            probe.subscribe(down)
            began = time.monotonic()
            probe.publish(topics.up(side.fleet, name), encode(question))
            while (left_s := began + ANSWER_TIMEOUT_S - time.monotonic()) > 0 and not probe.fault:
                if any(_is_answer(one, side.stranger) for one in probe.received):
                    return time.monotonic() - began
                probe.received.clear()
                probe.gets(down, timeout_s=left_s)
    except BrokerError:
        pass
    return None


def _is_answer(message: Received, run: str) -> bool:
    try:
        envelope = decode(message.payload)
    except WireError:
        return False
    return envelope.run == run and isinstance(envelope.body, Cancel)


def _last(presence: list[Received], topic: str) -> object:
    """Return the last message of a topic; None if it is from another program."""
    found = [one.payload for one in presence if one.topic == topic]
    try:
        return decode(found[-1]).body if found else None
    except WireError:
        return None
