"""The agent's loop: take one event off the queue, hand it to the job, perform the effects.

One thread owns all state; the link, the trainer and the signal handlers only put events into the queue. This process has
the network and no private value: data, patch and torch are in the training process.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Protocol

from fedpatch.device_agent.job.job_effects import Effect, JobKey
from fedpatch.device_agent.job.request_answers import AdmissionDecision
from fedpatch.device_agent.job.training_messages import (
    ModelMade,
    Ready,
    SetupFailed,
    Trained,
    TrainFailed,
    TrainProgress,
)
from fedpatch.device_agent.policy.owner_limits import DAMAGED
from fedpatch.device_agent.policy.owner_policy import OwnerPolicy
from fedpatch.device_agent.runtime.duplicate_id import DuplicateIdDetector
from fedpatch.device_agent.runtime.effect_runner import EffectRunner
from fedpatch.device_agent.runtime.housekeeping import Housekeeping
from fedpatch.device_agent.runtime.training_supervisor import Died, Trainer, TrainerEvent
from fedpatch.device_agent.sensors.device_facts import Facts
from fedpatch.device_agent.state.status_file import STARTING, StatusFile
from fedpatch.device_agent.state.storage_check import Storage
from fedpatch.shared import __version__
from fedpatch.shared.errors import DataError, UsageError, WireError
from fedpatch.shared.mqtt.events import Connected, Disconnected, Link, LinkEvent, Received
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.chunked_transfer import decode_chunk
from fedpatch.shared.wire.codec import UnknownMessage, decode, encode
from fedpatch.shared.wire.messages import (
    DEVICE_FEATURES,
    ENCODINGS,
    Body,
    CoordinatorState,
    DeviceState,
    Envelope,
    TaskCapability,
    WorkRequest,
)
from fedpatch.shared.wire.reason_codes import Condition, FailReason

_log = logging.getLogger("fedpatch.agent")


@dataclass(frozen=True)
class Stop:
    """Somebody wants the agent to end, with this exit code."""

    exit_code: int


Event = LinkEvent | TrainerEvent | Facts | Stop
Inbox = SimpleQueue[Event]

# How long an agent that is to end waits for a personal model; to make one takes a Raspberry Pi a second or two.
FINISH_MODEL_S = 10.0

# Training processes that may be killed before the first is ready.
EARLY_DEATHS = 3


class AgentLink(Link, Protocol):
    """A link that can be told to take its time."""

    def use_long_backoff(self, patient: bool) -> None:
        """Whether to wait for as long as is allowed before each further attempt to connect."""


class Agent:
    """Runs until it is told to stop."""

    def __init__(
        self,
        performer: EffectRunner,
        *,
        link: AgentLink,
        inbox: Inbox,
        trainer: Trainer,
        owner: OwnerPolicy,
        status: StatusFile,
        namesake: DuplicateIdDetector,
        upkeep: Housekeeping,
    ) -> None:
        self._me, self._job = performer.me, performer.job
        self._performer = performer
        self._link = link
        self._inbox = inbox
        self._trainer = trainer
        self._owner = owner
        self._limits = performer.limits
        self._offer: Envelope | None = None  # that waits for facts
        self._unwilling: Condition | None = None  # as presence tells it
        self._status = status
        self._tasks: tuple[TaskCapability, ...] = ()
        self._retain = True
        self._connected = False
        self._coordinator_boot = ""
        self._namesake = namesake
        self._upkeep = upkeep
        self._problem = ""
        self._storage = Storage(performer.directory)
        self._storage_problem = ""
        self._early_deaths = 0

    def run(self) -> int:
        """The exit code. Raises DataError when the task or its data cannot be used at all."""
        self._trainer.start()
        self._link.subscribe(*topics.device_filters(self._me.fleet, self._me.device))
        self._link.start()
        try:
            return self._loop()
        finally:
            self._upkeep.stopping()
            topic, gone = self._me.will()
            if self._connected:
                self._link.publish(topic, gone, retain=self._retain)
            self._link.stop()
            self._trainer.stop()
            self._owner.stop(time.monotonic())
            self._write_status("stopped")

    def _loop(self) -> int:
        while True:
            self._write_status(self._job.state if self._tasks else STARTING)
            now = time.monotonic()
            task = self._tasks[0].task if self._tasks else ""
            self._upkeep.look(
                self._job, connected=self._connected, task=task, now=now, busy=self._performer.making_model
            )
            event = self._next_event()
            if isinstance(event, Stop):
                self._finish_model()
                return event.exit_code
            effects = self._handle(event, time.monotonic()) if event is not None else []
            self._performer.perform(effects)
            if self._namesake.tick(time.monotonic()):
                self._note_namesake()
            if self._connected:
                self._performer.perform(self._job.tick(time.monotonic()))
            self._owner.tick(self._job, time.monotonic())
            if self._owner.unwilling != self._unwilling:
                self._tell_state()
            self._tell_vitals(time.monotonic())

    def _finish_model(self) -> None:
        """Wait a little for the personal model of a committed round. Else it is made after the next start."""
        give_up_at = time.monotonic() + FINISH_MODEL_S
        while self._performer.owes_model and (left_s := give_up_at - time.monotonic()) > 0:
            try:
                event = self._inbox.get(timeout=left_s)
            except Empty:
                return
            if isinstance(event, Stop):
                return
            if isinstance(event, ModelMade | Died | SetupFailed):
                self._performer.model_made()

    def _next_event(self) -> Event | None:
        job_at = self._job.next_deadline() if self._connected else None
        of_others = (self._namesake.next_deadline(), self._owner.next_deadline(self._job), self._upkeep.next_deadline())
        wanted = (job_at, *of_others)
        deadline = min((one for one in wanted if one is not None), default=None)
        try:
            return self._inbox.get(timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))
        except Empty:
            return None

    def _handle(self, event: LinkEvent | TrainerEvent | Facts, now: float) -> list[Effect]:
        match event:
            case Connected():
                _log.info("connected to the broker, MQTT %s", event.protocol)
                self._connected, self._retain = True, event.retain_available
                self._namesake.connected()
                self._upkeep.resend_vitals()
                self._tell_state()
                self._job.reconnected(now)
            case Disconnected(reason=reason):
                _log.warning("broker: %s; trying again", reason)
                self._connected = False
            case Received():
                return self._on_received(event, now)
            case Facts():
                effects = self._owner.update_facts(event, self._job, [one.task for one in self._tasks], now)
                offer, self._offer = self._offer, None
                return effects if offer is None else [*effects, *self._on_offer(offer, now)]
            case _:
                return self._on_trainer(event, now)
        return []

    def _on_trainer(self, event: TrainerEvent, now: float) -> list[Effect]:
        if isinstance(event, ModelMade | Died | SetupFailed):
            self._performer.model_made()
        match event:
            case Ready():
                _log.info("ready: task %s, %d training examples", event.task, event.num_examples)
                self._ready(event)
            case SetupFailed() if not self._tasks:
                raise (UsageError if event.exit_code == UsageError.exit_code else DataError)(event.detail)
            case Died() if not self._tasks:
                self._start_again(event)
            case SetupFailed() | Died():  # the next round starts another process, which may fare better
                if not event.lost:
                    _log.warning("%s, without a round to work on", event.detail)
                failed = (self._job.training_failed(key, FailReason.TRAINING, event.detail) for key in event.lost)
                return [effect for effects in failed for effect in effects]
            case TrainProgress():
                told = self._job.progress(event.key, event.done, event.total)
                # Without a connection they would fill the queue that our presence has to pass when there is one again.
                return told if self._connected else []
            case Trained():
                return self._on_trained(event, now)
            case TrainFailed():
                return self._job.training_failed(event.key, event.reason, event.detail)
        return []

    def _ready(self, ready: Ready) -> None:
        self._limits.take(ready)
        first = not self._tasks
        self._tasks = (TaskCapability(ready.task, ready.schema, ready.num_examples),)
        if first:  # not before: without the model nobody knows what may leave
            self._performer.take_up_spooled()
        self._tell_state()

    def _on_trained(self, trained: Trained, now: float) -> list[Effect]:
        self._performer.trained(trained)
        if why := self._limits.why_not_send(self._job.request, trained.manifest):
            return self._job.training_failed(trained.key, FailReason.TRAINING, why)
        return self._job.trained(trained.key, trained.manifest, now)

    def _start_again(self, died: Died) -> None:
        """To load torch takes half a minute in which memory may run out, or somebody end the process."""
        if not died.killed or self._early_deaths == EARLY_DEATHS:
            raise DataError(f"{died.detail} before it was ready")
        self._early_deaths += 1
        _log.warning("%s before it was ready; starting another", died.detail)
        self._trainer.start()

    def _tell_state(self) -> None:
        """Tells who this is and what it does; without tasks, that it is starting: a coordinator then knows that it comes."""
        if not self._connected:
            return
        state = DeviceState(
            online=True,
            boot=self._me.boot,
            version=__version__,
            tasks=self._tasks,
            encodings=ENCODINGS,
            job=self._job.status(),
            unwilling=self._owner.unwilling,
            features=DEVICE_FEATURES,
        )
        self._unwilling = self._owner.unwilling
        self._link.publish(
            topics.device_state(self._me.fleet, self._me.device), encode(Envelope(state)), retain=self._retain
        )

    def _tell_vitals(self, now: float) -> None:
        if not self._connected or not self._tasks:
            return
        vitals = self._upkeep.vitals(self._owner.facts, self._performer.times.last, now)
        if vitals is not None:
            self._link.publish(topics.up(self._me.fleet, self._me.device), encode(Envelope(vitals)))

    def _on_received(self, event: Received, now: float) -> list[Effect]:
        topic = topics.parse_topic(self._me.fleet, event.topic)
        if topic is None or not event.payload:
            return []
        try:
            if topic.kind == "model_chunk":
                return self._job.on_chunk(decode_chunk(event.payload), now)
            envelope = decode(event.payload)
            if topic.kind in ("coordinator_state", "device_state"):
                self._on_state(envelope.body, now)
            elif topic.kind == "down" and isinstance(envelope.body, WorkRequest):
                return self._on_offer(envelope, now)
            elif topic.kind == "down":
                return self._job.on_message(envelope, now)
        except UnknownMessage as error:
            _log.debug("%s: %s", event.topic, error)
        except WireError as error:
            _log.warning("%s: ignored, %s", event.topic, error)
        return []

    def _on_offer(self, envelope: Envelope, now: float) -> list[Effect]:
        if not self._tasks:
            return []  # not ready yet; the coordinator asks again
        assert isinstance(envelope.body, WorkRequest)
        held = self._performer.held_version
        verdict = self._limits.refusal(envelope.task, envelope.body) or self._storage_verdict(envelope, held)
        verdict = verdict or self._owner.decide(envelope.task, envelope.body, now, held)
        if verdict is None:
            self._offer = envelope  # the newest: what was asked before it is not wanted any more
            return []
        return self._job.on_request(envelope, self._tasks, verdict, now, held)

    def _storage_verdict(self, envelope: Envelope, held: str) -> AdmissionDecision | None:
        """A decline where this device could not store what the round needs; the log and the status say what to do.

        The job in hand has what it needs: to be asked for it once more is no cause for alarm.
        """
        assert isinstance(envelope.body, WorkRequest)
        if self._job.is_on(JobKey(envelope.run, envelope.epoch, envelope.round, envelope.task)):
            return None
        found = self._storage.problem(envelope.task, envelope.body, held)
        text = found.text if found else ""
        if text != self._storage_problem:
            self._storage_problem = text
            if text:
                _log.error("%s; until then every round is declined", text)
            else:
                _log.info("what a round needs can be stored again")
        return found.verdict if found else None

    def _on_state(self, state: Body, now: float) -> None:
        """The coordinator's, or what stands on our own topic: anybody may have written that who uses our id."""
        if isinstance(state, DeviceState):
            if self._namesake.observe(state, now):
                self._note_namesake()
        elif isinstance(state, CoordinatorState) and state.online and state.boot != self._coordinator_boot:
            self._coordinator_boot = state.boot
            # Not every broker retains what a device said of itself before this coordinator was there.
            self._upkeep.resend_vitals()
            self._tell_state()
            self._job.reconnected(now)

    def _note_namesake(self) -> None:
        """Which of the two is right nobody knows: both stay, but they stop fighting for the connection."""
        found = self._namesake.detected
        me = self._me
        text = f"another agent uses the device id {me.device!r} in fleet {me.fleet!r}; give one of them another --device-id"
        self._problem = text if found else ""
        if found:
            _log.error("%s", text)
        else:
            _log.info("the other agent with the device id %r has not been heard for a while", me.device)
        self._link.use_long_backoff(found)

    def _write_status(self, state: str) -> None:
        job, private = self._job.status(), self._limits.told()
        damaged = private["words"] if private.get("source") == DAMAGED else ""
        self._status.write(
            {
                "state": str(state),
                "connected": self._connected and state != "stopped",
                "run": job.run if job else None,
                "round": job.round if job else None,
                "tasks": [{"task": t.task, "schema": t.schema, "num_examples": t.num_examples} for t in self._tasks],
                "paused": self._job.paused,
                "unwilling": list(self._owner.words),
                "declines": damaged or self._storage_problem,
                "private": private,
                "last_outcome": self._performer.last_outcome,
                "problem": "; ".join(filter(None, (self._problem, self._storage_problem)))
                if state != "stopped"
                else "",
            }
        )
