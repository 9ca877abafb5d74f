"""The time at which the personal model of a round is made, and at which it becomes the current one.

A model is made after its training, or later where the last one is not old enough; it becomes the current one when its update is
committed. The round is closed after that: its files are deleted, and a long rest gives the memory of training back.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable

from fedpatch.device_agent.job.job_effects import EndJob, JobKey
from fedpatch.device_agent.job.training_messages import MakeModel
from fedpatch.device_agent.models.store import ModelStore
from fedpatch.device_agent.runtime.agent_ports import TrainingPort
from fedpatch.device_agent.runtime.idle_release import LONG_REST_S
from fedpatch.device_agent.runtime.train_command import command_of
from fedpatch.device_agent.state.update_spool import Spooled, UpdateSpool
from fedpatch.device_agent.training.resource_limits import give_memory_back
from fedpatch.shared.errors import FedpatchError, StateError, UsageError
from fedpatch.shared.wire.messages import WorkRequest

_log = logging.getLogger("fedpatch.agent")

# Longest wait for another process that changes the present model.
LOCK_PAUSE_S = 0.5


class PersonalModelSchedule:
    """Schedules the personal models of one agent, and closes its rounds.

    Args:
        models: Personal models for applications; None where the device keeps none.
        spool: Files of the update that a model belongs to.
        trainer: The training process, which makes the models.
        clock: Returns monotonic seconds.
    """

    def __init__(
        self, models: ModelStore | None, spool: UpdateSpool, trainer: TrainingPort, clock: Callable[[], float]
    ) -> None:
        self._models = models
        self._spool = spool
        self._trainer = trainer
        self._clock = clock
        self._every_s = models.every_s if models else 0.0
        self._due_at = -math.inf  # the next personal model is made no sooner
        self._put_off = False  # whether the model of the last training was deferred
        # Whether the training process makes the personal model of the round before; an event reports the begin and the end.
        self._making = False
        self._closing: EndJob | None = None  # the round whose model is made before it is closed
        if models:
            models.attempts.forget()

    @property
    def making(self) -> bool:
        """True if the training process is making a personal model."""
        return self._making

    @property
    def owes_model(self) -> bool:
        """True if that model belongs to a committed update: it becomes the current one."""
        return self._closing is not None

    def trained(self, *, model_follows: bool) -> None:
        """A round was trained; its personal model may follow."""
        self._making = model_follows

    def measured(self, *, model_follows: bool) -> None:
        """A model was measured. If it was finished first, it replaces the deferred personal model and is made next."""
        if model_follows:
            self._making, self._put_off, self._closing = True, False, None

    def next_deadline(self) -> float | None:
        """Return the time at which `tick` is due; None if no personal model is deferred."""
        return self._due_at if self._puts_off else None

    def tick(self, now: float) -> None:
        """Let time pass until `now`, in monotonic seconds: a deferred personal model may be due."""
        if now >= self._due_at:
            self.make_owed_model()

    def make_owed_model(self) -> None:
        """Begin to make the personal model of the last committed round if it was deferred."""
        if not self._puts_off:
            return
        self._put_off = False
        self._due_at = self._clock() + self._every_s
        try:
            committed = self._spool.committed()
            if committed is not None and self.make_again(committed, is_in_memory=True):
                return
        except (StateError, OSError) as error:  # without the model, later rounds would wait for it
            _log.warning("personal model: the model of the last committed round is not made: %s", error)
        self.made()

    def made(self) -> bool:
        """The training process is done with a personal model: close its round. Return whether the next training may begin."""
        if self._puts_off:
            return False  # the process has ended by itself; another one makes the model
        self._making = False
        closing, self._closing = self._closing, None
        if closing is not None:
            try:
                self._close_round(closing)
            except (StateError, OSError) as error:  # another job may be running by now, and must not end because of it
                _log.error("%s", error)
        return True

    def blocks_training(self, *, evaluates: bool) -> bool:
        """Return whether a training must wait until the model of the round before is made.

        A deferred model is never made if another training begins: the model of the coming round replaces it.
        """
        if self._puts_off and not evaluates:
            self._closing = None
        return self._closing is not None and not self._puts_off

    def is_due(self, request: WorkRequest) -> bool:
        """Return whether the personal model is made right after the training that begins now, and plan the next one."""
        if request.evaluates:
            due = bool(request.plan.finish)
        else:
            due = self._clock() >= self._due_at
            self._put_off = self._models is not None and not due
        if due:
            self._due_at = self._clock() + self._every_s
        return due

    def end_round(self, effect: EndJob) -> None:
        """Close the round of a job that has ended, or wait until its personal model is made."""
        if effect.finished and self._making:
            self._closing = effect
        elif effect.committed and (self._making or self._put_off):
            self._closing = effect
            self._spool.note_committed()
            if effect.rest_s >= LONG_REST_S:
                self.make_owed_model()
        elif self._closing is None:
            self._close_round(effect)

    def restore_committed(self, key: JobKey) -> bool:
        """Continue with the model of an update that was committed before a restart.

        Returns:
            Whether the training process makes it; False where it exists or cannot be made.
        """
        self._closing = EndJob("committed", committed=key)
        # A staged model no longer needs its update, which may be damaged.
        committed = None if self._has_model(key) else self._spool.committed()
        return committed is not None and self.make_again(committed)

    def make_again(self, spooled: Spooled, *, is_in_memory: bool = False) -> bool:
        """Start making the model of a spooled update; False where it exists, was refused, or cannot be made.

        The values of a masked update cannot be read back. If the training process has them in memory, it needs no file.
        """
        key = spooled.key
        if self._has_model(key):
            return False
        if spooled.request.secure is not None and not is_in_memory:
            return False
        self._making = True
        self._trainer.make_model(MakeModel(command_of(key, spooled.request, self._spool), spooled.manifest))
        return True

    @property
    def _puts_off(self) -> bool:
        """True if a round is committed and its personal model is to be made later."""
        return self._put_off and self._closing is not None

    def _has_model(self, key: JobKey) -> bool:
        """Return whether there is no model to make of a round: it exists, was refused, or this device keeps none."""
        return self._models is None or self._models.knows(key.task, key.run, key.round)

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
