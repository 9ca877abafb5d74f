"""A whole fleet in one process: the real engine and real jobs, joined by simulated lines, under a virtual clock.

For studies of the round policy: the effect of deadlines, quorum, over-selection and buffered rounds if devices are slow,
decline and drop out. Nothing is trained, unless the terms name a task (simulator.fleet.learning). The broker is assumed to be
always fast enough; packing, saving and averaging take no time.

A device of a simulated fleet is the agent's real job, with a simulated disk, training and link.

It disconnects as a Raspberry Pi does: without power or network its training is lost, but the global model and a finished
update are on its card, and the device resumes with them.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from fedpatch.coordinator.rounds import run_effects, run_engine, run_events
from fedpatch.coordinator.rounds.round_record import RoundRecord
from fedpatch.coordinator.rounds.run_engine import Engine
from fedpatch.coordinator.rounds.termination import Stopped
from fedpatch.device_agent.job.download_plan import DownloadPlan
from fedpatch.device_agent.job.effect_loop import drive_job
from fedpatch.device_agent.job.job_effects import (
    Effect,
    EndJob,
    JobKey,
    JobState,
    SendMessage,
    SpoolUpdate,
    StartDownload,
    StartTraining,
    WriteChunk,
)
from fedpatch.device_agent.job.job_events import (
    AdmissionDecision,
    ChunkReceived,
    DownloadDamaged,
    DownloadStarted,
    JobEvent,
    MessageReceived,
    UpdateRestored,
    UpdateTrained,
    WorkRequested,
)
from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.shared.wire.chunk_upload import SendChunk
from fedpatch.shared.wire.chunks import Chunk
from fedpatch.shared.wire.messages import (
    MAX_BLOB_BYTES,
    DeviceState,
    Envelope,
    Manifest,
    TaskCapability,
    UpdateReport,
    WorkRequest,
)
from fedpatch.simulator.fleet.links import MESSAGE_BYTES, STAND_IN_BYTES, FakeBlob, FleetWire, NetworkLine, tag_of
from fedpatch.simulator.fleet.random_traits import DeviceOutcome, draw_outcome, draw_traits
from fedpatch.simulator.fleet.report import FleetReport, FleetRound
from fedpatch.simulator.fleet.settings import OTHER_SCHEMA, SCHEMA, TASK, FleetTerms
from fedpatch.simulator.fleet.virtual_clock import Timer, VirtualClock

if TYPE_CHECKING:
    from fedpatch.simulator.fleet.learning import FleetLearning

# A broker detects a silent connection after one and a half keepalives; the agent's keepalive is 30 s.
WILL_S = 45.0

_WILLING, _UNWILLING = AdmissionDecision(True), AdmissionDecision(False, "its owner says no")


class FleetDevice:
    """A device of the fleet, with its random traits."""

    def __init__(self, number: int, terms: FleetTerms, world: SimulatedFleet) -> None:
        self.name = f"device-{number}"
        self.online = False
        self.job = Job(max_blob_bytes=MAX_BLOB_BYTES)
        self._number = number
        self._terms = terms
        self._world = world
        self._agenda = world.agenda
        self._traits = draw_traits(terms, number)
        losses = random.Random(f"{terms.seed}:{number}:losses")
        about = (terms.latency_s, terms.message_loss, losses)
        self.down = NetworkLine(world.agenda, self._traits.down_bits_s, *about)
        self._up = NetworkLine(world.agenda, self._traits.up_bits_s, *about)
        self._alarm = Timer(world.agenda, self._wake)
        schema = OTHER_SCHEMA if self._traits.outdated else SCHEMA
        self._tasks = (TaskCapability(TASK, schema, 1),)
        self._boots = 0
        self._round = 0
        self._outcome: DeviceOutcome | None = None
        self._parts: dict[int, bytes] = {}
        self._parts_of = ""
        self._update: SpoolUpdate | None = None
        self._absences = random.Random(f"{terms.seed}:{number}:absences")

    def switch_on(self) -> None:
        """Begin the study, present or absent."""
        share, away_s = self._terms.away_share, self._terms.away_s
        if share and self._absences.random() < share:
            self._agenda.after(self._absences.expovariate(1 / away_s), self._return)
            return
        self.start()
        self._plan_absence()

    def _plan_absence(self) -> None:
        share, away_s = self._terms.away_share, self._terms.away_s
        if share:
            self._agenda.after(self._absences.expovariate(share / (away_s * (1 - share))), self._go_away)

    def _go_away(self) -> None:
        away_s = self._absences.expovariate(1 / self._terms.away_s)
        if self.online:
            self._switch_off()
        self._agenda.after(away_s, self._return)

    def _return(self) -> None:
        if not self.online:
            self.start()
        self._plan_absence()

    def start(self) -> None:
        """Start the device; an update in the spool is restored."""
        self._boots += 1
        self.online = True
        self.job = Job(max_blob_bytes=MAX_BLOB_BYTES)
        if self._update is not None:
            waits = self._update
            self.job.handle(UpdateRestored(waits.key, waits.manifest, waits.request), self._agenda.now)
        state = DeviceState(True, self._boot, tasks=self._tasks, job=self.job.status())
        self._up.send(MESSAGE_BYTES, partial(self._world.on_state, self.name, self._pass(state)), safe=True)
        self._alarm.set(self.job.next_deadline())

    def on_message(self, envelope: Envelope) -> None:
        """Handle a message of the coordinator."""
        now = self._agenda.now
        if isinstance(envelope.body, WorkRequest):
            verdict = _WILLING if self._outcome_in(envelope.round).willing else _UNWILLING
            self._perform(
                self.job.handle(WorkRequested(envelope, self._tasks, verdict, DownloadPlan(envelope.body.model)), now)
            )
        else:
            self._perform(self.job.handle(MessageReceived(envelope), now))

    def on_model_chunk(self, chunk: Chunk) -> None:
        """Handle a chunk of the global model."""
        self._perform(self.job.handle(ChunkReceived(chunk), self._agenda.now))

    @property
    def _boot(self) -> str:
        return f"{self.name}-{self._boots}"

    def _pass(self, state: DeviceState) -> Envelope:
        return self._world.wire.message(Envelope(state))

    def _outcome_in(self, round_number: int) -> DeviceOutcome:
        if self._outcome is None or self._round != round_number:
            self._round = round_number
            self._outcome = draw_outcome(self._terms, self._number, self._traits.train_s, round_number)
            if self._world.train_s_of is not None:
                self._outcome = replace(self._outcome, train_s=self._world.train_s_of(self._number, round_number))
        return self._outcome

    def _wake(self) -> None:
        if self.online:
            self._perform(self.job.tick(self._agenda.now))

    def _go_off(self, job: Job, key: JobKey, away_s: float) -> None:
        """Disconnect in the middle of a job, if the device still does this job, in any epoch."""
        if job is not self.job or job.key is None or (job.key.run, job.key.round) != (key.run, key.round):
            return
        self._switch_off()
        self._agenda.after(away_s, self._restart)

    def _restart(self) -> None:
        if not self.online:
            self.start()

    def _switch_off(self) -> None:
        self.online = False
        self._up.cut()
        self.down.cut()
        self._world.unsubscribe(self)
        self.job = Job(max_blob_bytes=MAX_BLOB_BYTES)
        self._agenda.after(WILL_S, partial(self._give_will, self._boots))

    def _give_will(self, boots: int) -> None:
        if boots == self._boots:
            self._world.on_state(self.name, self._pass(DeviceState(False, self._boot)))

    # ---- effects of the job

    def _perform(self, effects: list[Effect]) -> None:
        drive_job(self.job, effects, self, lambda: self._agenda.now)
        self._alarm.set(self.job.next_deadline())

    def run_effect(self, effect: Effect) -> list[JobEvent]:
        """Perform one effect (EffectHandler)."""
        match effect:
            case SendMessage():
                message = self._world.wire.message(effect.envelope)
                self._up.send(MESSAGE_BYTES, partial(self._world.on_message, self.name, message))
            case StartDownload():
                return self._fetch(*effect.blobs)
            case WriteChunk():
                self._parts[effect.chunk.index] = effect.chunk.data
            case StartTraining():
                return self._train(effect)
            case SpoolUpdate():
                self._update = effect
            case SendChunk():
                self._send_chunk(effect.index)
            case EndJob():
                self._world.unsubscribe(self)
                self._parts, self._update = {}, None
        return []

    def _fetch(self, manifest: Manifest) -> list[JobEvent]:
        if self._parts_of != manifest.digest:
            self._parts, self._parts_of = {}, manifest.digest
        self._world.subscribe(self, manifest.digest)
        return [DownloadStarted({manifest.digest: self._parts.keys()})]

    def _train(self, effect: StartTraining) -> list[JobEvent]:
        self._world.unsubscribe(self)
        blob = b"".join(self._parts[index] for index in sorted(self._parts))
        if hashlib.sha256(blob).hexdigest() != effect.request.model.digest:
            self._parts = {}
            return [DownloadDamaged()]
        outcome = self._outcome_in(effect.key.round)
        self._world.trains(effect.key.round)
        if outcome.off_training is not None:
            self._outcome = replace(outcome, off_training=None)  # only once in a round
            self._agenda.after(
                outcome.train_s * outcome.off_training, partial(self._go_off, self.job, effect.key, outcome.away_s)
            )
        self._agenda.after(outcome.train_s, partial(self._finish, self.job, effect.key))
        return []

    def _finish(self, job: Job, key: JobKey) -> None:
        """End a training. A training before a restart is lost; the job ignores one that is no longer needed."""
        if job is self.job and job.state is JobState.TRAINING and job.key == key:
            if self._world.learning is not None:
                self._world.learning.train(self._number, key.round, self._outcome_in(key.round).train_s)
            manifest = self._world.updates.manifest(tag_of(self._number, key.round))
            self._perform(job.handle(UpdateTrained(key, manifest), self._agenda.now))

    def _send_chunk(self, index: int) -> None:
        assert self._update is not None
        key, manifest = self._update.key, self._update.manifest
        stand_in = self._world.updates
        chunk = self._world.wire.chunk(stand_in.chunk(manifest, tag_of(self._number, key.round), index))
        arrive = partial(self._world.on_chunk, self.name, chunk, stand_in.real_bytes(index))
        self._up.send(stand_in.line_bytes(index), arrive)
        outcome = self._outcome_in(key.round)
        if outcome.off_upload is not None and index >= int(outcome.off_upload * manifest.chunk_count):
            self._outcome = replace(outcome, off_upload=None)  # only once in a round
            self._agenda.after(0.0, partial(self._go_off, self.job, key, outcome.away_s))


OnRound = Callable[[FleetRound], None]

# Owner of the global model's chunks; devices are numbered from 1.
_COORDINATOR = 0
# Report of an untrained update: one example, no user accuracy.
_REPORT = UpdateReport("00" * 32, 1, 1, 0.0, None, None, 0.0, 0.0)


def simulate_fleet(
    terms: FleetTerms,
    on_round: OnRound = lambda _: None,
    *,
    wire: bool = False,
    learning: FleetLearning | None = None,
) -> FleetReport:
    """Play all rounds.

    Args:
        terms: The checked study, as shared.config.load.load returns it.
        on_round: Called with each round when it is over.
        wire: Whether all messages pass the codec.
        learning: The training; None: the training of `terms`, if they name a task.
    """
    began = time.perf_counter()
    if learning is None and terms.train is not None:
        from fedpatch.simulator.fleet.learning import FleetLearning  # imports torch, which takes a second

        learning = FleetLearning(terms)
    fleet = SimulatedFleet(terms, on_round, wire=wire, learning=learning)
    finish = fleet.run()
    if learning is not None:
        learning.close()
    return FleetReport(
        terms=terms,
        rounds=tuple(fleet.rounds),
        stopped_because=finish.reason.value,
        detail=finish.detail,
        virtual_s=fleet.agenda.now,
        real_s=time.perf_counter() - began,
        events=fleet.agenda.done,
    )


class SimulatedFleet:
    """The coordinator with its broker, and all devices. The time per event does not depend on the number of devices.

    Args:
        terms: The study.
        on_round: Called with each round when it is over.
        wire: Whether all messages pass the codec.
        learning: The training; None trains nothing.
        train_s_of: Returns the training time in seconds of a device in a round (both numbered from 1); None: it is drawn.
    """

    def __init__(
        self,
        terms: FleetTerms,
        on_round: OnRound = lambda _: None,
        *,
        wire: bool = False,
        learning: FleetLearning | None = None,
        train_s_of: Callable[[int, int], float] | None = None,
    ) -> None:
        self.train_s_of = train_s_of
        self.agenda = VirtualClock(0.0)
        self.learning = learning
        self.wire = FleetWire(real=wire)
        self.updates = FakeBlob(terms.update_bytes, terms.chunk_bytes)
        self.rounds: list[FleetRound] = []
        self._on_round = on_round
        self._models = FakeBlob(terms.model_bytes, terms.chunk_bytes)
        self._engine = Engine(
            terms.run_spec(chunk_bytes=STAND_IN_BYTES), jitter=random.Random(f"{terms.seed}:coordinator")
        )
        self._alarm = Timer(self.agenda, self._wake)
        self._devices = {
            one.name: one for one in (FleetDevice(number, terms, self) for number in range(1, terms.devices + 1))
        }
        self._manifest: Manifest | None = None
        self._chunks: tuple[Chunk, ...] = ()
        self._subscribers: dict[str, FleetDevice] = {}
        self._trainings = self._bytes_down = self._bytes_up = 0
        self._finish: run_effects.EndRun | None = None
        self._version = 0

    def run(self) -> run_effects.EndRun:
        """Run until the engine ends the run."""
        self._perform(self._engine.handle(run_events.RunStarted(), self.agenda.now))
        for device in self._devices.values():
            device.switch_on()
        while self._finish is None:
            self.agenda.run_next()
        return self._finish

    # ---- the broker, as devices see it

    def on_state(self, device: str, envelope: Envelope) -> None:
        """Handle the presence of a device."""
        assert isinstance(envelope.body, DeviceState)
        self._perform(self._engine.handle(run_events.DevicePresence(device, envelope.body), self.agenda.now))

    def on_message(self, device: str, envelope: Envelope) -> None:
        """Handle a message of a device."""
        self._perform(self._engine.handle(run_events.DeviceMessage(device, envelope), self.agenda.now))

    def on_chunk(self, device: str, chunk: Chunk, size_bytes: int) -> None:
        """Handle a chunk of a device's update, which replaces `size_bytes` bytes."""
        self._bytes_up += size_bytes
        self._perform(self._engine.handle(run_events.ChunkReceived(device, chunk), self.agenda.now))

    def subscribe(self, device: FleetDevice, digest: str) -> None:
        """Subscribe a device to the chunks of a model. They are retained, so they are sent at once."""
        if self._manifest is not None and self._manifest.digest == digest:
            self._subscribers[device.name] = device
            for index in range(len(self._chunks)):
                self._publish(index, device)

    def unsubscribe(self, device: FleetDevice) -> None:
        """Unsubscribe a device: it gets no chunks that are published again."""
        self._subscribers.pop(device.name, None)

    def trains(self, round_number: int) -> None:
        """Count a training that has begun, unless its round is over."""
        self._trainings += round_number == self._engine.last_round and self._engine.open is not None

    def _publish(self, index: int, device: FleetDevice) -> None:
        self._bytes_down += self._models.real_bytes(index)
        chunk = self.wire.chunk(self._chunks[index])
        device.down.send(self._models.line_bytes(index), partial(device.on_model_chunk, chunk))

    # ---- effects of the coordinator

    def _wake(self) -> None:
        self._perform(self._engine.handle(run_events.TimePassed(), self.agenda.now))

    def _perform(self, effects: list[run_effects.Effect]) -> None:
        run_engine.drive_engine(self._engine, effects, self, lambda: self.agenda.now)
        self._alarm.set(self._engine.next_deadline())

    def run_effect(self, effect: run_effects.Effect) -> Iterable[run_events.Event]:
        """Run an effect of the coordinator; effects that the engine waits for complete at once."""
        match effect:
            case run_effects.SendMessage():
                self._send(effect)
            case run_effects.PublishModel():
                manifest = self._publish_model(effect.round)
                return (run_events.ModelPublished(manifest, version=self._version),)
            case run_effects.StoreUpdate():
                report = self._report_of(effect)
                return (run_events.UpdateStored(effect.round, effect.device, effect.manifest.digest, report),)
            case run_effects.AggregateUpdates():
                self._aggregate(effect)
                return (run_events.Aggregated(),)
            case run_effects.ResendChunks():
                for device, index in itertools.product(self._subscribers.values(), effect.indices):
                    self._publish(index, device)
            case run_effects.RetractModel():
                self._manifest, self._chunks = None, ()
                self._subscribers.clear()
            case run_effects.SaveRecord():
                self._save(effect.record)
            case run_effects.EndRun():
                self._finish = effect
        return ()

    def _report_of(self, effect: run_effects.StoreUpdate) -> UpdateReport:
        if self.learning is None:
            return _REPORT
        return self.learning.report(_number(effect.device), effect.base_round)

    def _aggregate(self, effect: run_effects.AggregateUpdates) -> None:
        self._version += 1
        if self.learning is not None:
            carried = {_number(device): work for device, work in effect.carried.items()}
            self.learning.fold(effect.round, [_number(device) for device in effect.devices], carried)

    def _save(self, record: RoundRecord) -> None:
        learned = None
        if self.learning is not None and record.outcome == "aggregated":
            learned = self.learning.measure(self.agenda.now)
        one = replace(FleetRound.of(record, **self._counted()), learned=learned)
        self.rounds.append(one)
        self._on_round(one)
        if self.learning is not None and learned is not None and self.learning.reached(learned):
            self._finish = run_effects.EndRun(Stopped.TARGET_UA, "")

    def _send(self, effect: run_effects.SendMessage) -> None:
        device = self._devices[effect.device]
        if device.online:
            device.down.send(MESSAGE_BYTES, partial(device.on_message, self.wire.message(effect.envelope)))

    def _publish_model(self, round_number: int) -> Manifest:
        if self.learning is not None:
            self.learning.publish(round_number)
        tag = tag_of(_COORDINATOR, round_number)
        manifest = self._models.manifest(tag)
        self._manifest = manifest
        self._chunks = tuple(self._models.chunk(manifest, tag, index) for index in range(manifest.chunk_count))
        return manifest

    def _counted(self) -> dict[str, int]:
        """Return the traffic and the begun trainings since the last call, and count from zero again."""
        counted = {"trainings": self._trainings, "bytes_down": self._bytes_down, "bytes_up": self._bytes_up}
        self._trainings = self._bytes_down = self._bytes_up = 0
        return counted


def _number(device: str) -> int:
    return int(device.rpartition("-")[2])
