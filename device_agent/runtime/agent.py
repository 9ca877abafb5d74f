"""The agent's loop: take one event off the queue, hand it to the job, perform the effects.

    queue -> Agent.turn(event) -> Job.handle -> effects -> EffectRunner.run -> completion events -> Job.handle ...

One thread owns all state; link, trainer, fact watcher and signal handlers only put events into the queue. This process has the
network and no private value: data, patch and torch are in the training process.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from queue import Empty

from fedpatch.device_agent.job.download_plan import plan_download
from fedpatch.device_agent.job.effect_loop import drive_job
from fedpatch.device_agent.job.job_effects import Effect, JobKey
from fedpatch.device_agent.job.job_events import (
    ChunkReceived,
    CoordinatorStarted,
    JobEvent,
    LinkRestored,
    MessageReceived,
    TrainingFailed,
    TrainingProgressed,
    WorkRequested,
)
from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.device_agent.job.training_messages import (
    Evaluated,
    Masked,
    ModelHeld,
    ModelMade,
    Ready,
    SetupFailed,
    Trained,
    TrainFailed,
    TrainProgress,
)
from fedpatch.device_agent.policy.unmet_preferences import Preferences
from fedpatch.device_agent.runtime.agent_events import AgentEvent, EventQueue, Reload, Stop, TurnEvent
from fedpatch.device_agent.runtime.agent_ports import LimitsPort, OwnerPort, TrainingPort
from fedpatch.device_agent.runtime.effect_runner import EffectRunner
from fedpatch.device_agent.runtime.housekeeping import Housekeeping
from fedpatch.device_agent.runtime.model_fetcher import ChunkFetched, FetchEnded
from fedpatch.device_agent.runtime.name_check import NameChecked
from fedpatch.device_agent.runtime.presence import AgentLink, Identity, Presence
from fedpatch.device_agent.runtime.request_admission import RequestAdmission
from fedpatch.device_agent.runtime.settings_in_force import SettingsInForce
from fedpatch.device_agent.runtime.status_writer import STOPPED, StatusWriter
from fedpatch.device_agent.runtime.training_outcome import outcome_of
from fedpatch.device_agent.runtime.training_supervisor import Died, TrainerEvent
from fedpatch.device_agent.sensors.device_facts import Facts
from fedpatch.device_agent.state.leader_epoch import LeaderEpoch
from fedpatch.device_agent.state.status_file import STARTING, StatusFile
from fedpatch.device_agent.state.storage_check import Storage
from fedpatch.device_agent.training.resource_limits import give_memory_back
from fedpatch.shared.deadlines import earliest
from fedpatch.shared.errors import DataError, UsageError, WireError
from fedpatch.shared.mqtt.events import Connected, Disconnected, Received
from fedpatch.shared.tensors.schema import Schema
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.chunks import decode_chunk
from fedpatch.shared.wire.codec import UnknownMessage, decode
from fedpatch.shared.wire.messages import (
    Body,
    CoordinatorState,
    DeviceState,
    Envelope,
    TaskCapability,
    WorkRequest,
    members_field,
)
from fedpatch.shared.wire.reason_codes import Condition, FailCause, FailReason

_log = logging.getLogger("fedpatch.agent")


# How long an ending agent waits for a personal model; a Raspberry Pi makes one in a second or two.
FINISH_MODEL_S = 10.0

# Training processes that may be killed before the first is ready.
EARLY_DEATHS = 3


class Agent:
    """Runs one device until a Stop comes.

    Args:
        identity: Names of this agent.
        job: The state machine of work requests.
        runner: Performs the job's effects.
        queue: Events of link, trainer, fact watcher and signal handlers.
        link: Connection to the broker.
        trainer: The training process.
        owner: The owner's preferences.
        limits: The owner's limits.
        storage: The check of the device's storage.
        presence: Publishes the device's state.
        housekeeping: Work of each turn beside the job.
        status: status.json.
        leader: The highest epoch of the fleet's leaders.
        settings: The settings in force; None where they are not the agent's own.
        ask_for_name: Begins to find out whether another agent is online under this name, which ends with a NameChecked; None
            to connect at once.
        clock: Returns monotonic seconds.
    """

    def __init__(  # noqa: PLR0913 - the parts of an agent, each made by startup
        self,
        identity: Identity,
        job: Job,
        runner: EffectRunner,
        *,
        queue: EventQueue,
        link: AgentLink,
        trainer: TrainingPort,
        owner: OwnerPort,
        limits: LimitsPort,
        storage: Storage,
        presence: Presence,
        housekeeping: Housekeeping,
        status: StatusFile,
        leader: LeaderEpoch,
        settings: SettingsInForce | None = None,
        ask_for_name: Callable[[], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._identity = identity
        self._job = job
        self._runner = runner
        self._queue = queue
        self._link = link
        self._trainer = trainer
        self._owner = owner
        self._limits = limits
        self._storage = storage
        self._presence = presence
        self._admission = RequestAdmission(job, presence, limits, storage, owner)
        self._housekeeping = housekeeping
        self._leader = leader
        self._settings = settings
        self._status = StatusWriter(status, job, runner, owner, limits, self._admission, presence, settings)
        self._ask_for_name = ask_for_name
        self._is_linked = False
        self._clock = clock
        self._tasks: tuple[TaskCapability, ...] = ()
        self._waiting_request: Envelope | None = None  # waits for facts
        self._published_unwilling: Condition | None = None
        self._coordinator_boot = ""
        self._early_deaths = 0
        self._network_open = ""

    # ---- the loop

    def run(self) -> int:
        """Run until a Stop and return its exit code. DataError or UsageError where task or data cannot be used at all."""
        self.start()
        try:
            while True:
                self._report()
                event = self._next_event()
                if isinstance(event, Stop):
                    if event.why:
                        _log.info("stopping: %s", event.why)
                    self._finish_model()
                    return event.exit_code
                if isinstance(event, Reload):
                    self._reload()
                    continue
                self.turn(event)
        finally:
            self._stop()

    def start(self) -> None:
        """Start the training process and connect.

        While another agent is online under this name, it connects only once task and data are loaded: an agent that cannot
        work must not cut off a running one.
        """
        self._trainer.start()
        self._link.subscribe(*topics.device_filters(self._identity.fleet, self._identity.device))
        if self._ask_for_name is None:
            self._connect()
        else:
            self._ask_for_name()

    def _connect(self) -> None:
        if not self._is_linked:
            self._is_linked = True
            self._link.start()

    def _on_name(self, in_use: bool) -> list[Effect]:
        if in_use:
            self._presence.suspect(self._clock())
        if in_use and not self._tasks:
            me = self._identity.device
            _log.warning("an agent with the name %s is online; connecting once task and data are loaded", me)
        else:
            self._connect()
        return []

    def _reload(self) -> None:
        if self._settings is not None:
            self._settings.reload(lambda settings: self._owner.use(Preferences.of(settings)))

    def turn(self, event: TurnEvent | None) -> None:
        """Do one turn of the loop: handle an event, if there is one, then let time pass."""
        if event is not None:
            self._perform(self._handle(event, self._clock()))
        self._presence.tick(self._clock())
        if self._presence.connected:
            self._perform(self._job.tick(self._clock()))
        self._runner.tick(self._clock())
        self._owner.tick(self._job, self._clock())
        if self._owner.unwilling != self._published_unwilling or self._presence.is_outdated:
            self._publish_state()
        if self._tasks:
            self._presence.publish_vitals(self._owner.facts, self._runner.times.last, self._clock())

    def next_deadline(self) -> float | None:
        """Return the latest time of the next turn; None if it depends on events alone."""
        job_at = self._job.next_deadline() if self._presence.connected else None
        return earliest(
            job_at,
            self._presence.next_deadline(),
            self._runner.next_deadline(),
            self._owner.next_deadline(self._job),
            self._housekeeping.next_deadline(),
        )

    def _next_event(self) -> AgentEvent | None:
        deadline = self.next_deadline()
        try:
            return self._queue.get(timeout=None if deadline is None else max(0.0, deadline - self._clock()))
        except Empty:
            return None

    def _finish_model(self) -> None:
        """Wait briefly for the personal model of a committed round. If it is not ready, it is made after the next start."""
        give_up_at = self._clock() + FINISH_MODEL_S
        self._runner.make_owed_model()
        while self._runner.owes_model and (left_s := give_up_at - self._clock()) > 0:
            try:
                event = self._queue.get(timeout=left_s)
            except Empty:
                return
            if isinstance(event, Stop):
                return
            if isinstance(event, ModelMade | Died | SetupFailed):
                self._runner.model_made()

    def _stop(self) -> None:
        self._housekeeping.stopping()
        self._presence.publish_gone()
        self._link.stop()
        self._runner.stop()
        self._trainer.stop()
        self._owner.stop(self._clock())
        self._write_status(STOPPED)

    # ---- events

    def _perform(self, effects: Iterable[Effect]) -> None:
        drive_job(self._job, effects, self._runner, self._clock)

    def _effects_of(self, events: Iterable[JobEvent], now: float) -> list[Effect]:
        return [effect for event in events for effect in self._job.handle(event, now)]

    def _handle(self, event: TurnEvent, now: float) -> list[Effect]:
        match event:
            case Connected():
                _log.info("connected to the broker, MQTT %s", event.protocol)
                self._presence.link_up(retain=event.retain_available)
                self._publish_state()
                return self._job.handle(LinkRestored(), now)
            case Disconnected(reason=reason):
                _log.warning("broker: %s; trying again", reason)
                self._presence.link_down()
                return []
            case Received():
                return self._on_received(event, now)
            case Facts():
                return self._on_facts(event, now)
            case NameChecked():
                self._runner.moved_beside(event.traffic)
                return self._on_name(event.in_use)
            case ChunkFetched() | FetchEnded():
                return self._effects_of(self._runner.fetched(event), now)
            case _:
                return self._on_trainer(event, now)

    def _on_received(self, event: Received, now: float) -> list[Effect]:
        topic = topics.parse_topic(self._identity.fleet, event.topic)
        if topic is None or not event.payload:
            return []
        try:
            if topic.kind == "model_chunk":
                return self._job.handle(ChunkReceived(decode_chunk(event.payload)), now)
            envelope = decode(event.payload)
            if topic.kind in ("coordinator_state", "device_state"):
                return self._on_state(envelope.body, now)
            if topic.kind == "down" and isinstance(envelope.body, WorkRequest):
                return self._on_request(envelope, envelope.body, now)
            if topic.kind == "down":
                return self._job.handle(MessageReceived(envelope), now)
        except UnknownMessage as error:
            if error.request is not None and self._tasks:
                # Without an answer the coordinator would wait for this device in each round.
                _log.warning("a work request of a later version is declined: %s", error)
                return self._job.decline_unknown(error.request, str(error))
            _log.debug("%s: %s", event.topic, error)
        except WireError as error:
            _log.warning("%s: ignored, %s", event.topic, error)
        return []

    def _on_state(self, state: Body, now: float) -> list[Effect]:
        """The coordinator's state, or a state on the device's own topic."""
        if isinstance(state, DeviceState):
            if self._presence.observe(state, now):
                self._publish_state()
        elif isinstance(state, CoordinatorState) and state.online and state.boot != self._coordinator_boot:
            if not self._leader.admits(state.leader_epoch):
                return []
            self._coordinator_boot = state.boot
            # Not every broker retains the states that devices published before this coordinator was there.
            self._presence.resend_vitals()
            self._publish_state()
            return self._job.handle(CoordinatorStarted(), now)
        return []

    # ---- a work request: the admission decides, then the job answers

    def _on_request(self, envelope: Envelope, request: WorkRequest, now: float) -> list[Effect]:
        if not self._tasks:
            return []  # not ready yet; the coordinator asks again
        if not self._leader.admits(request.leader_epoch):
            return []
        plan = plan_download(request, self._runner.held_version, self._job.max_blob_bytes)
        decision = self._admission.decide(envelope, request, self._tasks, plan, now)
        if decision is None:
            self._waiting_request = envelope  # the newest: the coordinator has superseded those before it
            return []
        # Only the plan has URLs: a request is kept on the disk, and the keys of a masked round depend on it.
        envelope = replace(envelope, body=request.at({}))
        effects = self._job.handle(WorkRequested(envelope, self._tasks, decision, plan), now)
        key = JobKey(envelope.run, envelope.epoch, envelope.round, envelope.task)
        if self._job.is_on(key):
            self._runner.note_work(key, request.model.digest)
        return effects

    def _on_facts(self, facts: Facts, now: float) -> list[Effect]:
        """New facts: the owner's policy may change the current work, and a request that waited is decided."""
        events = self._owner.update_facts(facts, self._job, [capability.task for capability in self._tasks], now)
        effects = self._effects_of(events, now)
        envelope, self._waiting_request = self._waiting_request, None
        if envelope is not None and isinstance(envelope.body, WorkRequest):
            effects += self._on_request(envelope, envelope.body, now)
        return effects

    # ---- the training process

    def _on_trainer(self, event: TrainerEvent, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if isinstance(event, ModelMade | Died | SetupFailed):
            effects = self._effects_of(self._runner.model_made(), now)
        if isinstance(event, Died | SetupFailed):
            self._runner.model_held("")
        match event:
            case ModelHeld():
                self._runner.model_held(event.version)
            case Ready():
                _log.info("ready: task %s, %d training examples", event.task, event.num_examples)
                self._take_network_open(event.network_open)
                effects += self._on_ready(event, now)
            case SetupFailed() | Died():
                effects += self._on_process_end(event, now)
            case TrainProgress():
                progress = self._job.handle(TrainingProgressed(event.key, event.done, event.total), now)
                # Without a connection these messages would fill the queue ahead of the presence at the next connection.
                effects += progress if self._presence.connected else []
            case Trained() | Evaluated() | Masked() | TrainFailed():
                self._runner.note_outcome(event)
                effects += self._job.handle(outcome_of(event, self._job.request, self._limits), now)
        return effects

    def _take_network_open(self, why: str) -> None:
        if why and why != self._network_open:
            _log.warning("%s; the task's code can open connections", why)
        self._network_open = why

    def _on_ready(self, ready: Ready, now: float) -> list[Effect]:
        self._limits.take(ready)
        self._storage.take(Schema(ready.tensors, ready.frozen))
        first = not self._tasks
        if first:
            self._connect()
        members = members_field(ready.members)
        self._tasks = (TaskCapability(ready.task, ready.schema, ready.num_examples, members),)
        # Not earlier: without the model it is unknown which tensors may leave.
        effects = self._effects_of(self._runner.take_up_spooled(), now) if first else []
        self._publish_state()
        if first:
            give_memory_back()  # of the imports
        return effects

    def _on_process_end(self, event: SetupFailed | Died, now: float) -> list[Effect]:
        """End the rounds that the process had. The next round starts another process, unless none was ever ready."""
        if self._tasks:
            if not event.lost:
                _log.warning("%s, without a round to work on", event.detail)
            # A process that the kernel kills has most often used too much memory.
            cause = FailCause.MEMORY if isinstance(event, Died) and event.killed else FailCause.PROCESS
            lost = (TrainingFailed(key, FailReason.TRAINING, event.detail, cause) for key in event.lost)
            return self._effects_of(lost, now)
        if isinstance(event, SetupFailed):
            raise (UsageError if event.exit_code == UsageError.exit_code else DataError)(event.detail)
        # Loading torch takes half a minute, in which memory may run out.
        if not event.killed or self._early_deaths == EARLY_DEATHS:
            raise DataError(f"{event.detail} before it was ready")
        self._early_deaths += 1
        _log.warning("%s before it was ready; starting another", event.detail)
        self._trainer.start()
        return []

    # ---- reports

    def _publish_state(self) -> None:
        self._presence.publish(self._tasks, self._job.status(), self._owner.unwilling)
        if self._presence.connected:
            self._published_unwilling = self._owner.unwilling

    def _report(self) -> None:
        """Bring status.json, systemd and local metrics up to date."""
        self._write_status(self._job.state if self._tasks else STARTING)
        self._housekeeping.tick(
            self._job,
            connected=self._presence.connected,
            task=self._tasks[0].task if self._tasks else "",
            now=self._clock(),
            busy=self._runner.making_model or self._runner.owes_model,
        )

    def _write_status(self, state: str) -> None:
        self._status.write(state, self._tasks, self._network_open, self._clock())
