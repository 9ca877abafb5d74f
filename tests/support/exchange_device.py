"""A device of the exchange: a real job, with a simulated disk, network and training."""

from __future__ import annotations

import hashlib
import random
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from fedpatch.device_agent.job.effect_loop import drive_job
from fedpatch.device_agent.job.job_effects import (
    Effect,
    EndJob,
    JobKey,
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
    LinkRestored,
    MessageReceived,
    TrainingFailed,
    TrainingProgressed,
    UpdateRestored,
    UpdateTrained,
)
from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.shared.wire.chunk_upload import SendChunk
from fedpatch.shared.wire.chunks import Bitmap, cut, decode_chunk, encode_chunk
from fedpatch.shared.wire.codec import decode, encode
from fedpatch.shared.wire.messages import Ack, Committed, Envelope, Grant, Manifest, Offer, WorkRequest
from fedpatch.shared.wire.reason_codes import FailReason
from tests.device_agent.jobs import requested
from tests.support.specs import TASKS, gone, there, update

if TYPE_CHECKING:
    from tests.support.exchange import Exchange

READY_S = 0.5
WILL_S = 1.5


class Device:
    """Runs its job's effects; its disk survives a restart. It asserts the rules that a device must never break."""

    def __init__(self, name: str, world: Exchange, seed: int) -> None:
        self.name = name
        self.tasks = TASKS
        self.verdict = AdmissionDecision(True)
        self.train_s = (1.0, 5.0)
        self.fails: FailReason | None = None
        self.online = False
        self.job = Job(max_blob_bytes=10_000)
        self.outcomes: list[str] = []
        self._world = world
        self._rng = random.Random(seed)
        self._boots = 0
        self._ready = False
        self._parts: dict[int, bytes] = {}
        self._update: tuple[JobKey, Manifest, bytes] | None = None
        self._request: WorkRequest | None = None
        self._fresh = b""
        self._under_way: Counter[int] = Counter()
        self._committed: set[str] = set()
        self._settled: set[JobKey] = set()

    # ---- external events

    def start(self) -> None:
        """Switch on: the job resumes an update in the spool, and the task is ready a little later."""
        self._boots += 1
        self.online, self._ready = True, False
        self.job = Job(max_blob_bytes=10_000)
        self._settled = set()
        self._under_way.clear()
        if self._update is not None and self._request is not None:
            self.job.handle(UpdateRestored(self._update[0], self._update[1], self._request), self._world.now)
        self._world.agenda.after(READY_S, partial(self._become_ready, self._boots))

    def restart(self, down_s: float, torn: bool = False) -> None:
        """Switch off and on again; `torn`: the power cut spoils a chunk of the download."""
        boot = self._boot
        self.online = False
        self._boots += 1
        self.job = Job(max_blob_bytes=10_000)
        if torn and self._parts:
            self._parts[min(self._parts)] = b"torn"
        # The last will may come before the device is back, or after; it has the boot id from before the restart.
        self._world.agenda.after(self._rng.uniform(0, down_s + 2), partial(self._publish, encode(Envelope(gone(boot)))))
        self._world.agenda.after(down_s, self.start)

    def unplug(self, down_s: float) -> None:
        """Break the connection; the device continues its work."""
        if not self.online:
            return
        self.online = False
        self._world.agenda.after(WILL_S, partial(self._give_will, self._boots))
        self._world.agenda.after(down_s, partial(self._reconnect, self._boots))

    def _reconnect(self, boots: int) -> None:
        if boots == self._boots and not self.online:
            self.online = True
            self.announce_state()
            self.job.handle(LinkRestored(), self._world.now)

    def _give_will(self, boots: int) -> None:
        if boots == self._boots and not self.online:
            self._publish(encode(Envelope(gone(self._boot))))

    def _become_ready(self, boots: int) -> None:
        if boots == self._boots:
            self._ready = True
            self.announce_state()

    @property
    def _boot(self) -> str:
        return f"{self.name}-{self._boots}"

    def announce_state(self) -> None:
        """Publish presence; the link delivers presence in order and loses none, since it is retained."""
        if self.online and self._ready:
            self._publish(encode(Envelope(there(self._boot, self.job.status(), self.tasks))))

    def _publish(self, state: bytes) -> None:
        self._world.publish_state(self.name, state)

    def on_coordinator(self) -> None:
        if self.online:
            self.announce_state()
            self.job.handle(LinkRestored(), self._world.now)

    # ---- received messages

    def on_down(self, payload: bytes) -> None:
        if not self.online:
            return
        envelope, now = decode(payload), self._world.now
        body = envelope.body
        if isinstance(body, WorkRequest):
            self.perform(self.job.handle(requested(envelope, self.tasks if self._ready else (), self.verdict), now))
            return
        if isinstance(body, Grant | Ack) and self._update is not None and body.digest == self._update[1].digest:
            for index in Bitmap.from_bytes(self._update[1].chunk_count, body.have):
                del self._under_way[index]
        effects = self.job.handle(MessageReceived(envelope), now)
        if isinstance(body, Committed) and any(isinstance(one, EndJob) and one.committed for one in effects):
            self._committed.add(body.digest)
        self.perform(effects)

    def on_chunk(self, payload: bytes) -> None:
        if self.online:
            self.perform(self.job.handle(ChunkReceived(decode_chunk(payload)), self._world.now))

    def tick(self) -> None:
        self.perform(self.job.tick(self._world.now))

    def next_deadline(self) -> float | None:
        return self.job.next_deadline() if self.online else None

    # ---- its actions

    def perform(self, effects: list[Effect]) -> None:
        """Run these effects and the effects that follow from them."""
        drive_job(self.job, effects, self, lambda: self._world.now)
        assert self._under_way.total() <= self._world.spec.upload_window

    def run_effect(self, effect: Effect) -> list[JobEvent]:
        match effect:
            case SendMessage():
                self._reply(effect.envelope)
            case StartDownload():
                [whole] = effect.blobs
                self._world.subscribe(self, whole)
                return [DownloadStarted({whole.digest: self._parts.keys()})]
            case WriteChunk():
                self._parts[effect.chunk.index] = effect.chunk.data
            case StartTraining():
                return self._train(effect)
            case SpoolUpdate():
                known = self._update is not None and self._update[1] == effect.manifest
                blob = self._update[2] if known and self._update is not None else self._fresh
                self._update, self._request = (effect.key, effect.manifest, blob), effect.request
            case SendChunk() if self._update is not None:
                self._under_way[effect.index] += 1
                _, manifest, blob = self._update
                payload = encode_chunk(cut(blob, manifest, effect.index))
                self._send(partial(self._world.on_chunk, self.name, payload))
            case EndJob():
                self.outcomes.append(effect.outcome)
                if self._update is not None and not effect.outcome.startswith("superseded"):
                    self._settled.add(self._update[0])
                self._parts, self._update = {}, None
                self._under_way.clear()
        return []

    def _reply(self, envelope: Envelope) -> None:
        if isinstance(envelope.body, Offer):
            self._under_way.clear()
            key = JobKey(envelope.run, envelope.epoch, envelope.round, envelope.task)
            assert envelope.body.manifest.digest not in self._committed, "a committed update is offered again"
            assert key not in self._settled, "a settled round is worked on again"
        self._send(partial(self._world.on_up, self.name, encode(envelope)))

    def _send(self, deliver: partial[None]) -> None:
        if self.online:
            self._world.link.send(deliver)

    def _train(self, effect: StartTraining) -> list[JobEvent]:
        blob = b"".join(self._parts[index] for index in sorted(self._parts))
        if hashlib.sha256(blob).hexdigest() != effect.request.model.digest:
            self._parts = {}
            return [DownloadDamaged()]
        seconds = self._rng.uniform(*self.train_s)
        self._world.agenda.after(seconds / 2, partial(self._show_progress, self.job, effect.key))
        self._world.agenda.after(seconds, partial(self._finish_training, self.job, effect.key))
        return []

    def _show_progress(self, job: Job, key: JobKey) -> None:
        if job is self.job:
            self.perform(job.handle(TrainingProgressed(key, 1, 2), self._world.now))

    def _finish_training(self, job: Job, key: JobKey) -> None:
        """End the training. The process of an earlier start is gone; a process that was stopped may still have sent events."""
        if job is not self.job:
            return
        if self.fails is not None:
            self.perform(job.handle(TrainingFailed(key, self.fails, "as planned"), self._world.now))
            return
        self._fresh = self._rng.randbytes(self._rng.randint(1, 900))
        self.perform(job.handle(UpdateTrained(key, update(self._fresh)), self._world.now))
