"""Exports a trained model as ONNX for applications, if it agrees with torch and is no worse than the previous one.

The candidate is the federated model or the model that the device trained alone (federated_or_alone), unless the previous model
stays (keep_previous_model). The user accuracy of the staged model is measured on test data, on which no choice is made: a
choice on them would make it too high; without validation data the newest model is staged unless it is worse. All this happens
while the update travels, and a failure does not fail the round.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from fedpatch.device_agent.job.training_messages import TrainCommand
from fedpatch.device_agent.models.export_attempts import MAX_DEATHS
from fedpatch.device_agent.models.store import ModelStore, StoredModel
from fedpatch.device_agent.training.federated_or_alone import Choice, choose
from fedpatch.device_agent.training.keep_previous_model import WORSE, PreviousModelComparison
from fedpatch.device_agent.training.local_trainer import LocalResult, LocalTrainer
from fedpatch.device_agent.training.resource_limits import give_memory_back
from fedpatch.shared import __version__
from fedpatch.shared.errors import ExportRefused, FedpatchError
from fedpatch.shared.onnx.export import Exported, export_onnx, torch_outputs
from fedpatch.shared.onnx.runtime import OnnxModel, require_parity
from fedpatch.shared.tasks.model_metadata import (
    ALONE,
    FEDERATED,
    MODEL_FILE,
    PREVIOUS,
    SOURCES,
    ModelMetadata,
    Preparation,
)

if TYPE_CHECKING:
    from fedpatch.shared.tasks.task import Task
    from fedpatch.shared.tensors.arrays import Array, Tensors


PARITY_SAMPLES = 256

log = logging.getLogger("fedpatch.models")


class ModelExport:
    """Stages the personal model of one device after each of its rounds.

    `keep_margin`: device_agent.training.keep_previous_model.
    `task_ref` and `preparation`, for the metadata, describe how applications prepare inputs. `run` calls the
    function that makes a model and returns its result: directly, or in another process
    (device_agent.training.forked_work.run_forked).
    """

    def __init__(
        self,
        trainer: LocalTrainer,
        store: ModelStore,
        keep_margin: float,
        *,
        task_ref: str = "",
        preparation: Preparation | None = None,
        run: Callable[[Callable[[], str]], str] = lambda work: work(),
    ) -> None:
        self._run = run
        self._trainer = trainer
        self._store = store
        self._comparison = PreviousModelComparison(trainer, store, keep_margin)
        self._task_ref = task_ref
        self._preparation = preparation

    def begin(self) -> None:
        """Delete a staged model of an earlier round, which was never committed."""
        try:
            self._store.discard_staged(self._trainer.task.name)
        except FedpatchError as error:
            log.warning("personal model: %s", error)

    def stage(self, command: TrainCommand, result: LocalResult, alone: Callable[[], Tensors] = dict) -> None:
        """Stage the model that the trainer has just trained or the one trained alone, unless the present one stays; log which.

        Args:
            result: Result of the training, which the trainer holds.
            alone: Returns the model trained alone; empty for none.
        """
        if why := self._why_not(partial(self._attempt, command, result, alone)):
            self._note(command, why)

    def _why_not(self, make: Callable[[], str]) -> str:
        """Return the reason for which `make` gave no model: its result, or its error. "" if it made one."""
        try:
            return make()
        except FedpatchError as error:
            return str(error)
        except Exception as error:  # an error in user code, torch, onnx or onnxruntime costs a model, not the update
            log.debug("personal model", exc_info=error)
            return f"{type(error).__name__}: {error}"

    def leave_out(self, command: TrainCommand, why: str) -> None:
        """Log and note the reason for which this round has no model."""
        self._note(command, why)

    def _note(self, command: TrainCommand, why: str) -> None:
        key = command.key
        level = logging.INFO if WORSE in why else logging.WARNING  # a model that is not chosen is no problem
        log.log(level, "personal model: round %d gives no other: %s", key.round, why)
        self._store.note_kept(self._trainer.task.name, StoredModel(key.run, key.round, why))

    def _attempt(self, command: TrainCommand, result: LocalResult, alone: Callable[[], Tensors]) -> str:
        """Call `_stage`, unless that has ended the process before: rounds are more important than models."""
        task = self._trainer.task.name
        self._store.prepare(task)
        _ = self._trainer.input_statistics  # here, since another process would compute them for every model
        if not self._store.attempts.begin(task):
            return (
                f"to make one has ended its process {MAX_DEATHS} times (too little memory or time, or a processor that "
                "onnxruntime is not built for); restart the agent to have it tried again, or set keep_models = 0"
            )
        give_memory_back()  # the round's steps are done: the export cannot use the memory that they freed
        why = self._run(partial(self._why_not, partial(self._stage, command, result, alone)))
        self._store.attempts.end(task)  # not after the death of a process: deaths are counted
        return why

    def _stage(self, command: TrainCommand, result: LocalResult, alone: Callable[[], Tensors]) -> str:
        """Stage the chosen model; return the reason for which the present one stays, or ""."""
        choice = choose(self._trainer, result.tensors, alone)
        try:
            return self._stage_chosen(command, result, choice)
        finally:
            if choice.source != FEDERATED:
                self._trainer.load(result.tensors)

    def _stage_chosen(self, command: TrainCommand, result: LocalResult, choice: Choice) -> str:
        inputs = self._trainer.test_data[0].numpy()
        exported = export_onnx(self._trainer.model, inputs[:1])
        model = OnnxModel(exported.model, MODEL_FILE)
        samples = inputs[:PARITY_SAMPLES]
        parity = require_parity(model, samples, torch_outputs(self._trainer.model, samples))
        metadata = self._describe(command, result, model, exported, parity)
        metadata = replace(metadata, source=choice.source, reason=choice.reason)
        previous = self._comparison.measure_previous()
        validated = None if previous is None or self._trainer.validation_data is None else previous.measured
        measured = {FEDERATED: choice.federated, ALONE: choice.alone, PREVIOUS: validated}
        measured[choice.source] = metadata.validation_accuracy
        candidates = {name: value for name, value in measured.items() if value is not None}
        metadata = replace(
            metadata,
            candidates=candidates,
            best=self._comparison.best(metadata, None if previous is None else previous.best),
        )
        if why := self._comparison.reason_to_keep(metadata, previous):
            return why
        self._store.stage(exported.model, metadata)
        log.info(
            "personal model: round %d, %s, %s %.4g on test data (%s)",
            command.key.round,
            SOURCES[metadata.source],
            metadata.metric,
            metadata.user_accuracy,
            metadata.reason,
        )
        return ""

    def _describe(
        self,
        command: TrainCommand,
        result: LocalResult,
        model: OnnxModel,
        exported: Exported,
        parity: float,
    ) -> ModelMetadata:
        task, validation = self._trainer.task, self._trainer.validation_data
        inputs = self._trainer.test_data[0].numpy()
        outputs = model.run(inputs)
        require_named_outputs(task, outputs)
        has_copy = bool(command.plan.personal or command.plan.finish)
        return ModelMetadata(
            kind="personal",
            task=task.name,
            run=command.key.run,
            round=command.key.round,
            private=command.private,
            private_values="none" if command.private == "none" and not has_copy else "trained",
            schema=self._trainer.schema.digest,
            input_shape=inputs.shape[1:],
            input_dtype=inputs.dtype.name,
            output_shape=outputs.shape[1:],
            class_names=task.class_names,
            metric=task.metric_name,
            metric_goal=task.metric_goal,
            user_accuracy=self._user_accuracy(outputs),
            user_accuracy_before=result.user_accuracy_before,
            test_examples=len(inputs),
            parity=parity,
            sha256=hashlib.sha256(exported.model).hexdigest(),
            size_bytes=len(exported.model),
            created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            fedpatch=__version__,
            torch=exported.torch,
            onnx=exported.onnx,
            validation_accuracy=self._comparison.on_validation(model),
            validation_examples=0 if validation is None else len(validation[0]),
            task_ref=self._task_ref,
            prepare=self._preparation,
            inputs=self._trainer.input_statistics,
            readings=task.readings,
        )

    def _user_accuracy(self, outputs: Array) -> float:
        """Return the metric on test data; ExportRefused if it is not a finite number."""
        measured = float(self._trainer.task.metric(torch.from_numpy(outputs), self._trainer.test_data[1]))
        if not math.isfinite(measured):
            raise ExportRefused(f"task {self._trainer.task.name!r}: its metric gave {measured} on the test data")
        return measured


def require_named_outputs(task: Task, outputs: Array) -> None:
    """Raise ExportRefused if the task has another number of classes than the model has outputs."""
    if task.class_names and outputs.shape[1:] != (len(task.class_names),):
        raise ExportRefused(
            f"task {task.name!r} names {len(task.class_names)} classes, but its model gives outputs of shape "
            f"{outputs.shape[1:]} for each example"
        )
