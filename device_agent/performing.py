"""Performs what the job decides: messages to the link, chunks and updates to and from the disk, work to the trainer."""

from __future__ import annotations

import logging
import secrets
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from device_agent.downloads import Downloads
from device_agent.effects import (
    ContinueTraining,
    Effect,
    Fetch,
    Forget,
    ForgetModel,
    JobKey,
    Keep,
    PauseTraining,
    Reply,
    Spool,
    StopFetching,
    StopTraining,
    Train,
)
from device_agent.held_model import DIRECTORY as HELD_DIRECTORY
from device_agent.held_model import HeldModel
from device_agent.job import Job
from device_agent.meter import Meter
from device_agent.model_store import ModelStore
from device_agent.owner_limits import OwnerLimits
from device_agent.round_times import RoundTimes
from device_agent.spool import Spool as UpdateSpool
from device_agent.spool import Spooled
from device_agent.trainer import Trainer
from device_agent.training_channel import ModelStep, TrainCommand
from shared import topics
from shared.blobs import cut_from_file
from shared.codec import encode
from shared.errors import BrokerError, FedpatchError, StateError
from shared.link import Link
from shared.log_lines import fields
from shared.messages import Decline, DeviceState, Envelope, Manifest, Offer, is_delta
from shared.reasons import FailReason
from shared.transfer import SendChunk, encode_chunk

_log = logging.getLogger("fedpatch.agent")

# A process that has torch loaded holds hundreds of megabytes; to start another takes a Pi half a minute.
LONG_REST_S = 300.0
# Of the time that a round will still wait: the longest that the measure of learning alone may take of it.
INDEPENDENT_SHARE = 0.5


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


class Performer:
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
        meter: Meter,
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
        self._spool = UpdateSpool(directory / "spool")
        self._downloads: Downloads | None = None
        self._held = HeldModel(directory / HELD_DIRECTORY)
        self._update: Manifest | None = None

    @property
    def held_version(self) -> str:
        """Digest of the global model that is here from before, "" where there is none."""
        return self._held.version()

    def take_up_spooled(self) -> None:
        """Goes on with the update that waited when the agent ended, if there is one and it may still leave the device."""
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
            case Reply():
                if isinstance(effect.envelope.body, Decline):
                    declined = effect.envelope.body
                    _log.info("declined: %s %s", declined.reason, declined.detail, extra=fields(reason=declined.reason))
                if isinstance(effect.envelope.body, Offer):
                    self._spool.check(effect.envelope.body.manifest)  # hours may lie between, and cards wear out
                self._link.publish(topics.up(self.me.fleet, self.me.device), encode(effect.envelope))
            case Fetch():
                return self._fetch(effect.blobs)
            case Keep() if self._downloads is not None:
                self._downloads.write(effect.chunk)
                self._meter.moved(len(effect.chunk.data))
            case Train():
                return self._train(effect)
            case Spool():
                self._keep_update(effect)
            case SendChunk() if self._update is not None:
                chunk = cut_from_file(self._spool.update_path, self._update, effect.index)
                topic = topics.update_chunk(self.me.fleet, self.me.device, chunk.digest, chunk.index)
                self._link.publish(topic, encode_chunk(chunk))
                self._meter.moved(len(chunk.data))
                self.times.sends(time.monotonic())
            case Forget():
                self._end_job(effect)
            case _:
                self._steer(effect)
        return []

    def _steer(self, effect: Effect) -> None:
        """What is under way: shall it stop, wait, go on?"""
        match effect:
            case StopFetching():
                self._end_download(keep=True)
            case ForgetModel():
                _log.warning("%s; downloading the whole model", effect.why)
                self._held.forget()
            case PauseTraining():
                self._trainer.pause()
            case ContinueTraining():
                self._trainer.go_on()
            case StopTraining():
                self._trainer.cancel()

    def _end_job(self, effect: Forget) -> None:
        level = logging.WARNING if effect.gave_up else logging.INFO
        _log.log(level, "job over: %s", effect.outcome, extra=fields(outcome=effect.outcome.partition(":")[0]))
        self.last_outcome = effect.outcome
        self._update = None
        self._end_download()
        if effect.committed:
            self.times.committed(effect.committed, time.monotonic())
        if effect.committed and self._models:
            self._publish_model(self._models, effect.committed)
        self._spool.clear()
        if effect.rest_s >= LONG_REST_S:
            _log.info("no work for %.0f s: giving the memory of training back", effect.rest_s)
            self._trainer.stop()

    def _publish_model(self, models: ModelStore, key: JobKey) -> None:
        """What the round trained is for this device's applications now; a disk that refuses costs them no more than that."""
        try:
            version = models.publish(key.task, key.run, key.round)
        except FedpatchError as error:
            _log.warning("personal model: that of round %d is not in use: %s", key.round, error)
            return
        if version is not None:
            _log.info("personal model: that of round %d is in use now, %s", key.round, version.path)

    def _keep_update(self, effect: Spool) -> None:
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
        self._downloads = Downloads(self.directory / "downloads", blobs)
        self._link.subscribe(*self._filters(self._downloads))
        return self.job.fetching(self._downloads.have, time.monotonic())

    def _train(self, effect: Train) -> list[Effect]:
        assert self._downloads is not None
        request, way = effect.request, effect.way
        self._link.unsubscribe(*self._filters(self._downloads))
        if not self._downloads.verified():
            _log.warning("what was downloaded is damaged; downloading the global model again")
            self._end_download()
            return self.job.damaged()
        self._meter.begins_round()
        about = fields(run=effect.key.run, round=effect.key.round, saved_bytes=way.saved_bytes)
        _log.info("%s round %d: training on %s", effect.key.run, effect.key.round, way, extra=about)
        self._trainer.train(
            TrainCommand(
                key=effect.key,
                plan=request.plan,
                private=request.private,
                schema=request.schema,
                model_path="" if way.held else str(self._downloads.path(request.model.digest)),
                model=request.model,
                held=way.held,
                steps=tuple(ModelStep(str(self._downloads.path(one.manifest.digest)), one) for one in way.steps),
                hold=bool(request.deltas) or is_delta(request.encoding),
                encoding=request.encoding,
                base=request.model.digest,
                update_path=str(self._spool.update_path),
                download_s=effect.download_s,
                chunk_bytes=request.chunk_bytes,
                independent_limit_s=effect.left_s * INDEPENDENT_SHARE if request.measure_independent else 0.0,
            )
        )
        return []

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
