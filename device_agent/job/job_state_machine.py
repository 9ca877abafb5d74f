"""One work request on the device, from its arrival to `committed`, as a state machine without IO.

    IDLE -> DOWNLOADING -> TRAINING -> UPLOADING -> IDLE

| state | event | effects | next state |
|---|---|---|---|
| any | WorkRequested, newer and declined | Decline | unchanged |
| any | WorkRequested, newer and accepted | StopTraining, EndJob of the former job; Accept, StartDownload | DOWNLOADING |
| any but IDLE | WorkRequested, the same | Accept, Progress once more; an upload repeats its offers anyway | unchanged |
| any but IDLE | WorkRequested, the same work in a newer epoch | the same, under the new epoch | unchanged |
| DOWNLOADING | DownloadStarted, ChunkReceived | WriteChunk; after the last Progress, StartTraining | TRAINING |
| DOWNLOADING | time, unless chunks are fetched by URL | Need for missing chunks | unchanged |
| DOWNLOADING | DownloadByBroker: the fetch by URL has failed | none; Need as time passes | unchanged |
| TRAINING | TrainingProgressed | Progress | unchanged |
| TRAINING | VectorTrained, Inbox: both are there | MaskUpdate | unchanged |
| TRAINING | UpdateTrained | SpoolUpdate, then Offer | UPLOADING |
| TRAINING | ModelEvaluated | Evaluation, EndJob | IDLE |
| TRAINING | DownloadDamaged; TrainingFailed by a plan with deltas | StartDownload of the whole model | DOWNLOADING |
| UPLOADING | MessageReceived: Grant, Ack | SendChunk within the window | unchanged |
| UPLOADING | time | Offer | unchanged |
| UPLOADING | MessageReceived: Committed, Refused | EndJob | IDLE |
| any but IDLE | MessageReceived: Cancel | StopTraining, EndJob | IDLE |
| any but IDLE | TrainingFailed, EffectFailed, OwnerAbandoned, deadline | Failed, StopTraining, EndJob | IDLE |
| any | MessageReceived: a MaskingBody | answers of device_agent.masking, saved before they are sent | unchanged |
| any but IDLE | OwnerPaused, OwnerResumed | StopDownload, PauseTraining and their opposites | unchanged |

Any other event in any other state has no effect: the coordinator may send anything at any time, and more than once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from msgspec import UNSET, UnsetType

from fedpatch.device_agent.job.download_plan import DownloadPlan
from fedpatch.device_agent.job.job_effects import (
    ContinueTraining,
    DropHeldModel,
    Effect,
    EndJob,
    ForgetMasking,
    JobKey,
    JobState,
    MaskUpdate,
    PauseTraining,
    ReportFailure,
    SaveBase,
    SaveMasking,
    SendAfterSave,
    SendMessage,
    SpoolUpdate,
    StartDownload,
    StartTraining,
    StopDownload,
    StopTraining,
    WriteChunk,
)
from fedpatch.device_agent.job.job_events import (
    AdmissionDecision,
    ChunkReceived,
    Completion,
    CoordinatorStarted,
    DownloadByBroker,
    DownloadDamaged,
    DownloadStarted,
    EffectFailed,
    Event,
    FromCoordinator,
    FromOwner,
    LinkRestored,
    MessageReceived,
    ModelEvaluated,
    OwnerAbandoned,
    OwnerPaused,
    OwnerResumed,
    TrainingFailed,
    TrainingProgressed,
    UpdateRestored,
    UpdateTrained,
    VectorTrained,
    WorkRequested,
)
from fedpatch.device_agent.masking.masking_round import RoundName
from fedpatch.device_agent.masking.masking_state_machine import MaskingBody, MaskingRounds
from fedpatch.shared.errors import WireError
from fedpatch.shared.wire.chunked_transfer import Chunk, Download, SendChunk, Upload, check_manifest
from fedpatch.shared.wire.masking_messages import MASKED_ENCODINGS, SUM_ENCODING
from fedpatch.shared.wire.messages import (
    ENCODINGS,
    MASKED_REASONS_FEATURE,
    OWNER_LIMITS_FEATURE,
    PRIVACY_FEATURE,
    STORAGE_FEATURE,
    Accept,
    Ack,
    Body,
    Cancel,
    Committed,
    Decline,
    Envelope,
    Evaluation,
    Failed,
    Grant,
    JobStatus,
    Manifest,
    Offer,
    Progress,
    Refused,
    RetryAfter,
    TaskCapability,
    WorkRequest,
)
from fedpatch.shared.wire.reason_codes import Condition, DeclineReason, FailCause, FailReason, JobPhase

PROGRESS_S = 15.0
"""Pause between two messages of progress; a coordinator takes a device for silent after 60 s."""
BASE_SPENT = Decline(DeclineReason.BASE_SPENT, "this device has offered a masked update from these values already")
"""The answer to a second masked round from the same values. The coordinator moves the values of later rounds."""


class EffectHandler(Protocol):
    """Performs effects: the agent's EffectRunner, and the devices of simulator, benchmarks and tests."""

    def run_effect(self, effect: Effect) -> Sequence[Event]:
        """Begin one effect, and return the events of effects that have finished.

        The end of a longer effect is reported by a later event. A refusal is returned as an EffectFailed, never raised.
        """


def drive_job(job: Job, effects: Iterable[Effect], handler: EffectHandler, clock: Callable[[], float]) -> None:
    """Perform `effects`, and those that follow from their completion events.

    After an EffectFailed the remaining effects are dropped, and the job ends.

    Args:
        job: The job that returned the effects.
        effects: Effects in their order.
        handler: Performs each effect.
        clock: Returns monotonic seconds.
    """
    waiting = deque(effects)
    while waiting:
        for event in handler.run_effect(waiting.popleft()):
            if isinstance(event, EffectFailed) and job.key is not None:
                waiting.clear()
            waiting.extend(job.handle(event, clock()))


class Job:
    """The state machine: `handle` takes an event, `tick` lets time pass, and both return effects to perform in order.

    Call `tick` at `next_deadline` at the latest. Times are monotonic seconds.

    Args:
        max_blob_bytes: Largest model that the device accepts.
        ask_to_send: Whether an update waits for OwnerResumed before it is offered; meanwhile `awaits_clearance` is true.
        masking: The device's part in masked groups; None where it declines masked rounds.
        sums: Whether the device is a relay, whose update in a masked round is the sum of its site.

    Example:
        >>> job = Job(max_blob_bytes=2**20)
        >>> job.state, job.next_deadline(), job.handle(LinkRestored(), now=0.0)
        (<JobState.IDLE: 'idle'>, None, [])
    """

    def __init__(
        self,
        *,
        max_blob_bytes: int,
        ask_to_send: bool = False,
        masking: MaskingRounds | None = None,
        sums: bool = False,
    ) -> None:
        self.state = JobState.IDLE
        self.key: JobKey | None = None
        self.request: WorkRequest | None = None
        self.paused = False
        self.awaits_clearance = False
        self.max_blob_bytes = max_blob_bytes
        self._ask_to_send = ask_to_send
        self._masking = masking
        # The encodings of the device's updates in masked rounds.
        self._masked_encodings = (SUM_ENCODING,) if sums else MASKED_ENCODINGS if masking is not None else ()
        self._vector_waits = False  # the trained vector waits for the inbox
        self._paused_for: Condition | None = None
        self._plan: DownloadPlan | None = None
        self._download: Download | None = None  # while chunks are taken
        self._upload: Upload | None = None
        self._answers = _AnsweredRequests()
        # The key in the last training command: the answers repeat it, also after the job has continued in a newer epoch.
        self._training_key: JobKey | None = None
        self._trained = (0, 1)  # steps done, of all
        self._progress_at = 0.0  # no progress of training is sent before
        self._deadline = self._accepted_at = 0.0
        self._num_examples = 1
        self._last_message_id = 0

    # ---- views

    def is_on(self, key: JobKey) -> bool:
        """Return whether a request for `key` asks for the current work, in its epoch or in a newer one."""
        return self.key is not None and key.epoch >= self.key.epoch and replace(key, epoch=self.key.epoch) == self.key

    def status(self) -> JobStatus | None:
        """The job as the device's presence reports it; None while idle."""
        if self.key is None:
            return None
        return JobStatus(self.key.run, self.key.epoch, self.key.round, JobPhase(self.state.value))

    def next_deadline(self) -> float | None:
        """The next time at which `tick` is due; None if there is none."""
        if self.state is JobState.IDLE:
            return None
        if self.state is JobState.UPLOADING and self._upload is not None:
            return None if self._is_held else self._upload.next_deadline()
        ask_at = self._download.next_deadline() if self._download is not None else None
        return self._deadline if ask_at is None else min(self._deadline, ask_at)

    # ---- events

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take one event and return its effects, in order.

        Args:
            event: A message, the completion of an effect, or a decision of the owner.
            now: Monotonic seconds.

        Raises:
            WireError: A message holds a bitmap that does not fit the update. The job stays as it was.
        """
        if isinstance(event, FromCoordinator):
            return self._from_coordinator(event, now)
        if isinstance(event, FromOwner):
            return self._from_owner(event, now)
        return self._completed(event, now)

    def _from_coordinator(self, event: FromCoordinator, now: float) -> list[Effect]:
        match event:
            case WorkRequested():
                return self._requested(event, now)
            case MessageReceived():
                return self._message(event.envelope, now)
            case ChunkReceived():
                return self._chunk(event.chunk, now)
            case CoordinatorStarted():
                self._answers.coordinator_is_new = True
                self._on_reconnect(now)
            case LinkRestored():
                self._on_reconnect(now)
        return []

    def _on_reconnect(self, now: float) -> None:
        if self._download is not None:
            self._download.on_reconnect(now)
        if self._upload is not None:
            self._upload.on_reconnect(now)

    def _completed(self, event: Completion, now: float) -> list[Effect]:
        match event:
            case DownloadStarted():
                if self.state is not JobState.DOWNLOADING or self._plan is None:
                    return []
                self._download = Download(self._plan.blobs, now, have=event.have, asks=not event.by_url)
                return self._train_when_complete(now)
            case DownloadByBroker():
                if self._download is not None:
                    self._download.ask_from(now)
            case DownloadDamaged():
                return self._download_whole_model() if self.state is JobState.TRAINING else []
            case TrainingProgressed() | VectorTrained() | UpdateTrained() | ModelEvaluated() | TrainingFailed():
                return self._training_answered(event, now) if self._is_training(event.key) else []
            case EffectFailed():
                return self._give_up(event.reason, event.detail) or [ReportFailure(event.detail)]
            case UpdateRestored():
                self._restore(event, now)
        return []

    def _from_owner(self, event: FromOwner, now: float) -> list[Effect]:
        match event:
            case OwnerPaused():
                return self._pause(event.condition)
            case OwnerResumed():
                return self._resume(now)
            case OwnerAbandoned():
                return self._give_up(FailReason.UNWILLING, event.detail, event.condition)

    def tick(self, now: float) -> list[Effect]:
        """Let time pass until `now`, in monotonic seconds."""
        if self.state in (JobState.DOWNLOADING, JobState.TRAINING) and now >= self._deadline:
            if self.paused and self._paused_for is not None:
                return self._give_up(FailReason.UNWILLING, "the round's deadline passed in a pause", self._paused_for)
            if self._vector_waits:
                return self._give_up(
                    FailReason.MASKING, "the round's deadline passed before the inbox of the group came"
                )
            return self._give_up(FailReason.DEADLINE, "the round's deadline passed")
        if self.state is JobState.DOWNLOADING and self._download is not None:
            return [self._reply(need) for need in self._download.tick(now)]
        return self._offer_when_due(now)

    # ---- the request

    def _requested(self, event: WorkRequested, now: float) -> list[Effect]:
        envelope, tasks = event.envelope, event.tasks
        request = envelope.body
        assert isinstance(request, WorkRequest)
        key = JobKey(envelope.run, envelope.epoch, envelope.round, envelope.task)
        if self.key == key:
            return self._repeat_answers()
        if (answer := self._answers.final(key)) is not None:
            return [self._reply(answer, key)]
        # A decline while the task is being loaded would count against the device. The coordinator repeats the request.
        if self._answers.is_superseded(key, idle=self.key is None) or not tasks:
            return []
        if continues(self.key, self.request, key, request, downloading=self.state is JobState.DOWNLOADING):
            return self._continue_in_epoch(key, request, event, now)
        if declined := self._reason_to_decline(key, request, event):
            # The current work continues: its own coordinator cancels it when it is not needed.
            self._answers.declined(key, declined)
            return [self._reply(declined, key)]
        effects = self._end("superseded")
        self.state, self._plan = JobState.DOWNLOADING, event.plan
        self._accepted_at = now
        self._accept(key, request, tasks, now)
        return [*effects, *self._acceptance(), StartDownload(event.plan.blobs)]

    def decline_unknown(self, envelope: Envelope, detail: str) -> list[Effect]:
        """Return the answer to a work request with a term of a later version; the present job continues."""
        key = JobKey(envelope.run, envelope.epoch, envelope.round, envelope.task)
        return [self._reply(Decline(DeclineReason.UNSUPPORTED, detail[:500]), key)]

    def _reason_to_decline(self, key: JobKey, request: WorkRequest, event: WorkRequested) -> Decline | None:
        """Find a reason to decline; if there is none, make the keys of a masked round."""
        reason = reason_to_decline(
            key.task, request, event.tasks, event.decision, self.max_blob_bytes, masked=self._masked_encodings
        )
        if reason is not None or self._masking is None or request.secure is None or request.evaluates:
            return reason
        try:
            keys = self._masking.begin(_round_name(key), request)
        except WireError as error:
            return Decline(DeclineReason.UNSUPPORTED, str(error)[:500])
        if keys is None:
            return _for_coordinator(BASE_SPENT, request)
        return None

    def _acceptance(self) -> list[Effect]:
        """Return `accept`, in a masked round with the keys; the number of examples is then part of the sum only."""
        assert self.key is not None
        assert self.request is not None
        if self._masking is None or self.request.evaluates:
            return [self._reply(Accept(self._num_examples))]
        if self.request.secure is None:
            accept = self._reply(Accept(self._num_examples))
            forgotten, self._masking.state = self._masking.state, None
            return [ForgetMasking(), accept] if forgotten is not None else [accept]
        keys = self._masking.begin(_round_name(self.key), self.request)
        assert self._masking.state is not None
        return [SendAfterSave(self._masking.state, self._reply(Accept(1, keys)).envelope)]

    def _accept(self, key: JobKey, request: WorkRequest, tasks: tuple[TaskCapability, ...], now: float) -> None:
        self.key, self.request = key, request
        self._deadline = now + request.deadline_s
        here = (t.num_examples for t in tasks if t.task == key.task and t.num_examples)
        self._num_examples = next(here, self._num_examples)
        self._answers.accepted(key)

    def _continue_in_epoch(self, key: JobKey, request: WorkRequest, event: WorkRequested, now: float) -> list[Effect]:
        """Continue the same work in the newer epoch of a restarted coordinator."""
        self._accept(key, request, event.tasks, now)
        if self._upload is not None:
            self._upload = Upload(self._upload.manifest, now)
            accept = self._acceptance()
            return [SpoolUpdate(key, self._upload.manifest, request), *accept, *self._offer_when_due(now)]
        effects = self._repeat_answers()
        if self.state is JobState.DOWNLOADING:
            effects += self._change_plan(event.plan, now)
        return effects

    def _repeat_answers(self) -> list[Effect]:
        """Answer a request once more: the first answers may be lost. An upload repeats its offers by itself."""
        if self.state is JobState.UPLOADING:
            return []
        accept = self._acceptance()
        return [*accept, self._progress()] if self.state is JobState.TRAINING else accept

    # ---- DOWNLOADING

    def _change_plan(self, plan: DownloadPlan, now: float) -> list[Effect]:
        """Follow the deltas that the newer epoch offers.

        The chunks of these deltas are on the broker again, so the missing ones are requested soon, however long the pause had
        grown. A newer URL replaces the former one, which may have expired.
        """
        if self._plan is not None and plan.blobs == self._plan.blobs and not any(blob.url for blob in plan.blobs):
            if self._download is not None:
                self._download = Download(plan.blobs, now, have=self._download.have, asks=self._download.asks)
            return []
        downloads, self._plan, self._download = self._download is not None, plan, None
        return [StartDownload(plan.blobs)] if downloads else []

    def _chunk(self, chunk: Chunk, now: float) -> list[Effect]:
        if self._download is None or not self._download.take(chunk, now):
            return []
        return [WriteChunk(chunk), *self._train_when_complete(now)]

    def _train_when_complete(self, now: float) -> list[Effect]:
        if self._download is None or not self._download.complete:
            return []
        assert self.key is not None
        assert self.request is not None
        assert self._plan is not None
        self.state, self._download = JobState.TRAINING, None
        self._training_key, self._trained = self.key, (0, 1)
        self._progress_at = now + PROGRESS_S
        download_s = now - self._accepted_at
        attempt = self._masking.training_secret() if self._masking is not None and self.request.masks else b""
        start = StartTraining(self.key, self.request, download_s, self._plan, self._deadline, attempt)
        return [start] if self.request.evaluates else [self._progress(), start]

    def _download_whole_model(self) -> list[Effect]:
        assert self.request is not None
        self.state, self._plan, self._download = JobState.DOWNLOADING, DownloadPlan(self.request.model), None
        return [] if self.paused else [StartDownload(self._plan.blobs)]

    # ---- TRAINING

    def _is_training(self, key: JobKey) -> bool:
        """Return whether an answer of the training process is about this job, not about this round in an earlier epoch."""
        return self.state is JobState.TRAINING and self._training_key == key

    def _mask_when_ready(self) -> list[Effect]:
        """Mask the vector once both the vector and the inbox of the group are there."""
        if not self._vector_waits or self._masking is None or not self._masking.is_ready:
            return []
        state = self._masking.state
        assert state is not None
        assert self.key is not None
        assert self.request is not None
        assert self._training_key is not None
        if state.name != _round_name(self.key):
            return []
        self._vector_waits = False
        try:
            masks = self._masking.masks()
        except WireError as error:
            return self._give_up(FailReason.MASKING, str(error))
        noise = None if self.request.privacy is None else self._masking.noise(self.request.privacy)
        return [MaskUpdate(self._training_key, self.request, state.group.context, masks, noise)]

    def _training_answered(
        self, event: TrainingProgressed | VectorTrained | UpdateTrained | ModelEvaluated | TrainingFailed, now: float
    ) -> list[Effect]:
        match event:
            case ModelEvaluated():
                # The coordinator asks again if the answer is lost, and gets the same one.
                self._answers.gave(event.evaluation)
                self.state = JobState.IDLE  # no training to stop; the process may be making the finished model
                finished = event.key if self.request is not None and self.request.plan.finish else None
                return [self._reply(event.evaluation), *self._end("measured", finished=finished)]
            case TrainingProgressed():
                self._trained = (event.done, event.total)
                return self._progress_when_due(now)
            case VectorTrained():
                self._vector_waits = True
                return self._mask_when_ready()
            case UpdateTrained():
                return self._spool_and_offer(event, now)
            case TrainingFailed():
                if event.reason is FailReason.DOWNLOAD and self._plan is not None and self._plan.held:
                    return [DropHeldModel(event.detail), *self._download_whole_model()]
                return self._give_up(event.reason, event.detail, cause=event.cause)

    def _spool_and_offer(self, event: UpdateTrained, now: float) -> list[Effect]:
        assert self.key is not None
        saved: list[Effect] = []
        if self._masking is not None and self.request is not None and self.request.secure is not None:
            try:
                state = self._masking.note_update(event.manifest.digest)
            except WireError as error:
                return self._give_up(FailReason.MASKING, str(error))
            if state is None:
                return self._give_up(
                    FailReason.MASKING, "another update was masked under the keys of this round, or from its base"
                )
            # The base last: after a crash between the two, the device repeats this very update under its keys.
            saved = [SaveMasking(state), *([SaveBase(state.base)] if state.base else ())]
        self._begin_upload(event.manifest, now)
        return [*saved, SpoolUpdate(self.key, event.manifest, self.request), *self._offer_when_due(now)]

    # ---- a masked group, in any state: shares are revealed after the job has ended

    def _masking_message(self, envelope: Envelope, body: MaskingBody) -> list[Effect]:
        if self._masking is None:
            return []
        answer = self._masking.handle(RoundName(envelope.task, envelope.run, envelope.round), body)
        if answer.problem:
            return [ReportFailure(f"masking: {type(body).__name__.lower()} refused: {answer.problem}")]
        if answer.state is None:
            return []
        if answer.body is None:
            return [SaveMasking(answer.state), *self._mask_when_ready()]
        about = JobKey(envelope.run, envelope.epoch, envelope.round, envelope.task)
        return [SendAfterSave(answer.state, self._reply(answer.body, about).envelope)]

    # ---- UPLOADING

    def _restore(self, event: UpdateRestored, now: float) -> None:
        self.key, self.request = event.key, event.request
        self._answers.accepted(event.key)
        self._begin_upload(event.manifest, now)

    def _begin_upload(self, manifest: Manifest, now: float) -> None:
        self.state = JobState.UPLOADING
        self._upload = Upload(manifest, now)
        self.awaits_clearance = self._ask_to_send and not self.paused

    @property
    def _is_held(self) -> bool:
        """True if the update must not be offered or sent for now."""
        return self.paused or self.awaits_clearance

    def _offer_when_due(self, now: float) -> list[Effect]:
        return self._packets(self._upload.tick(now)) if self._upload is not None and not self._is_held else []

    def _message(self, envelope: Envelope, now: float) -> list[Effect]:
        key, body = self.key, envelope.body
        if isinstance(body, MaskingBody):
            return self._masking_message(envelope, body)
        if key is None or (envelope.run, envelope.epoch, envelope.round) != (key.run, key.epoch, key.round):
            return []
        if isinstance(body, Cancel):
            return self._end(f"cancelled: {body.reason}")
        if self._upload is None or getattr(body, "digest", "") != self._upload.manifest.digest:
            return []
        match body:
            case Committed():
                return self._end("committed", rest_s=body.rest_s, committed=key)
            case Refused():
                return self._end(f"refused: {body.reason} {body.detail}".rstrip())
        return self._advance_upload(self._upload, body, now)

    def _advance_upload(self, upload: Upload, body: Body, now: float) -> list[Effect]:
        if self._is_held:
            return []  # the coordinator grants the upload to another device; the next offer asks for a new grant
        match body:
            case Grant():
                return self._packets(upload.on_grant(body, now))
            case Ack():
                return self._packets(upload.on_ack(body, now))
            case RetryAfter():
                upload.on_retry_after(body.delay_s, now)
        return []

    # ---- pause and end

    def _pause(self, condition: Condition | None) -> list[Effect]:
        if self.key is None or self.paused:
            return []
        self.paused, self.awaits_clearance, self._paused_for = True, False, condition
        match self.state:
            case JobState.TRAINING:
                return [PauseTraining()]
            case JobState.DOWNLOADING:
                self._download = None
                return [StopDownload()]
        return []

    def _resume(self, now: float) -> list[Effect]:
        if self.key is None or not self._is_held:
            return []
        self.paused, self.awaits_clearance = False, False
        if self._upload is not None:
            self._upload.on_reconnect(now)
            return self._offer_when_due(now)
        if self.state is JobState.TRAINING:
            return [ContinueTraining(), self._progress()]
        assert self._plan is not None
        return [StartDownload(self._plan.blobs)]

    def _give_up(
        self,
        reason: FailReason,
        detail: str,
        condition: Condition | None = None,
        cause: FailCause | UnsetType = UNSET,
    ) -> list[Effect]:
        """End the job with `Failed`; `detail` stays on the device. Nothing happens while idle."""
        if self.key is None:
            return []
        failed = Failed(reason, condition, cause)
        self._answers.gave(failed)
        gave_up = reason is not FailReason.UNWILLING
        words = f"gave up: {reason}: {detail}" if gave_up else f"stopped for its owner: {detail}"
        return [self._reply(failed), *self._end(words, gave_up=gave_up)]

    def _end(
        self,
        outcome: str,
        *,
        gave_up: bool = False,
        rest_s: float = 0.0,
        committed: JobKey | None = None,
        finished: JobKey | None = None,
    ) -> list[Effect]:
        if self.key is None:
            return []
        stop: list[Effect] = [StopTraining()] if self.state is JobState.TRAINING else []
        self.state, self.paused, self.awaits_clearance = JobState.IDLE, False, False
        self._vector_waits = False
        self.key = self.request = self._plan = self._download = self._upload = self._training_key = None
        return [*stop, EndJob(outcome, gave_up, rest_s, committed, finished)]

    # ---- messages

    def _reply(self, body: Body, key: JobKey | None = None) -> SendMessage:
        """A numbered message about the job, or about the request `key`."""
        about = key or self.key
        assert about is not None
        self._last_message_id += 1
        return SendMessage(
            Envelope(
                body, id=self._last_message_id, task=about.task, run=about.run, epoch=about.epoch, round=about.round
            )
        )

    def _progress_when_due(self, now: float) -> list[Effect]:
        """Return the progress where it is due. It goes by time alone: the moments of steps would reveal their number."""
        if now < self._progress_at:
            return []
        self._progress_at = now + PROGRESS_S
        return [self._progress()]

    def _progress(self) -> SendMessage:
        done, total = self._trained
        if self.request is not None and self.request.secure is not None:
            # The share of one step would reveal the number of steps, and so that of the examples.
            done, total = 25 * (4 * done // max(total, 1)), 100
        return self._reply(Progress(JobPhase.TRAINING, done, total))

    def _packets(self, packets: list[Offer | SendChunk]) -> list[Effect]:
        return [self._reply(self._vouched(packet)) if isinstance(packet, Offer) else packet for packet in packets]

    def _vouched(self, offer: Offer) -> Offer:
        """Return an offer, in a masked round with the device's codes over the masking set."""
        state = self._masking.state if self._masking is not None else None
        return offer if state is None or state.update != offer.manifest.digest else replace(offer, codes=state.codes)


# ---- rules about requests


def _round_name(key: JobKey) -> RoundName:
    return RoundName(key.task, key.run, key.round)


def reason_to_decline(
    task: str,
    request: WorkRequest,
    tasks: tuple[TaskCapability, ...],
    decision: AdmissionDecision,
    max_blob_bytes: int,
    *,
    masked: tuple[str, ...] = (),
) -> Decline | None:
    """Find the first reason to decline a request; a lasting reason comes before a passing one.

    Args:
        task: Name of the task of the request.
        request: The work request.
        tasks: Tasks of this device.
        decision: Decision of owner, limits and storage.
        max_blob_bytes: Largest model that the device accepts.
        masked: Encodings of the device's updates in masked rounds; none if it declines masked rounds.

    Returns:
        The message to send, or None to accept.
    """
    own = next((t for t in tasks if t.task == task), None)
    if own is None:
        offered = ", ".join(t.task for t in tasks)
        detail = f"task {task!r} is not installed here (here: {offered})"
        return Decline(DeclineReason.UNKNOWN_TASK, detail[:500])
    if own.schema != request.schema:
        remedy = "install the same task version on both, with the same frozen values if it has any"
        detail = f"coordinator has {request.schema}, this device {own.schema}; {remedy}"
        return Decline(DeclineReason.SCHEMA_MISMATCH, detail)
    if request.secure is not None and not masked:
        return Decline(DeclineReason.UNSUPPORTED, "this device does not mask updates")
    known = ENCODINGS if request.secure is None else masked
    foreign = {request.encoding}.difference(known) | {request.model.encoding}.difference(ENCODINGS)
    if foreign:
        return Decline(DeclineReason.UNSUPPORTED, f"encoding {min(foreign)!r} is not known here")
    try:
        check_manifest(request.model, max_blob_bytes)
    except WireError as error:
        return Decline(DeclineReason.UNSUPPORTED, str(error))
    if own.num_examples < 1:
        return Decline(DeclineReason.TOO_LITTLE_DATA, "no training examples here")
    if decision.accept:
        return None
    reason = _known_to_coordinator(decision.reason, request)
    return Decline(reason, decision.why[:500], decision.condition, decision.retry_after_s)


def _for_coordinator(decline: Decline, request: WorkRequest) -> Decline:
    return replace(decline, reason=_known_to_coordinator(DeclineReason(decline.reason), request))


def _known_to_coordinator(reason: DeclineReason, request: WorkRequest) -> DeclineReason:
    """Return a code that the coordinator understands: an older one would ignore a message with an unknown code."""
    if reason is DeclineReason.STORAGE and STORAGE_FEATURE not in request.features:
        return DeclineReason.UNWILLING
    masked = (DeclineReason.INSECURE_REQUEST, DeclineReason.SECURE_TERMS)
    if reason in masked and MASKED_REASONS_FEATURE not in request.features:
        return DeclineReason.UNSUPPORTED
    owner_limits = (DeclineReason.PRIVATE_POLICY, DeclineReason.PLAN_LIMIT)
    if reason in owner_limits and OWNER_LIMITS_FEATURE not in request.features:
        return DeclineReason.UNSUPPORTED
    privacy = (DeclineReason.PRIVACY_SPENT, DeclineReason.PRIVACY_REQUIRED)
    if reason in privacy and PRIVACY_FEATURE not in request.features:
        return DeclineReason.UNSUPPORTED
    return reason


def continues(
    job: JobKey | None, known: WorkRequest | None, key: JobKey, request: WorkRequest, *, downloading: bool
) -> bool:
    """Return whether a request asks, in a newer epoch, for the same work as a job.

    These may differ: the remaining time, the deltas to the model, the coordinator's features, its epoch as a leader and the
    measurement beside the work. The chunks of the model may be cut differently, unless they are still being downloaded.

    Args:
        job: The current job; None if there is none.
        known: Its request; None if it is unknown.
        key: The requested job.
        request: The new request.
        downloading: Whether the job still downloads its model.
    """
    if job is None or known is None or key.epoch <= job.epoch:
        return False
    if (key.run, key.round, key.task) != (job.run, job.round, job.task):
        return False
    same_model = request.model == known.model if downloading else request.model.digest == known.model.digest
    same_terms = replace(
        request,
        model=known.model,
        deltas=known.deltas,
        deadline_s=known.deadline_s,
        features=known.features,
        leader_epoch=known.leader_epoch,
        # A coordinator that was updated in the middle of a round names the values of the same model.
        content=known.content if request.secure is None and not known.content else request.content,
        # All devices of a masked round get the same request, and their keys depend on it.
        measure_independent=known.measure_independent if request.secure is None else request.measure_independent,
    )
    return same_model and same_terms == known


class _AnsweredRequests:
    """The last accepted and the last declined request: an answer stays the same, and memory stays bounded.

    Attributes:
        coordinator_is_new: Whether a coordinator has started since the last accepted request. With the state of a backup it
            repeats rounds of an epoch that this device already knows.
    """

    coordinator_is_new = False

    def __init__(self) -> None:
        self._accepted: JobKey | None = None
        self._last: Failed | Evaluation | None = None
        self._declined: tuple[JobKey, Decline] | None = None

    def accepted(self, key: JobKey) -> None:
        """The device works on the request."""
        self._accepted, self._last = key, None
        if self.coordinator_is_new:
            self._declined = None  # a restored coordinator may not have reached this round again
        self.coordinator_is_new = False

    def gave(self, last: Failed | Evaluation) -> None:
        """The device has sent `Failed` or a measurement for the accepted job."""
        self._last = last

    def declined(self, key: JobKey, decline: Decline) -> None:
        """The device declined a request."""
        self._declined = key, decline

    def final(self, key: JobKey) -> Decline | Failed | Evaluation | None:
        """Return the final answer to this request, which the coordinator may not have received; None if there is none."""
        if self._declined is not None and self._declined[0] == key:
            return self._declined[1]
        return self._last if key == self._accepted else None

    def is_superseded(self, key: JobKey, *, idle: bool) -> bool:
        """Return whether this request, which has no final answer, or a newer one of the same run was answered before.

        Args:
            key: The requested job, which is not the present one.
            idle: Whether the device has no job, which an outdated request of the former coordinator would end.
        """
        if idle and self.coordinator_is_new:
            return False
        answered = (self._accepted, self._declined[0] if self._declined else None)
        return any(
            other is not None and other.run == key.run and (key.epoch, key.round) <= (other.epoch, other.round)
            for other in answered
        )
