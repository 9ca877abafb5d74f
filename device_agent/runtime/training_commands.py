"""Commands of a job to the training process: train, mask, pause and stop; a training may wait for a personal model."""

from __future__ import annotations

import logging
from dataclasses import replace

from fedpatch.device_agent.job.job_effects import (
    ContinueTraining,
    MaskUpdate,
    PauseTraining,
    StartTraining,
    StopTraining,
)
from fedpatch.device_agent.job.job_events import DownloadDamaged, JobEvent
from fedpatch.device_agent.job.training_messages import MaskCommand, ModelStep
from fedpatch.device_agent.policy.usage import JobUsage
from fedpatch.device_agent.runtime.agent_ports import TrainingPort
from fedpatch.device_agent.runtime.download_effects import ModelDownloads
from fedpatch.device_agent.runtime.personal_model_schedule import PersonalModelSchedule
from fedpatch.device_agent.runtime.train_command import command_of
from fedpatch.device_agent.runtime.update_outbox import UpdateOutbox
from fedpatch.shared.app.logging import fields

_log = logging.getLogger("fedpatch.agent")


class TrainingCommands:
    """Performs the effects of trainings.

    Args:
        trainer: The training process.
        downloads: The downloaded model.
        models: Schedule of personal models.
        outbox: Files of the update.
        usage: Counts rounds.
    """

    def __init__(
        self,
        trainer: TrainingPort,
        downloads: ModelDownloads,
        models: PersonalModelSchedule,
        outbox: UpdateOutbox,
        usage: JobUsage,
    ) -> None:
        self._trainer = trainer
        self._downloads = downloads
        self._models = models
        self._outbox = outbox
        self._usage = usage
        self._waiting: StartTraining | None = None  # until the personal model of the round before is made
        self._waiting_is_paused = False

    def start(self, effect: StartTraining) -> list[JobEvent]:
        """Verify the download, and train."""
        request, plan = effect.request, effect.plan
        if self._models.blocks_training(evaluates=request.evaluates):
            self._waiting, self._waiting_is_paused = effect, False
            return []
        steps = [replace(one, manifest=one.manifest.at(None)) for one in plan.steps]  # URLs stay in this process
        if not self._downloads.verified():
            return [DownloadDamaged()]
        about = fields(run=effect.key.run, round=effect.key.round, saved_bytes=plan.saved_bytes)
        what = "measuring" if request.evaluates else "training on"
        _log.info("%s round %d: %s %s", effect.key.run, effect.key.round, what, plan, extra=about)
        if request.plan.finish or not request.evaluates:
            self._usage.begins_round()
        self._trainer.train(
            replace(
                command_of(effect.key, request, self._outbox.spool),
                make_model=self._models.is_due(request),
                blob=None if plan.held else self._downloads.blob(request.model.digest),
                held=plan.held,
                steps=tuple(ModelStep(self._downloads.blob(one.manifest.digest), one) for one in steps),
                download_s=effect.download_s,
                independent_ends_at=effect.ends_at if request.measure_independent else 0.0,
                ends_at=effect.ends_at,
                attempt=effect.attempt,
            )
        )
        return []

    def take_waiting(self) -> StartTraining | None:
        """Return the training that waited for a personal model; None if none did."""
        waiting, self._waiting = self._waiting, None
        return waiting

    def pause_if_it_was_paused(self) -> None:
        """Pause a training whose pause began while it waited."""
        if self._waiting_is_paused:
            self._trainer.pause()

    def forget_waiting(self) -> None:
        """The job has ended."""
        self._waiting = None

    def pause(self, effect: PauseTraining) -> None:
        """Let the training wait before its next step."""
        self._waiting_is_paused = True
        self._trainer.pause()

    def go_on(self, effect: ContinueTraining) -> None:
        """End the pause."""
        self._waiting_is_paused = False
        self._trainer.go_on()

    def stop(self, effect: StopTraining) -> None:
        """Stop the training; its update is not needed."""
        self._waiting = None
        self._trainer.cancel()

    def mask(self, effect: MaskUpdate) -> None:
        """Have the trained vector masked."""
        if self._outbox.vector is None:
            return
        self._trainer.mask(
            MaskCommand(
                key=effect.key,
                vector=self._outbox.vector,
                vector_path=str(self._outbox.spool.vector_path),
                update_path=str(self._outbox.spool.update_path),
                context=effect.context,
                masks=effect.masks,
                noise=effect.noise,
            )
        )
