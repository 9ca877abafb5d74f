"""Performs the job's effects: messages go to the link, chunks and updates to and from the disk, training to the trainer."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from fedpatch.device_agent.job.job_effects import (
    ContinueTraining,
    DropHeldModel,
    Effect,
    EndJob,
    ForgetMasking,
    JobKey,
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
    ChunkReceived,
    DownloadByBroker,
    DownloadDamaged,
    DownloadStarted,
    EffectFailed,
    JobEvent,
    UpdateRestored,
)
from fedpatch.device_agent.job.training_messages import (
    Evaluated,
    MakeModel,
    MaskCommand,
    ModelStep,
    TrainCommand,
    Trained,
)
from fedpatch.device_agent.models.store import ModelStore
from fedpatch.device_agent.policy.usage import JobUsage
from fedpatch.device_agent.runtime.agent_ports import LimitsPort, TrainingPort
from fedpatch.device_agent.runtime.model_fetcher import ChunkFetched, FetchEvent, ModelFetch, ModelFetcher
from fedpatch.device_agent.runtime.presence import AgentLink, Identity
from fedpatch.device_agent.state.download_files import Downloads, MemoryBlob, cut_from_file
from fedpatch.device_agent.state.history import DECLINED, STOPPED, WORKED, DeviceHistory
from fedpatch.device_agent.state.masking_file import MaskingFile
from fedpatch.device_agent.state.model_cache import DIRECTORY as HELD_DIRECTORY
from fedpatch.device_agent.state.model_cache import ModelCache
from fedpatch.device_agent.state.offered_bases import OfferedBases
from fedpatch.device_agent.state.storage_check import DOWNLOADS, SPOOL
from fedpatch.device_agent.state.update_spool import Spooled, UpdateSpool
from fedpatch.device_agent.telemetry.vitals import RoundTimes
from fedpatch.device_agent.training.resource_limits import give_memory_back
from fedpatch.shared.app.logging import fields
from fedpatch.shared.errors import BrokerError, FedpatchError, StateError, UsageError
from fedpatch.shared.mqtt.traffic import Traffic
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.chunked_transfer import SendChunk, encode_chunk
from fedpatch.shared.wire.codec import encode
from fedpatch.shared.wire.messages import Body, Decline, Envelope, Failed, Manifest, Offer, WorkRequest, is_delta
from fedpatch.shared.wire.reason_codes import DeclineReason, FailReason

_log = logging.getLogger("fedpatch.agent")

# A process that has torch loaded holds hundreds of megabytes; starting another takes a Pi half a minute.
LONG_REST_S = 300.0
# Time until the next request after a decline without a reason.
SILENT_RETRY_S = 600.0
# Longest wait for another process that changes the present model.
LOCK_PAUSE_S = 0.5


class EffectRunner:
    """Performs the effects of one agent's job (EffectHandler).

    `last_outcome` is the end of the last job, `times` the durations of the last round.

    Args:
        identity: Names of this agent.
        link: Connection to the broker.
        trainer: The training process.
        usage: Counts traffic and rounds of the job.
        limits: The owner's limits on what may leave the device.
        directory: State directory, with downloads and spool.
        models: Personal models for applications; None where the device keeps none.
        fetcher: Fetches models by URL; None where they come from the broker only.
        history: The history for the owner.
        shares_reasons: Whether declines and failures tell the coordinator their reason.
        clock: Returns monotonic seconds.
    """

    def __init__(  # noqa: PLR0913 - the parts of an agent that effects need
        self,
        identity: Identity,
        *,
        link: AgentLink,
        trainer: TrainingPort,
        usage: JobUsage,
        limits: LimitsPort,
        directory: Path,
        models: ModelStore | None = None,
        fetcher: ModelFetcher | None = None,
        history: DeviceHistory | None = None,
        shares_reasons: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.last_outcome = ""
        self.times = RoundTimes()
        self._identity = identity
        self._link = link
        self._trainer = trainer
        self._usage = usage
        self._limits = limits
        self._directory = directory
        self._models = models
        self._model_every_s = models.every_s if models else 0.0
        self._model_due = -math.inf  # the next personal model is made no sooner
        self._model_put_off = False  # whether the model of the last training was deferred
        self._clock = clock
        if models:
            models.attempts.forget()
        self._spool = UpdateSpool(directory / SPOOL)
        self._downloads: Downloads | None = None
        self._fetcher = fetcher
        self._history = DeviceHistory(None) if history is None else history
        self._shares_reasons = shares_reasons
        self._beside = Traffic()
        self._work: tuple[JobKey, str] | None = None  # the last work that trained, and its global model
        self._fetch: ModelFetch | None = None
        self._downloaded: dict[str, MemoryBlob] = {}
        self._held = ModelCache(directory / HELD_DIRECTORY)
        self._held_in_memory = ""  # the version that the training process holds; "" where only the disk has one
        self._update: Manifest | None = None
        self._vector: Manifest | None = None  # of a masked round, before it is masked
        self._masking = MaskingFile(directory)
        self._bases = OfferedBases(directory)
        # Whether the training process makes the personal model of the round before; an event reports the begin and the end.
        self._making = False
        self._closing: EndJob | None = None
        self._waiting: StartTraining | None = None  # until that model is made
        self._waiting_is_paused = False

    @property
    def making_model(self) -> bool:
        """True if the training process is making a personal model."""
        return self._making

    @property
    def owes_model(self) -> bool:
        """True if that model belongs to a committed update: it becomes the current one."""
        return self._closing is not None

    def trained(self, event: Trained) -> None:
        """A round was trained; its personal model may follow."""
        self.times.trained(event.key, event.report)
        self._vector = event.manifest
        self._making = event.model_follows

    def measured(self, event: Evaluated) -> None:
        """A model was measured. If it was finished first, it replaces the deferred personal model and is made next."""
        if event.model_follows:
            self._making, self._model_put_off, self._closing = True, False, None

    def next_deadline(self) -> float | None:
        """Return the time at which `tick` is due; None if no personal model is deferred."""
        return self._model_due if self._puts_model_off else None

    def tick(self, now: float) -> None:
        """Let time pass until `now`, in monotonic seconds: a deferred personal model may be due."""
        self.count_traffic()
        if now >= self._model_due:
            self.make_owed_model()

    def count_traffic(self) -> None:
        """Count what the link has moved since the last call."""
        self._usage.link_moved(self._link.traffic)

    def make_owed_model(self) -> None:
        """Begin to make the personal model of the last committed round if it was deferred."""
        if not self._puts_model_off:
            return
        self._model_put_off = False
        self._model_due = self._clock() + self._model_every_s
        try:
            committed = self._spool.committed()
            if committed is not None and self._make_model_again(committed, is_in_memory=True):
                return
        except (StateError, OSError) as error:  # without the model, later rounds would wait for it
            _log.warning("personal model: the model of the last committed round is not made: %s", error)
        self.model_made()

    @property
    def _puts_model_off(self) -> bool:
        """True if a round is committed and its personal model is to be made later."""
        return self._model_put_off and self._closing is not None

    def model_made(self) -> list[JobEvent]:
        """The training process is done with a personal model: publish it, and begin the training that waited for it."""
        if self._puts_model_off:
            return []  # the process has ended by itself; another one makes the model
        self._making = False
        closing, self._closing = self._closing, None
        waiting, self._waiting = self._waiting, None
        if closing is not None:
            try:
                self._close_round(closing)
            except (StateError, OSError) as error:  # another job may be running by now, and must not end because of it
                _log.error("%s", error)
        if waiting is None:
            return []
        events = self.run_effect(waiting)
        if self._waiting_is_paused:
            self._trainer.pause()
        return events

    @property
    def held_version(self) -> str:
        """Digest of the global model that this device holds, "" for none."""
        return self._held_in_memory or self._held.version()

    def model_held(self, version: str) -> None:
        """Note the version of the global model that the training process holds in memory; "" for a new process."""
        self._held_in_memory = version

    def take_up_spooled(self) -> list[JobEvent]:
        """Resume the update that waited when the agent ended, if it may still leave, and make its personal model."""
        if (key := self._spool.committed_key()) is not None:
            self._closing = EndJob("committed", committed=key)
            # A staged model no longer needs its update, which may be damaged.
            committed = None if self._has_model(key) else self._spool.committed()
            if committed is None or not self._make_model_again(committed):
                return self.model_made()
            return []
        self._spool.committed()  # a note that is damaged is dropped
        spooled = self._spool.load()
        if spooled is None:
            return []
        if why := self._limits.why_not_send(spooled.request, spooled.manifest):
            _log.warning("the update of %s round %d is dropped: %s", spooled.key.run, spooled.key.round, why)
            self._spool.clear()
            return []
        try:
            if self._limits.privacy is not None:
                self._limits.privacy.count(spooled.key, spooled.request, spooled.manifest)
        except StateError as error:
            _log.error("the update of %s round %d is dropped: %s", spooled.key.run, spooled.key.round, error)
            self._spool.clear()
            return []
        _log.info("an update of %s round %d waits to be committed", spooled.key.run, spooled.key.round)
        self._update = spooled.manifest
        self._make_model_again(spooled)
        return [UpdateRestored(spooled.key, spooled.manifest, spooled.request)]

    def _make_model_again(self, spooled: Spooled, *, is_in_memory: bool = False) -> bool:
        """Start making the model of a spooled update; False where it exists, was refused, or cannot be made.

        The values of a masked update cannot be read back. If the training process has them in memory, it needs no file.
        """
        key = spooled.key
        if spooled.request is None or self._has_model(key):
            return False
        if spooled.request.secure is not None and not is_in_memory:
            return False
        self._making = True
        self._trainer.make_model(MakeModel(self._command(key, spooled.request), spooled.manifest))
        return True

    def _has_model(self, key: JobKey) -> bool:
        """Return whether there is no model to make of a round: it exists, was refused, or this device keeps none."""
        return self._models is None or self._models.knows(key.task, key.run, key.round)

    def run_effect(self, effect: Effect) -> list[JobEvent]:
        """Perform one effect; a refusal of disk, broker or system is an EffectFailed."""
        try:
            return self._run(effect)
        except (StateError, BrokerError, OSError) as error:
            return [EffectFailed(_fail_reason(error), str(error))]

    def _run(self, effect: Effect) -> list[JobEvent]:
        match effect:
            case SendMessage():
                self._send(effect.envelope)
            case StartDownload():
                return [self._start_download(effect.blobs)]
            case WriteChunk() if self._downloads is not None:
                self._downloads.write(effect.chunk)
                if self._fetch is not None:  # else the link counts
                    self.moved_beside(Traffic(received_bytes=len(effect.chunk.data)))
                self.times.downloaded["mqtt" if self._fetch is None else "url"] += len(effect.chunk.data)
            case StartTraining():
                return self._train(effect)
            case SpoolUpdate():
                self._keep_update(effect)
            case SendChunk() if self._update is not None:
                chunk = cut_from_file(self._spool.update_path, self._update, effect.index)
                topic = topics.update_chunk(self._identity.fleet, self._identity.device, chunk.digest, chunk.index)
                self._link.publish(topic, encode_chunk(chunk))
                self.times.sends(self._clock())
            case EndJob():
                self._end_job(effect)
            case _:
                self._steer(effect)
        return []

    def _send(self, envelope: Envelope) -> None:
        body = envelope.body
        if isinstance(body, Decline):
            _log.info("declined: %s %s", body.reason, body.detail, extra=fields(reason=body.reason))
            key = JobKey(envelope.run, envelope.epoch, envelope.round, envelope.task)
            self._history.note(DECLINED, f"{body.reason}: {body.detail}".removesuffix(": "), self._traffic, key)
        if isinstance(body, Offer):
            self._spool.check(body.manifest)  # it may have waited for hours, and cards wear out
        if not self._shares_reasons:
            envelope = replace(envelope, body=without_reason(body))
        self._link.publish(topics.up(self._identity.fleet, self._identity.device), encode(envelope))

    @property
    def _traffic(self) -> Traffic:
        """All bytes that this process has moved."""
        return self._link.traffic.plus(self._beside)

    def moved_beside(self, traffic: Traffic) -> None:
        """Count what was moved beside the link: models by URL, and the look for another agent of this name."""
        self._beside = self._beside.plus(traffic)
        self._usage.moved(traffic.total_bytes)

    def stop(self) -> None:
        """The agent has ended, and so has its connection: count its last bytes."""
        self.count_traffic()
        self._history.note(STOPPED, "the agent ended", self._traffic)

    def _mask(self, effect: MaskUpdate | SaveMasking | SaveBase | SendAfterSave | ForgetMasking) -> None:
        """Save and send the answers of a masked group; have the vector masked."""
        match effect:
            case SaveMasking():
                self._masking.save(effect.state)
            case SaveBase():
                self._bases.add(effect.digest)
            case SendAfterSave():
                self._masking.save(effect.state)
                self._link.publish(topics.up(self._identity.fleet, self._identity.device), encode(effect.envelope))
            case ForgetMasking():
                self._masking.delete()
            case MaskUpdate() if self._vector is not None:
                self._trainer.mask(
                    MaskCommand(
                        key=effect.key,
                        vector=self._vector,
                        vector_path=str(self._spool.vector_path),
                        update_path=str(self._spool.update_path),
                        context=effect.context,
                        masks=effect.masks,
                        noise=effect.noise,
                    )
                )

    def _steer(self, effect: Effect) -> None:
        """Stop, pause or continue the download or the training; answer a masked group."""
        match effect:
            case MaskUpdate() | SaveMasking() | SaveBase() | SendAfterSave() | ForgetMasking():
                self._mask(effect)
            case StopDownload():
                self._end_download(keep=True)
            case DropHeldModel():
                _log.warning("%s; downloading the whole model", effect.why)
                self._held_in_memory = ""
                self._held.forget()
            case PauseTraining():
                self._waiting_is_paused = True
                self._trainer.pause()
            case ContinueTraining():
                self._waiting_is_paused = False
                self._trainer.go_on()
            case StopTraining():
                self._waiting = None
                self._trainer.cancel()
            case ReportFailure():
                _log.error("%s", effect.detail)

    def _end_job(self, effect: EndJob) -> None:
        level = logging.WARNING if effect.gave_up else logging.INFO
        _log.log(level, "job over: %s", effect.outcome, extra=fields(outcome=effect.outcome.partition(":")[0]))
        self.last_outcome = effect.outcome
        key, model = self._work or (effect.committed or effect.finished, "")
        self._history.note(WORKED, effect.outcome, self._traffic, key, model)
        self._work = None
        self._update, self._vector, self._waiting = None, None, None
        self._end_download()
        if effect.committed:
            self._note_committed(effect.committed)
            self.times.committed(effect.committed, self._clock())
        if effect.finished and self._making:
            self._closing = effect
        elif effect.committed and (self._making or self._model_put_off):
            self._closing = effect
            self._spool.note_committed()
            if effect.rest_s >= LONG_REST_S:
                self.make_owed_model()
        elif self._closing is None:
            self._close_round(effect)

    def _note_committed(self, key: JobKey) -> None:
        if self._limits.privacy is None:
            return
        try:
            self._limits.privacy.committed(key.run)
        except StateError as error:
            _log.error(
                "privacy: the update of %s round %d would count once if it is asked for again: %s",
                key.run,
                key.round,
                error,
            )

    def _close_round(self, effect: EndJob) -> None:
        if (key := effect.committed or effect.finished) and self._models:
            self._publish_model(self._models, key)
        self._spool.clear()
        if effect.rest_s >= LONG_REST_S:
            _log.info("no work for %.0f s: giving the memory of training back", effect.rest_s)
            self._trainer.stop()
        give_memory_back()

    def _publish_model(self, models: ModelStore, key: JobKey) -> None:
        """Make the round's model the current one for applications; if the disk refuses, only the applications miss it."""
        try:
            try:
                version = models.publish(key.task, key.run, key.round)
            except UsageError:  # the owner's rollback is in progress, which takes moments
                time.sleep(LOCK_PAUSE_S)
                version = models.publish(key.task, key.run, key.round)
        except FedpatchError as error:
            _log.warning("personal model: that of round %d is not in use: %s", key.round, error)
            return
        if version is not None:
            _log.info("personal model: that of round %d is in use now, %s", key.round, version.path)

    def _keep_update(self, effect: SpoolUpdate) -> None:
        known, self._update = self._update, effect.manifest
        if self._limits.privacy is not None:
            # Counted before the update can leave, so that a crash never loses the count.
            self._limits.privacy.count(effect.key, effect.request, effect.manifest)
        try:
            self._spool.save(Spooled(effect.key, effect.manifest, effect.request))
        except StateError as error:
            if known != effect.manifest:
                raise
            # The note of the former epoch remains; after a reboot the coordinator would have to request the update again.
            _log.warning("%s", error)
        self._end_download()

    def note_work(self, key: JobKey, model: str) -> None:
        """Note the work that begins, for the history.

        Args:
            key: The work.
            model: Digest of its global model.
        """
        self._work = key, model

    def _start_download(self, blobs: tuple[Manifest, ...]) -> DownloadStarted:
        self._end_download(keep=True)
        self._downloads = Downloads(self._directory / DOWNLOADS, blobs, self._downloaded)
        have = self._downloads.have
        self._fetch = None if self._fetcher is None else self._fetcher.begin(blobs, have)
        if self._fetch is None:
            self._link.subscribe(*self._filters(self._downloads))
        return DownloadStarted(have, by_url=self._fetch is not None)

    def fetched(self, event: FetchEvent) -> list[JobEvent]:
        """Take an event of a fetch; of a stopped fetch, only count the bytes."""
        current = event.fetch is self._fetch
        if isinstance(event, ChunkFetched):
            event.fetch.taken()
            if current:
                return [ChunkReceived(event.chunk)]
            self.moved_beside(Traffic(received_bytes=len(event.chunk.data)))
            return []
        self.moved_beside(Traffic(received_bytes=event.wasted_bytes))
        if not current or not event.problem or self._downloads is None:
            return []
        self._fetch = None
        _log.warning("%s; downloading the missing chunks by MQTT", event.problem)
        self._link.subscribe(*self._filters(self._downloads))
        return [DownloadByBroker()]

    def _end_fetch(self) -> str:
        """Stop the current fetch; return its URLs for messages, "" without one."""
        fetch, self._fetch = self._fetch, None
        if fetch is None:
            return ""
        fetch.stop()
        return fetch.places

    def _train(self, effect: StartTraining) -> list[JobEvent]:
        assert self._downloads is not None
        evaluates = effect.request.evaluates
        if self._puts_model_off and not evaluates:
            self._closing = None  # the model of the coming round replaces it
        if self._closing is not None and not self._puts_model_off:
            self._waiting, self._waiting_is_paused = effect, False
            return []
        plan = effect.plan
        steps = [replace(one, manifest=one.manifest.at(None)) for one in plan.steps]  # URLs stay in this process
        self._link.unsubscribe(*self._filters(self._downloads))
        places = self._end_fetch()
        if not self._downloads.verified():
            # The job has no URL of the model, so the next download uses MQTT.
            origin = f"{places} has not the bytes of the manifest" if places else "what was downloaded is damaged"
            _log.warning("%s (SHA-256 differs); downloading the global model again, by MQTT", origin)
            self._end_download()
            return [DownloadDamaged()]
        about = fields(run=effect.key.run, round=effect.key.round, saved_bytes=plan.saved_bytes)
        what = "measuring" if evaluates else "training on"
        _log.info("%s round %d: %s %s", effect.key.run, effect.key.round, what, plan, extra=about)
        command = self._command(effect.key, effect.request)
        finishes = evaluates and bool(effect.request.plan.finish)
        due = finishes if evaluates else self._clock() >= self._model_due
        if finishes or not evaluates:
            self._usage.begins_round()
        if not evaluates:
            self._model_put_off = self._models is not None and not due
        if due:
            self._model_due = self._clock() + self._model_every_s
        self._trainer.train(
            replace(
                command,
                make_model=due,
                blob=None if plan.held else self._downloads.blob(command.base),
                held=plan.held,
                steps=tuple(ModelStep(self._downloads.blob(one.manifest.digest), one) for one in steps),
                download_s=effect.download_s,
                independent_ends_at=effect.ends_at if effect.request.measure_independent else 0.0,
                ends_at=effect.ends_at,
                attempt=effect.attempt,
            )
        )
        return []

    def _command(self, key: JobKey, request: WorkRequest) -> TrainCommand:
        """Return the training command of a request, without the files of its global model."""
        return TrainCommand(
            key=key,
            plan=request.plan,
            private=request.private,
            schema=request.schema,
            blob=None,
            model=request.model,
            hold=not request.evaluates and (bool(request.deltas) or is_delta(request.encoding)),
            encoding=request.encoding,
            base=request.model.digest,
            update_path=str(self._spool.vector_path if request.masks else self._spool.update_path),
            secure=request.secure,
            privacy=request.privacy,
            download_s=0.0,
            chunk_bytes=request.chunk_bytes,
            evaluate=request.evaluates,
            counted=request.counted or 0,
            content=request.content or "",
        )

    def _end_download(self, *, keep: bool = False) -> None:
        self._end_fetch()
        downloads, self._downloads = self._downloads, None
        if downloads is None:
            return
        self._link.unsubscribe(*self._filters(downloads))
        if keep:
            downloads.close()
        else:
            downloads.discard()

    def _filters(self, downloads: Downloads) -> tuple[str, ...]:
        return tuple(topics.model_chunks_filter(self._identity.fleet, digest) for digest in downloads.have)


def without_reason(body: Body) -> Body:
    """Return a decline or a failure as an owner who tells no reasons sends it; other messages stay.

    The time until the next request is always the same: that of quiet hours would tell when they end.
    """
    match body:
        case Decline():
            return Decline(DeclineReason.UNWILLING, retry_after_s=SILENT_RETRY_S)
        case Failed():
            return Failed(FailReason.UNWILLING)
    return body


def _fail_reason(error: StateError | BrokerError | OSError) -> FailReason:
    """Return the reason of a failure: files raise StateError, and OSError comes only from the start of a training process."""
    if isinstance(error, StateError):
        return FailReason.STORAGE
    return FailReason.DOWNLOAD if isinstance(error, BrokerError) else FailReason.TRAINING
