"""The agent's loop: take one event off the queue, hand it to the job, perform the effects.

One thread owns all state; the link, the trainer and the signal handlers only put events into the queue. This process has
the network and no private value: data, patch and torch are in the training process.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue

from device_agent.admission import Order, Verdict, decide, parse_order
from device_agent.effects import Effect
from device_agent.job import Job, JobState
from device_agent.performing import Identity, Performer
from device_agent.presence import StatusFile, host_as_device_id, lock_state_dir
from device_agent.settings import AgentSettings
from device_agent.trainer import Died, Trainer, TrainerEvent
from device_agent.training_channel import Ready, Setup, SetupFailed, TrainCancelled, Trained, TrainFailed, TrainProgress
from shared import __version__, topics
from shared.codec import UnknownMessage, decode, encode
from shared.errors import DataError, UsageError, WireError
from shared.files import remove_unfinished
from shared.link import Connected, Disconnected, Link, LinkEvent, MqttLink, Received
from shared.messages import (
    ENCODINGS,
    CoordinatorState,
    DeviceState,
    Envelope,
    FailReason,
    TaskCapability,
    WorkRequest,
)
from shared.transfer import decode_chunk

_log = logging.getLogger("fedpatch.agent")


@dataclass(frozen=True)
class Stop:
    """Somebody wants the agent to end, with this exit code."""

    exit_code: int


Event = LinkEvent | TrainerEvent | Stop
Inbox = SimpleQueue[Event]


class Agent:
    """Runs until it is told to stop."""

    def __init__(
        self,
        identity: Identity,
        job: Job,
        performer: Performer,
        *,
        link: Link,
        inbox: Inbox,
        trainer: Trainer,
        order: Order,
        status: StatusFile,
    ) -> None:
        self._me = identity
        self._job = job
        self._performer = performer
        self._link = link
        self._inbox = inbox
        self._trainer = trainer
        self._order = order
        self._status = status
        self._tasks: tuple[TaskCapability, ...] = ()
        self._retain = True
        self._connected = False
        self._coordinator_boot = ""

    def run(self) -> int:
        """The exit code. Raises DataError when the task or its data cannot be used at all."""
        self._performer.take_up_spooled()
        self._trainer.start()
        self._link.subscribe(*topics.device_filters(self._me.fleet, self._me.device))
        self._link.start()
        try:
            return self._loop()
        finally:
            topic, gone = self._me.will()
            if self._connected:
                self._link.publish(topic, gone, retain=self._retain)
            self._link.stop()
            self._trainer.stop()
            self._write_status("stopped")

    def _loop(self) -> int:
        while True:
            self._write_status(self._job.state)
            event = self._next_event()
            if isinstance(event, Stop):
                return event.exit_code
            effects = self._handle(event, time.monotonic()) if event is not None else []
            self._performer.perform(effects)
            if self._connected:
                self._performer.perform(self._job.tick(time.monotonic()))

    def _next_event(self) -> Event | None:
        deadline = self._job.next_deadline() if self._connected else None
        try:
            return self._inbox.get(timeout=None if deadline is None else max(0.0, deadline - time.monotonic()))
        except Empty:
            return None

    def _handle(self, event: Event, now: float) -> list[Effect]:
        match event:
            case Connected():
                _log.info("connected to the broker, MQTT %s", event.protocol)
                self._connected, self._retain = True, event.retain_available
                self._tell_state()
                self._job.reconnected(now)
            case Disconnected(reason=reason):
                _log.warning("broker: %s; trying again", reason)
                self._connected = False
            case Received():
                return self._on_received(event, now)
            case Stop():
                pass
            case _:
                return self._on_trainer(event, now)
        return []

    def _on_trainer(self, event: TrainerEvent, now: float) -> list[Effect]:
        match event:
            case Ready():
                _log.info("ready: task %s, %d training examples", event.task, event.num_examples)
                self._tasks = (TaskCapability(event.task, event.schema, event.num_examples),)
                self._tell_state()
            case SetupFailed() if not self._tasks:
                raise (UsageError if event.exit_code == UsageError.exit_code else DataError)(event.detail)
            case Died() if not self._tasks:
                raise DataError(f"{event.detail} before it was ready")
            case SetupFailed() | Died():  # the next round starts another process, which may fare better
                return self._job.give_up(FailReason.TRAINING, event.detail) if self._training else []
            case TrainProgress():
                return self._job.progress(event.key, event.done, event.total)
            case Trained():
                return self._job.trained(event.key, event.manifest, now)
            case TrainFailed():
                return self._job.training_failed(event.key, event.reason, event.detail)
            case TrainCancelled():
                pass
        return []

    @property
    def _training(self) -> bool:
        return self._job.state is JobState.TRAINING

    def _tell_state(self) -> None:
        if not self._connected or not self._tasks:
            return
        state = DeviceState(
            online=True,
            boot=self._me.boot,
            version=__version__,
            tasks=self._tasks,
            encodings=ENCODINGS,
            job=self._job.status(),
        )
        self._link.publish(
            topics.device_state(self._me.fleet, self._me.device), encode(Envelope(state)), retain=self._retain
        )

    def _on_received(self, event: Received, now: float) -> list[Effect]:
        topic = topics.parse_topic(self._me.fleet, event.topic)
        if topic is None or not event.payload:
            return []
        try:
            if topic.kind == "model_chunk":
                return self._job.on_chunk(decode_chunk(event.payload), now)
            envelope = decode(event.payload)
            if topic.kind == "coordinator_state" and isinstance(envelope.body, CoordinatorState):
                self._on_coordinator(envelope.body, now)
            elif topic.kind == "down" and isinstance(envelope.body, WorkRequest):
                if not self._tasks:
                    return []  # not ready yet; the coordinator asks again
                return self._job.on_request(envelope, self._tasks, self._verdict(), now)
            elif topic.kind == "down":
                return self._job.on_message(envelope, now)
        except UnknownMessage as error:
            _log.debug("%s: %s", event.topic, error)
        except WireError as error:
            _log.warning("%s: ignored, %s", event.topic, error)
        return []

    def _on_coordinator(self, state: CoordinatorState, now: float) -> None:
        if state.online and state.boot != self._coordinator_boot:
            self._coordinator_boot = state.boot
            self._job.reconnected(now)

    def _verdict(self) -> Verdict:
        text = None
        if self._order.path:
            try:
                text = Path(self._order.path).read_text(encoding="utf-8", errors="replace")
            except OSError as error:
                _log.warning("admission: %s: %s", self._order.path, error.strerror)
        return decide(self._order, text)

    def _write_status(self, state: str) -> None:
        job = self._job.status()
        self._status.write(
            {
                "state": str(state),
                "connected": self._connected and state != "stopped",
                "run": job.run if job else None,
                "round": job.round if job else None,
                "tasks": [{"task": t.task, "schema": t.schema, "num_examples": t.num_examples} for t in self._tasks],
                "last_outcome": self._performer.last_outcome,
            }
        )


def run_agent(settings: AgentSettings, *, until_stdin_closes: bool = False) -> int:
    """Runs one device's agent until SIGTERM (exit code 0) or SIGINT (130); raises FedpatchErrors before it is at work.

    With `until_stdin_closes` it also ends with whoever started it.
    """
    order = parse_order(settings.admission)
    identity = Identity.new(settings.fleet, settings.device_id or host_as_device_id())
    directory = settings.state_dir.absolute()
    lock = lock_state_dir(directory)
    remove_unfinished(directory)
    inbox: Inbox = SimpleQueue()
    link = MqttLink(
        settings.broker,
        client_id=identity.client_id,
        events=inbox.put,
        will=identity.will(),
        username=settings.username,
        password=settings.password,
        ca_file=settings.ca_file,
        reconnect_delay_s=(settings.reconnect_min_s, settings.reconnect_max_s),
    )
    trainer = Trainer(
        Setup(
            task_ref=settings.task,
            data=settings.data,
            data_root=str((settings.data_root or _data_root()).absolute()),
            patch_dir=str(directory / "patches"),
            device_id=identity.device,
            threads=settings.threads,
        ),
        inbox.put,
    )
    job = Job(max_blob_bytes=settings.max_model_mib * 2**20)
    performer = Performer(identity, job, link=link, trainer=trainer, directory=directory)
    fixed = {"device_id": identity.device, "fleet": identity.fleet, "broker": settings.broker, "version": __version__}
    status = StatusFile(directory, fixed)
    agent = Agent(identity, job, performer, link=link, inbox=inbox, trainer=trainer, order=order, status=status)
    for number, exit_code in ((signal.SIGTERM, 0), (signal.SIGINT, 130)):
        signal.signal(number, lambda *_, code=exit_code: inbox.put(Stop(code)))
    if until_stdin_closes:
        threading.Thread(target=_stop_at_end_of_stdin, args=(inbox,), daemon=True).start()
    try:
        return agent.run()
    finally:
        lock.release()


def _data_root() -> Path:
    from shared.task import data_root

    return data_root()


def _stop_at_end_of_stdin(inbox: Inbox) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    inbox.put(Stop(0))
