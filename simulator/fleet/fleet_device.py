"""A device of a simulated fleet: the agent's real job, with an imagined disk, training and link.

It goes off as a Raspberry Pi does: power or network are gone, what it was training is lost, the global model and a finished
update are on its card and taken up again when it is back.
"""

from __future__ import annotations

import hashlib
import random
from collections import deque
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from device_agent.admission import Verdict
from device_agent.effects import Effect, Fetch, Forget, JobKey, Keep, Reply, Spool, Train
from device_agent.job import Job
from shared.messages import MAX_BLOB_BYTES, DeviceState, Envelope, Manifest, TaskCapability, WorkRequest
from shared.transfer import Chunk, SendChunk
from simulator.agenda import Alarm
from simulator.fleet_draws import Fate, draw_fate, draw_traits
from simulator.fleet_link import MESSAGE_BYTES, Line, tag_of
from simulator.fleet_terms import OTHER_SCHEMA, SCHEMA, TASK, FleetTerms

if TYPE_CHECKING:
    from simulator.fleet import SimulatedFleet

# A broker notices a silent connection after one and a half keepalives; the agent's are 30 s.
WILL_S = 45.0

_WILLING, _UNWILLING = Verdict(True), Verdict(False, "its owner says no")


class FleetDevice:
    """One of many, with what was drawn for it."""

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
        self.down = Line(world.agenda, self._traits.down_bits_s, *about)
        self._up = Line(world.agenda, self._traits.up_bits_s, *about)
        self._alarm = Alarm(world.agenda, self._wake)
        schema = OTHER_SCHEMA if self._traits.outdated else SCHEMA
        self._tasks = (TaskCapability(TASK, schema, 1),)
        self._boots = 0
        self._round = 0
        self._fate: Fate | None = None
        self._parts: dict[int, bytes] = {}
        self._parts_of = ""
        self._update: Spool | None = None

    def start(self) -> None:
        """Switched on: an update in the spool is taken up."""
        self._boots += 1
        self.online = True
        self.job = Job(max_blob_bytes=MAX_BLOB_BYTES)
        if self._update is not None:
            waits = self._update
            self.job.resume(waits.key, waits.manifest, self._agenda.now, waits.request)
        state = DeviceState(True, self._boot, tasks=self._tasks, job=self.job.status())
        self._up.send(MESSAGE_BYTES, partial(self._world.on_state, self.name, self._pass(state)), safe=True)
        self._alarm.set(self.job.next_deadline())

    def on_message(self, envelope: Envelope) -> None:
        """The coordinator says something."""
        now = self._agenda.now
        if isinstance(envelope.body, WorkRequest):
            verdict = _WILLING if self._fate_in(envelope.round).willing else _UNWILLING
            self._perform(self.job.on_request(envelope, self._tasks, verdict, now))
        else:
            self._perform(self.job.on_message(envelope, now))

    def on_model_chunk(self, chunk: Chunk) -> None:
        """A chunk of the global model."""
        self._perform(self.job.on_chunk(chunk, self._agenda.now))

    @property
    def _boot(self) -> str:
        return f"{self.name}-{self._boots}"

    def _pass(self, state: DeviceState) -> Envelope:
        return self._world.wire.message(Envelope(state))

    def _fate_in(self, round_number: int) -> Fate:
        if self._fate is None or self._round != round_number:
            self._round = round_number
            self._fate = draw_fate(self._terms, self._number, self._traits.train_s, round_number)
        return self._fate

    def _wake(self) -> None:
        if self.online:
            self._perform(self.job.tick(self._agenda.now))

    def _go_off(self, job: Job, key: JobKey, away_s: float) -> None:
        """In the middle of a job, if it is still at that; in which epoch makes no difference."""
        if job is not self.job or job.key is None or (job.key.run, job.key.round) != (key.run, key.round):
            return
        self.online = False
        self._up.cut()
        self.down.cut()
        self._world.unsubscribe(self)
        self.job = Job(max_blob_bytes=MAX_BLOB_BYTES)
        self._agenda.after(WILL_S, partial(self._give_will, self._boots))
        self._agenda.after(away_s, self.start)

    def _give_will(self, boots: int) -> None:
        if boots == self._boots:
            self._world.on_state(self.name, self._pass(DeviceState(False, self._boot)))

    # ---- what its job wants done

    def _perform(self, effects: list[Effect]) -> None:
        queue = deque(effects)
        while queue:
            queue.extend(self._do(queue.popleft()))
        self._alarm.set(self.job.next_deadline())

    def _do(self, effect: Effect) -> list[Effect]:
        match effect:
            case Reply():
                message = self._world.wire.message(effect.envelope)
                self._up.send(MESSAGE_BYTES, partial(self._world.on_message, self.name, message))
            case Fetch():
                return self._fetch(*effect.blobs)
            case Keep():
                self._parts[effect.chunk.index] = effect.chunk.data
            case Train():
                return self._train(effect)
            case Spool():
                self._update = effect
            case SendChunk():
                self._send_chunk(effect.index)
            case Forget():
                self._world.unsubscribe(self)
                self._parts, self._update = {}, None
        return []

    def _fetch(self, manifest: Manifest) -> list[Effect]:
        if self._parts_of != manifest.digest:
            self._parts, self._parts_of = {}, manifest.digest
        self._world.subscribe(self, manifest.digest)
        return self.job.fetching({manifest.digest: self._parts.keys()}, self._agenda.now)

    def _train(self, effect: Train) -> list[Effect]:
        self._world.unsubscribe(self)
        blob = b"".join(self._parts[index] for index in sorted(self._parts))
        if hashlib.sha256(blob).hexdigest() != effect.request.model.digest:
            self._parts = {}
            return self.job.damaged()
        fate = self._fate_in(effect.key.round)
        self._world.trains(effect.key.round)
        if fate.off_training is not None:
            self._fate = replace(fate, off_training=None)  # once in a round
            self._agenda.after(
                fate.train_s * fate.off_training, partial(self._go_off, self.job, effect.key, fate.away_s)
            )
        self._agenda.after(fate.train_s, partial(self._finish, self.job, effect.key))
        return []

    def _finish(self, job: Job, key: JobKey) -> None:
        """The training of an earlier start is gone, and the job knows one that is of no use any more."""
        if job is self.job:
            manifest = self._world.updates.manifest(tag_of(self._number, key.round))
            self._perform(job.trained(key, manifest, self._agenda.now))

    def _send_chunk(self, index: int) -> None:
        assert self._update is not None
        key, manifest = self._update.key, self._update.manifest
        stand_in = self._world.updates
        chunk = self._world.wire.chunk(stand_in.chunk(manifest, tag_of(self._number, key.round), index))
        arrive = partial(self._world.on_chunk, self.name, chunk, stand_in.real_bytes(index))
        self._up.send(stand_in.line_bytes(index), arrive)
        fate = self._fate_in(key.round)
        if fate.off_upload is not None and index >= int(fate.off_upload * manifest.chunk_count):
            self._fate = replace(fate, off_upload=None)  # once in a round
            self._agenda.after(0.0, partial(self._go_off, self.job, key, fate.away_s))
