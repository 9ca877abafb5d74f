"""Performs the job's effects: a table says which part of the agent performs each."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

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
from fedpatch.device_agent.job.job_events import EffectFailed, JobEvent, UpdateRestored
from fedpatch.device_agent.job.training_messages import Evaluated, Masked, Trained, TrainFailed
from fedpatch.device_agent.models.store import ModelStore
from fedpatch.device_agent.policy.usage import JobUsage
from fedpatch.device_agent.runtime.agent_ports import LimitsPort, TrainingPort
from fedpatch.device_agent.runtime.download_effects import ModelDownloads
from fedpatch.device_agent.runtime.message_sender import MessageSender
from fedpatch.device_agent.runtime.model_fetcher import FetchEvent, ModelFetcher
from fedpatch.device_agent.runtime.personal_model_schedule import PersonalModelSchedule
from fedpatch.device_agent.runtime.presence import AgentLink, Identity
from fedpatch.device_agent.runtime.traffic_count import TrafficCount
from fedpatch.device_agent.runtime.training_commands import TrainingCommands
from fedpatch.device_agent.runtime.update_outbox import UpdateOutbox
from fedpatch.device_agent.state.history import STOPPED, WORKED, DeviceHistory
from fedpatch.device_agent.state.masking_file import MaskingFile
from fedpatch.device_agent.state.offered_bases import OfferedBases
from fedpatch.device_agent.telemetry.vitals import RoundTimes
from fedpatch.shared.app.logging import fields
from fedpatch.shared.errors import BrokerError, StateError
from fedpatch.shared.mqtt.traffic import Traffic
from fedpatch.shared.wire.chunk_upload import SendChunk
from fedpatch.shared.wire.reason_codes import FailReason

_log = logging.getLogger("fedpatch.agent")

Performer = Callable[[Any], Sequence[JobEvent] | None]
"""Performs an effect; returns the events of effects that have finished, if there are any."""


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
        self._clock = clock
        self._history = DeviceHistory(None) if history is None else history
        self._work: tuple[JobKey, str] | None = None  # the last work that trained, and its global model
        self._traffic = TrafficCount(link, usage)
        self._downloads = ModelDownloads(identity.fleet, link, directory, fetcher, self._traffic, self.times)
        self._outbox = UpdateOutbox(directory, limits)
        self._models = PersonalModelSchedule(models, self._outbox.spool, trainer, clock)
        self._training = TrainingCommands(trainer, self._downloads, self._models, self._outbox, usage)
        masking, bases = MaskingFile(directory), OfferedBases(directory)
        self._messages = MessageSender(
            *(identity, link, self._outbox.spool, masking, self._history, self._traffic), shares_reasons=shares_reasons
        )
        self.performers: Mapping[type[Any], Performer] = {
            SendMessage: self._messages.send,
            SendAfterSave: self._messages.send_after_save,
            SendChunk: self._send_chunk,
            SaveMasking: lambda effect: masking.save(effect.state),
            SaveBase: lambda effect: bases.add(effect.digest),
            ForgetMasking: lambda effect: masking.delete(),
            StartDownload: self._downloads.start,
            WriteChunk: self._downloads.write,
            StopDownload: self._downloads.stop,
            DropHeldModel: self._downloads.drop_held,
            StartTraining: self._training.start,
            PauseTraining: self._training.pause,
            ContinueTraining: self._training.go_on,
            StopTraining: self._training.stop,
            MaskUpdate: self._training.mask,
            SpoolUpdate: self._spool_update,
            EndJob: self._end_job,
            ReportFailure: lambda effect: _log.error("%s", effect.detail),
        }

    def run_effect(self, effect: Effect) -> Sequence[JobEvent]:
        """Perform one effect; a refusal of disk, broker or system is an EffectFailed."""
        try:
            return self.performers[type(effect)](effect) or ()
        except (StateError, BrokerError, OSError) as error:
            return [EffectFailed(_fail_reason(error), str(error))]

    # ---- the job as a whole

    def note_work(self, key: JobKey, model: str) -> None:
        """Note the work that begins, for the history.

        Args:
            model: Digest of its global model.
        """
        self._work = key, model

    def take_up_spooled(self) -> list[JobEvent]:
        """Resume the update that waited when the agent ended, if it may still leave, and make its personal model."""
        if (key := self._outbox.spool.committed_key()) is not None:
            return [] if self._models.restore_committed(key) else self.model_made()
        spooled = self._outbox.restore()
        if spooled is None:
            return []
        self._models.make_again(spooled)
        return [UpdateRestored(spooled.key, spooled.manifest, spooled.request)]

    def tick(self, now: float) -> None:
        """Let time pass until `now`, in monotonic seconds: a deferred personal model may be due."""
        self._traffic.count_link()
        self._models.tick(now)

    def next_deadline(self) -> float | None:
        """Return the time at which `tick` is due; None if no personal model is deferred."""
        return self._models.next_deadline()

    def stop(self) -> None:
        """The agent has ended, and so has its connection: count its last bytes."""
        self._traffic.count_link()
        self._history.note(STOPPED, "the agent ended", self._traffic.total)

    def _send_chunk(self, effect: SendChunk) -> None:
        chunk = self._outbox.chunk(effect)
        if chunk is not None:
            self._messages.send_chunk(chunk)
            self.times.sends(self._clock())

    def _spool_update(self, effect: SpoolUpdate) -> None:
        self._outbox.keep(effect)
        self._downloads.end()

    def _end_job(self, effect: EndJob) -> None:
        level = logging.WARNING if effect.gave_up else logging.INFO
        _log.log(level, "job over: %s", effect.outcome, extra=fields(outcome=effect.outcome.partition(":")[0]))
        self.last_outcome = effect.outcome
        key, model = self._work or (effect.committed or effect.finished, "")
        self._history.note(WORKED, effect.outcome, self._traffic.total, key, model)
        self._work = None
        self._outbox.forget()
        self._training.forget_waiting()
        self._downloads.end()
        if effect.committed:
            self._outbox.committed(effect.committed)
            self.times.committed(effect.committed, self._clock())
        self._models.end_round(effect)

    # ---- events of the parts

    def moved_beside(self, traffic: Traffic) -> None:
        """Count what was moved beside the link."""
        self._traffic.moved_beside(traffic)

    def fetched(self, event: FetchEvent) -> list[JobEvent]:
        """Take an event of a fetch."""
        return self._downloads.fetched(event)

    @property
    def held_version(self) -> str:
        """Digest of the global model that this device holds, "" for none."""
        return self._downloads.held_version

    def model_held(self, version: str) -> None:
        """Note the version of the global model that the training process holds in memory; "" for a new process."""
        self._downloads.model_held(version)

    def note_outcome(self, event: Trained | Evaluated | Masked | TrainFailed) -> None:
        """Note the outcome of a training or a measurement; its personal model may follow."""
        match event:
            case Trained():
                self.times.trained(event.key, event.report)
                self._outbox.vector = event.manifest
                self._models.trained(model_follows=event.model_follows)
            case Evaluated():
                self._models.measured(model_follows=event.model_follows)

    @property
    def making_model(self) -> bool:
        """True if the training process is making a personal model."""
        return self._models.making

    @property
    def owes_model(self) -> bool:
        """True if that model belongs to a committed update: it becomes the current one."""
        return self._models.owes_model

    def make_owed_model(self) -> None:
        """Begin to make the personal model of the last committed round if it was deferred."""
        self._models.make_owed_model()

    def model_made(self) -> list[JobEvent]:
        """The training process is done with a personal model: publish it, and begin the training that waited for it."""
        if not self._models.made():
            return []
        waiting = self._training.take_waiting()
        if waiting is None:
            return []
        events = self.run_effect(waiting)
        self._training.pause_if_it_was_paused()
        return list(events)


def _fail_reason(error: StateError | BrokerError | OSError) -> FailReason:
    """Return the reason of a failure: files raise StateError, and OSError comes only from the start of a training process."""
    if isinstance(error, StateError):
        return FailReason.STORAGE
    return FailReason.DOWNLOAD if isinstance(error, BrokerError) else FailReason.TRAINING
