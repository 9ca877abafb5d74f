"""One work request on the device, from offered to committed, as a state machine without IO.

    IDLE -> DOWNLOADING -> TRAINING -> UPLOADING -> IDLE

Messages and the time go in, effects come out; device_agent.runtime.effect_runner performs them. The coordinator may say
anything at any time and more than once: the same request again is answered again, the same work in a newer epoch goes on
there, any other newer request replaces the job, an answer to another job is ignored.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from fedpatch.device_agent.job.download import ModelDownload
from fedpatch.device_agent.job.download_plan import DownloadPlan, plan_download
from fedpatch.device_agent.job.job_effects import (
    ContinueTraining,
    DropHeldModel,
    Effect,
    EndJob,
    JobKey,
    JobState,
    PauseTraining,
    SpoolUpdate,
    StartTraining,
    StopDownload,
    StopTraining,
    WriteChunk,
)
from fedpatch.device_agent.job.request_answers import (
    AdmissionDecision,
    AnsweredRequests,
    continues,
    reason_to_decline,
)
from fedpatch.device_agent.job.upload import MessageFactory, UpdateUpload
from fedpatch.shared.wire.chunked_transfer import Chunk, SendChunk
from fedpatch.shared.wire.messages import (
    Cancel,
    Committed,
    Envelope,
    Failed,
    JobStatus,
    Manifest,
    Offer,
    Refused,
    TaskCapability,
    WorkRequest,
)
from fedpatch.shared.wire.reason_codes import Condition, FailReason, JobPhase


class Job:
    """Drive it with `on_request`, `on_message`, `on_chunk`, `tick` and the call-backs of the effects.

    Each returns effects, in order. With `ask_to_send` no update is offered before `go_on` clears it: `awaits_clearance`.
    """

    def __init__(self, *, max_blob_bytes: int, ask_to_send: bool = False) -> None:
        self.state = JobState.IDLE
        self.key: JobKey | None = None
        self.paused = False
        self.awaits_clearance = False
        self._ask_to_send = ask_to_send
        self._paused_for: Condition | None = None
        self._max_blob_bytes = max_blob_bytes
        self._request: WorkRequest | None = None
        self._incoming: ModelDownload | None = None
        self._upload: UpdateUpload | None = None
        self._past = AnsweredRequests()
        # What the training process was told: its answers bear it, also when the job has gone on in a newer epoch.
        self._training_key: JobKey | None = None
        self._deadline = self._accepted_at = 0.0
        self._says = MessageFactory()

    @property
    def request(self) -> WorkRequest | None:
        """The work request of the job in hand."""
        return self._request

    def is_on(self, key: JobKey) -> bool:
        """Whether a request for `key` asks for the work in hand, in its epoch or in a newer one."""
        return self.key is not None and key.epoch >= self.key.epoch and replace(key, epoch=self.key.epoch) == self.key

    # ---- messages

    def on_request(
        self,
        envelope: Envelope,
        tasks: tuple[TaskCapability, ...],
        verdict: AdmissionDecision,
        now: float,
        held: str = "",
    ) -> list[Effect]:
        """The coordinator asks. The verdict counts only for work that has not begun.

        `held` is the digest of the global model that this device has from before, "" for none.
        """
        request = envelope.body
        assert isinstance(request, WorkRequest)
        key = JobKey(envelope.run, envelope.epoch, envelope.round, envelope.task)
        if self.key == key:
            return self._says.where(self.state, key)
        if (said := self._past.answer(key)) is not None:
            return [self._says.reply(key, said)]
        # Without tasks this device is not ready yet, and a decline would be held against it: it will be asked again.
        if self._past.is_superseded(key) or not tasks:
            return []
        if continues(self.key, self._request, key, request, downloading=self.state is JobState.DOWNLOADING):
            return self._take_over(key, request, tasks, held, now)
        if declined := reason_to_decline(key.task, request, tasks, verdict, self._max_blob_bytes):
            # What is being done goes on: its own coordinator says when it is of no use.
            self._past.declined(key, declined)
            return [self._says.reply(key, declined)]
        effects = self._drop("superseded")
        self.state, self.key, self._request = JobState.DOWNLOADING, key, request
        self._past.accepted(key)
        self._deadline, self._accepted_at = now + request.deadline_s, now
        self._says.begins(key, tasks)
        self._incoming = ModelDownload(plan_download(request, held, self._max_blob_bytes))
        return [*effects, self._says.accept(key), self._incoming.fetch()]

    def on_message(self, envelope: Envelope, now: float) -> list[Effect]:
        """Any other message of the coordinator. WireError for a bitmap that does not fit."""
        key = self.key
        if key is None or (envelope.run, envelope.epoch, envelope.round) != (key.run, key.epoch, key.round):
            return []
        body = envelope.body
        if isinstance(body, Cancel):
            return self._settle(f"cancelled: {body.reason}")
        if self._upload is None or getattr(body, "digest", "") != self._upload.manifest.digest:
            return []
        match body:
            case Committed():
                return self._settle("committed", body.rest_s, committed=key)
            case Refused():
                return self._settle(f"refused: {body.reason} {body.detail}".rstrip())
        return self._sends(self._upload.on_message(body, now))

    def on_chunk(self, chunk: Chunk, now: float) -> list[Effect]:
        """A chunk of the global model, or of a step to it."""
        if self.state is not JobState.DOWNLOADING or self._incoming is None or not self._incoming.take(chunk, now):
            return []
        return [WriteChunk(chunk), *self._train_when_whole(now)]

    def reconnected(self, now: float) -> None:
        """The link is back: what was in flight may be lost."""
        if self._incoming is not None:
            self._incoming.reconnected(now)
        if self._upload is not None:
            self._upload.reconnected(now)

    # ---- what the effects report back

    def fetching(self, have: Mapping[str, Collection[int]], now: float) -> list[Effect]:
        """Room is made; `have` are chunks from before a restart, by the digest of their blob."""
        if self.state is not JobState.DOWNLOADING or self._incoming is None:
            return []
        self._incoming.begun(have, now)
        return self._train_when_whole(now)

    def damaged(self) -> list[Effect]:
        """The SHA-256 of what was fetched is wrong: the whole model, from the beginning."""
        return self._take_whole() if self.state is JobState.TRAINING else []

    def trained(self, key: JobKey, manifest: Manifest, now: float) -> list[Effect]:
        """The update lies on disk: remember it, then offer it."""
        if not self._trains(key):
            return []
        assert self.key is not None
        self.state = JobState.UPLOADING
        self._upload = self._outgoing(manifest, now)
        return [SpoolUpdate(self.key, manifest, self._request), *self._sends(self._upload.tick(now))]

    def resume(self, key: JobKey, manifest: Manifest, now: float, request: WorkRequest | None = None) -> None:
        """An update from before a restart is still to be committed; without its request, for no other epoch."""
        self.state, self.key, self._request = JobState.UPLOADING, key, request
        self._past.accepted(key)
        self._upload = self._outgoing(manifest, now)

    def give_up(self, reason: FailReason, detail: str, condition: Condition | None = None) -> list[Effect]:
        """The device cannot go on, or its owner does not want it to. `detail` stays here; nothing happens while idle."""
        if self.key is None:
            return []
        failed = Failed(reason, condition)
        self._past.gave_up(failed)
        return [self._says.reply(self.key, failed), *self._drop(f"gave up: {reason}: {detail}", gave_up=True)]

    def training_failed(self, key: JobKey, reason: FailReason, detail: str) -> list[Effect]:
        """LocalUpdate failed, for what matters of this job; if the steps from what is held led nowhere, the whole comes."""
        if not self._trains(key):
            return []
        if reason is not FailReason.DOWNLOAD or self._incoming is None or not self._incoming.way.held:
            return self.give_up(reason, detail)
        return [DropHeldModel(detail), *self._take_whole()]

    def progress(self, key: JobKey, done: int, total: int) -> list[Effect]:
        """A sign of life from training."""
        if not self._trains(key) or self.key is None:
            return []
        self._says.trained = (done, total)
        return [self._says.progress(self.key)]

    # ---- what its owner wants

    def pause(self, condition: Condition | None = None) -> list[Effect]:
        """Nothing is fetched, computed or sent until `go_on`; the round does not wait: its deadline is as it was."""
        if self.key is None or self.paused:
            return []
        self.paused, self.awaits_clearance, self._paused_for = True, False, condition
        if self._upload is not None:
            self._upload.held = True
            return []
        if self.state is JobState.TRAINING:
            return [PauseTraining()]
        assert self._incoming is not None
        self._incoming.stop()
        return [StopDownload()]

    def go_on(self, now: float) -> list[Effect]:
        """After a pause, from where it was; an update that awaits it may be sent."""
        if not (self.paused or self.awaits_clearance) or self.key is None:
            return []
        self.paused, self.awaits_clearance = False, False
        if self._upload is not None:
            return self._sends(self._upload.go_on(now))
        if self.state is JobState.TRAINING:
            return [ContinueTraining(), self._says.progress(self.key)]
        assert self._incoming is not None
        return [self._incoming.fetch()]

    # ---- time

    def tick(self, now: float) -> list[Effect]:
        """Lets time pass."""
        if self.state in (JobState.DOWNLOADING, JobState.TRAINING) and now >= self._deadline:
            if self.paused and self._paused_for is not None:
                return self.give_up(FailReason.UNWILLING, "the round's deadline passed in a pause", self._paused_for)
            return self.give_up(FailReason.DEADLINE, "the round's deadline passed")
        if self.state is JobState.DOWNLOADING and self._incoming is not None and self.key is not None:
            return [self._says.reply(self.key, need) for need in self._incoming.tick(now)]
        return self._sends(self._upload.tick(now)) if self._upload is not None else []

    def next_deadline(self) -> float | None:
        """When `tick` has something to do."""
        if self.state is JobState.IDLE:
            return None
        if self.state is JobState.UPLOADING and self._upload is not None:
            return self._upload.next_deadline()
        ask_at = self._incoming.next_deadline() if self._incoming is not None else None
        return self._deadline if ask_at is None else min(self._deadline, ask_at)

    def status(self) -> JobStatus | None:
        """What presence tells of the job."""
        if self.key is None:
            return None
        return JobStatus(self.key.run, self.key.epoch, self.key.round, JobPhase(self.state.value))

    # ---- within

    def _take_over(
        self, key: JobKey, request: WorkRequest, tasks: tuple[TaskCapability, ...], held: str, now: float
    ) -> list[Effect]:
        """The coordinator came back, and goes on with the round: so does the job, in the newer epoch."""
        self.key, self._request = key, request
        self._says.begins(key, tasks)
        self._past.accepted(key)
        self._deadline = now + request.deadline_s
        if self._upload is None:
            told = self._says.where(self.state, key)
            if self.state is JobState.DOWNLOADING and self._incoming is not None:
                told += self._incoming.goes_by(plan_download(request, held, self._max_blob_bytes), now)
            return told
        self._upload = UpdateUpload(self._upload.manifest, now, held=self._upload.held)
        offer = self._sends(self._upload.tick(now))
        return [SpoolUpdate(key, self._upload.manifest, request), self._says.accept(key), *offer]

    def _take_whole(self) -> list[Effect]:
        assert self._request is not None
        self.state, self._incoming = JobState.DOWNLOADING, ModelDownload(DownloadPlan(self._request.model))
        return [] if self.paused else [self._incoming.fetch()]

    def _train_when_whole(self, now: float) -> list[Effect]:
        if self._incoming is None or not self._incoming.complete or self._request is None or self.key is None:
            return []
        self._incoming.stop()
        self.state, self._training_key, self._says.trained = JobState.TRAINING, self.key, (0, 1)
        train = StartTraining(self.key, self._request, now - self._accepted_at, self._incoming.way, self._deadline)
        return [self._says.progress(self.key), train]

    def _sends(self, parts: list[Offer | SendChunk]) -> list[Effect]:
        assert self.key is not None
        return [self._says.reply(self.key, part) if isinstance(part, Offer) else part for part in parts]

    def _outgoing(self, manifest: Manifest, now: float) -> UpdateUpload:
        self.awaits_clearance = self._ask_to_send and not self.paused
        return UpdateUpload(manifest, now, held=self.paused or self.awaits_clearance)

    def _trains(self, key: JobKey) -> bool:
        """Whether it is this job's training, and not that of the same round of an earlier epoch, from another base."""
        return self.state is JobState.TRAINING and self._training_key == key

    def _settle(self, outcome: str, rest_s: float = 0.0, committed: JobKey | None = None) -> list[Effect]:
        """The coordinator has said its last word on the job."""
        self._past.settled()
        return self._drop(outcome, rest_s=rest_s, committed=committed)

    def _drop(
        self, outcome: str, *, gave_up: bool = False, rest_s: float = 0.0, committed: JobKey | None = None
    ) -> list[Effect]:
        if self.key is None:
            return []
        stop: list[Effect] = [StopTraining()] if self.state is JobState.TRAINING else []
        self.state, self.paused, self.awaits_clearance = JobState.IDLE, False, False
        self.key = self._request = self._incoming = self._upload = self._training_key = None
        return [*stop, EndJob(outcome, gave_up, rest_s, committed)]
