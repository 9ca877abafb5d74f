"""Performs what the job decides: messages to the link, chunks and updates to and from the disk, work to the trainer."""

from __future__ import annotations

import logging
import secrets
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedpatch.device_agent.job.job_effects import (
    ContinueTraining,
    DropHeldModel,
    Effect,
    EndJob,
    JobKey,
    PauseTraining,
    SendMessage,
    SpoolUpdate,
    StartDownload,
    StartTraining,
    StopDownload,
    StopTraining,
    WriteChunk,
)
from fedpatch.device_agent.job.job_state_machine import Job
from fedpatch.device_agent.job.training_messages import MakeModel, ModelStep, TrainCommand, Trained
from fedpatch.device_agent.models.store import ModelStore
from fedpatch.device_agent.policy.job_usage import JobUsage
from fedpatch.device_agent.policy.owner_limits import OwnerLimits
from fedpatch.device_agent.runtime.training_supervisor import Trainer
from fedpatch.device_agent.state.download_files import Downloads
from fedpatch.device_agent.state.model_cache import DIRECTORY as HELD_DIRECTORY
from fedpatch.device_agent.state.model_cache import ModelCache
from fedpatch.device_agent.state.partial_blob import cut_from_file
from fedpatch.device_agent.state.storage_check import DOWNLOADS, SPOOL
from fedpatch.device_agent.state.update_spool import Spooled
from fedpatch.device_agent.state.update_spool import UpdateSpool as UpdateSpool
from fedpatch.device_agent.telemetry.round_times import RoundTimes
from fedpatch.shared.app.logging import fields
from fedpatch.shared.errors import BrokerError, FedpatchError, StateError, UsageError
from fedpatch.shared.mqtt.client import Link
from fedpatch.shared.wire import topics
from fedpatch.shared.wire.chunked_transfer import SendChunk, encode_chunk
from fedpatch.shared.wire.codec import encode
from fedpatch.shared.wire.messages import Decline, DeviceState, Envelope, Manifest, Offer, WorkRequest, is_delta
from fedpatch.shared.wire.reason_codes import FailReason

_log = logging.getLogger("fedpatch.agent")

# A process that has torch loaded holds hundreds of megabytes; to start another takes a Pi half a minute.
LONG_REST_S = 300.0
# How long whoever changes which model is the present one is given to end.
LOCK_PAUSE_S = 0.5


@dataclass(frozen=True)
class Identity:
    """Who this agent is: `boot` is new at each start."""

    fleet: str
    device: str
    boot: str

    @classmethod
    def new(cls, fleet: str, device: str) -> Identity:
        """Checks the names. UsageError when a topic cannot hold them."""
        topics.device_state(fleet, device)
        return cls(fleet, device, secrets.token_hex(8))

    @property
    def client_id(self) -> str:
        """Its name to the broker: names hold no dot, so no other device's is the same, nor is the coordinator's."""
        return f"fedpatch.{self.fleet}.device.{self.device}"

    def will(self) -> tuple[str, bytes]:
        """What the broker says when the connection breaks, and the agent itself when it leaves."""
        gone = Envelope(DeviceState(online=False, boot=self.boot))
        return topics.device_state(self.fleet, self.device), encode(gone)


class EffectRunner:
    """The hands of one agent, `me`. `directory` holds downloads and the spool.

    `last_outcome` says how the last job ended, and `times` what the last round took. `meter` is told what goes over the
    link. `limits` say what may leave. `models` are the personal models for this device's applications, None where it keeps
    none.
    """

    def __init__(
        self,
        identity: Identity,
        job: Job,
        *,
        link: Link,
        trainer: Trainer,
        meter: JobUsage,
        limits: OwnerLimits,
        directory: Path,
        models: ModelStore | None = None,
    ) -> None:
        self.last_outcome = ""
        self.times = RoundTimes()
        self.me = identity
        self.job = job
        self.limits = limits
        self._link = link
        self._trainer = trainer
        self._meter = meter
        self._models = models
        self.directory = directory
        if models:
            models.attempts.forget()
        self._spool = UpdateSpool(directory / SPOOL)
        self._downloads: Downloads | None = None
        self._held = ModelCache(directory / HELD_DIRECTORY)
        self._update: Manifest | None = None
        # The training process makes the personal model of the round before, which begins and ends with an event.
        self._making = False
        self._closing: EndJob | None = None
        self._waiting: StartTraining | None = None

    @property
    def making_model(self) -> bool:
        """Whether the training process is at work on a personal model."""
        return self._making

    @property
    def owes_model(self) -> bool:
        """Whether that model is of an update that is committed: it will be the present one."""
        return self._closing is not None

    def trained(self, event: Trained) -> None:
        """A round was trained; its personal model may follow."""
        self.times.trained(event.key, event.report)
        self._making = event.model_follows

    def model_made(self) -> None:
        """No personal model is being made any more: publish it if it may be, and begin the training that waited for that."""
        self._making = False
        closing, self._closing = self._closing, None
        waiting, self._waiting = self._waiting, None
        if closing is not None:
            try:
                self._close_round(closing)
            except (StateError, OSError) as error:  # another job may be at work by now, and is not to end by that
                _log.error("%s", error)
        if waiting is not None:
            self.perform([waiting])
            if self.job.paused:
                self._trainer.pause()

    @property
    def held_version(self) -> str:
        """Digest of the global model that is here from before, "" where there is none."""
        return self._held.version()

    def take_up_spooled(self) -> None:
        """Go on with the update that waited when the agent ended, if it may still leave, and make its personal model."""
        if (key := self._spool.committed_key()) is not None:
            self._closing = EndJob("committed", committed=key)
            # What is staged needs no update any more, which may be damaged.
            committed = None if self._has_model(key) else self._spool.committed()
            if committed is None or not self._make_model_again(committed):
                self.model_made()
            return
        self._spool.committed()  # a note that is damaged is dropped
        spooled = self._spool.load()
        if spooled is None:
            return
        if why := self.limits.why_not_send(spooled.request, spooled.manifest):
            _log.warning("the update of %s round %d is dropped: %s", spooled.key.run, spooled.key.round, why)
            self._spool.clear()
        else:
            _log.info("an update of %s round %d waits to be committed", spooled.key.run, spooled.key.round)
            self._update = spooled.manifest
            self.job.resume(spooled.key, spooled.manifest, time.monotonic(), spooled.request)
            self._make_model_again(spooled)

    def _make_model_again(self, spooled: Spooled) -> bool:
        """Whether the training process is at it: not where the model is here, or was refused."""
        key = spooled.key
        if spooled.request is None or self._has_model(key):
            return False
        self._making = True
        self._trainer.make_model(MakeModel(self._command(key, spooled.request), spooled.manifest))
        return True

    def _has_model(self, key: JobKey) -> bool:
        """Whether there is no model to make of a round: it is here, was refused, or this device keeps none."""
        return self._models is None or self._models.knows(key.task, key.run, key.round)

    def perform(self, effects: Sequence[Effect]) -> None:
        """All of `effects`, and those that follow from them.

        What the disk, the broker or the system refuses ends the job: instead of what was left to do, it is given up. An
        end that fails is only logged; the files it leaves behind are replaced or dropped in a later round.
        """
        queue = deque(effects)
        while queue:
            try:
                queue.extend(self._do(queue.popleft()))
            except (StateError, BrokerError, OSError) as error:
                if self.job.key is None:
                    _log.error("%s", error)
                else:
                    queue = deque(self.job.give_up(_fail_reason(error), str(error)))

    def _do(self, effect: Effect) -> list[Effect]:
        match effect:
            case SendMessage():
                if isinstance(effect.envelope.body, Decline):
                    declined = effect.envelope.body
                    _log.info("declined: %s %s", declined.reason, declined.detail, extra=fields(reason=declined.reason))
                if isinstance(effect.envelope.body, Offer):
                    self._spool.check(effect.envelope.body.manifest)  # hours may lie between, and cards wear out
                self._link.publish(topics.up(self.me.fleet, self.me.device), encode(effect.envelope))
            case StartDownload():
                return self._fetch(effect.blobs)
            case WriteChunk() if self._downloads is not None:
                self._downloads.write(effect.chunk)
                self._meter.moved(len(effect.chunk.data))
            case StartTraining():
                return self._train(effect)
            case SpoolUpdate():
                self._keep_update(effect)
            case SendChunk() if self._update is not None:
                chunk = cut_from_file(self._spool.update_path, self._update, effect.index)
                topic = topics.update_chunk(self.me.fleet, self.me.device, chunk.digest, chunk.index)
                self._link.publish(topic, encode_chunk(chunk))
                self._meter.moved(len(chunk.data))
                self.times.sends(time.monotonic())
            case EndJob():
                self._end_job(effect)
            case _:
                self._steer(effect)
        return []

    def _steer(self, effect: Effect) -> None:
        """What is under way: shall it stop, wait, go on?"""
        match effect:
            case StopDownload():
                self._end_download(keep=True)
            case DropHeldModel():
                _log.warning("%s; downloading the whole model", effect.why)
                self._held.forget()
            case PauseTraining():
                self._trainer.pause()
            case ContinueTraining():
                self._trainer.go_on()
            case StopTraining():
                self._waiting = None
                self._trainer.cancel()

    def _end_job(self, effect: EndJob) -> None:
        level = logging.WARNING if effect.gave_up else logging.INFO
        _log.log(level, "job over: %s", effect.outcome, extra=fields(outcome=effect.outcome.partition(":")[0]))
        self.last_outcome = effect.outcome
        self._update, self._waiting = None, None
        self._end_download()
        if effect.committed:
            self.times.committed(effect.committed, time.monotonic())
        if effect.committed and self._making:
            self._closing = effect
            self._spool.note_committed()
        elif self._closing is None:
            self._close_round(effect)

    def _close_round(self, effect: EndJob) -> None:
        if effect.committed and self._models:
            self._publish_model(self._models, effect.committed)
        self._spool.clear()
        if effect.rest_s >= LONG_REST_S:
            _log.info("no work for %.0f s: giving the memory of training back", effect.rest_s)
            self._trainer.stop()

    def _publish_model(self, models: ModelStore, key: JobKey) -> None:
        """What the round trained is for this device's applications now; a disk that refuses costs them no more than that."""
        try:
            try:
                version = models.publish(key.task, key.run, key.round)
            except UsageError:  # somebody rolls back, which takes moments
                time.sleep(LOCK_PAUSE_S)
                version = models.publish(key.task, key.run, key.round)
        except FedpatchError as error:
            _log.warning("personal model: that of round %d is not in use: %s", key.round, error)
            return
        if version is not None:
            _log.info("personal model: that of round %d is in use now, %s", key.round, version.path)

    def _keep_update(self, effect: SpoolUpdate) -> None:
        known, self._update = self._update, effect.manifest
        try:
            self._spool.save(Spooled(effect.key, effect.manifest, effect.request))
        except StateError as error:
            if known != effect.manifest:
                raise
            # It is noted for the epoch before; after a reboot, the newer one would have to ask for it once more.
            _log.warning("%s", error)
        self._end_download()

    def _fetch(self, blobs: tuple[Manifest, ...]) -> list[Effect]:
        self._end_download(keep=True)
        self._downloads = Downloads(self.directory / DOWNLOADS, blobs)
        self._link.subscribe(*self._filters(self._downloads))
        return self.job.fetching(self._downloads.have, time.monotonic())

    def _train(self, effect: StartTraining) -> list[Effect]:
        assert self._downloads is not None
        if self._closing is not None:
            self._waiting = effect
            return []
        way = effect.way
        self._link.unsubscribe(*self._filters(self._downloads))
        if not self._downloads.verified():
            _log.warning("what was downloaded is damaged; downloading the global model again")
            self._end_download()
            return self.job.damaged()
        self._meter.begins_round()
        about = fields(run=effect.key.run, round=effect.key.round, saved_bytes=way.saved_bytes)
        _log.info("%s round %d: training on %s", effect.key.run, effect.key.round, way, extra=about)
        command = self._command(effect.key, effect.request)
        self._trainer.train(
            replace(
                command,
                model_path="" if way.held else str(self._downloads.path(command.base)),
                held=way.held,
                steps=tuple(ModelStep(str(self._downloads.path(one.manifest.digest)), one) for one in way.steps),
                download_s=effect.download_s,
                independent_ends_at=effect.ends_at if effect.request.measure_independent else 0.0,
            )
        )
        return []

    def _command(self, key: JobKey, request: WorkRequest) -> TrainCommand:
        """What a request says of a round, but for the way to its global model."""
        return TrainCommand(
            key=key,
            plan=request.plan,
            private=request.private,
            schema=request.schema,
            model_path="",
            model=request.model,
            hold=bool(request.deltas) or is_delta(request.encoding),
            encoding=request.encoding,
            base=request.model.digest,
            update_path=str(self._spool.update_path),
            download_s=0.0,
            chunk_bytes=request.chunk_bytes,
        )

    def _end_download(self, *, keep: bool = False) -> None:
        downloads, self._downloads = self._downloads, None
        if downloads is None:
            return
        self._link.unsubscribe(*self._filters(downloads))
        if keep:
            downloads.close()
        else:
            downloads.discard()

    def _filters(self, downloads: Downloads) -> tuple[str, ...]:
        return tuple(topics.model_chunks_filter(self.me.fleet, digest) for digest in downloads.have)


def _fail_reason(error: StateError | BrokerError | OSError) -> FailReason:
    """Files raise StateError; the system itself refuses only a training process."""
    if isinstance(error, StateError):
        return FailReason.STORAGE
    return FailReason.DOWNLOAD if isinstance(error, BrokerError) else FailReason.TRAINING
