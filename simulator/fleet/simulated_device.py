"""A device of a simulated fleet: the agent's real job, with a simulated disk, training and link.

It disconnects as a Raspberry Pi does: without power or network its training is lost, but the global model and a finished
update are on its card, and the device resumes with them.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

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
    WorkRequest,
)
from fedpatch.simulator.fleet.absences import DeviceAbsences
from fedpatch.simulator.fleet.links import MESSAGE_BYTES, NetworkLine, tag_of
from fedpatch.simulator.fleet.random_traits import DeviceOutcome, draw_outcome, draw_traits
from fedpatch.simulator.fleet.settings import OTHER_SCHEMA, SCHEMA, TASK, FleetTerms
from fedpatch.simulator.fleet.virtual_clock import Timer

if TYPE_CHECKING:
    from fedpatch.simulator.fleet.simulation import SimulatedFleet

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
        self._absences = DeviceAbsences(terms, number, world.agenda, self._restart, self._leave)

    def switch_on(self) -> None:
        """Begin the study, present or absent."""
        self._absences.begin()

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

    def _leave(self) -> None:
        if self.online:
            self._switch_off()

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
