"""A device's part of a round (Algorithm 1, lines 5-18): from the global model to an update without private values.

Only tensors that neither the owner's floor nor the request keeps private are packed. This is the second of four checks. The
first is that of the agent, which declines a request below the floor. The others are the codec, which has no message for a
patch, and the coordinator, which refuses names outside the agreed schema.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from fedpatch.device_agent.job.job_effects import JobKey
from fedpatch.device_agent.job.training_messages import Downloaded, TrainCommand
from fedpatch.device_agent.policy.plan_limit import why_too_long
from fedpatch.device_agent.policy.private_floor import PrivateFloor, public_schema, undercut
from fedpatch.device_agent.state.model_cache import BufferedModelCache, ModelCache
from fedpatch.device_agent.state.patch_store import (
    CONTROLS,
    INDEPENDENT,
    PERSONAL,
    PatchKey,
    PatchRecord,
    PatchState,
    PatchStore,
    key_of_round,
)
from fedpatch.device_agent.training.alone_schedule import AloneSchedule
from fedpatch.device_agent.training.batches import attempt_seed, stream_seed, update_seed
from fedpatch.device_agent.training.device_data import ReloadingDataset
from fedpatch.device_agent.training.evaluation import Cancelled
from fedpatch.device_agent.training.global_model import read_blob, read_global_model
from fedpatch.device_agent.training.local_only_training import Alone, IndependentModel
from fedpatch.device_agent.training.local_trainer import LocalResult, LocalTrainer
from fedpatch.device_agent.training.masked_update import bounded_patch, unmasked_blob, unmasked_private_blob
from fedpatch.device_agent.training.model_export import ModelExport
from fedpatch.shared.app.files import refusals_of, write_atomic
from fedpatch.shared.errors import FedpatchError, SchemaMismatch, StateError, StateUnreadable, UpdateRefused, UsageError
from fedpatch.shared.masking.device_vector import weight_class
from fedpatch.shared.tasks.task import Task
from fedpatch.shared.tasks.torch_model import initial_tensors, load_tensors, require_whole_ties
from fedpatch.shared.tensors.arrays import Array, Schema, Tensors, listing
from fedpatch.shared.tensors.common_update_checks import ExpectedUpdate, read_update
from fedpatch.shared.tensors.packing import Packed, pack
from fedpatch.shared.tensors.patches import PatchPolicy, merge, parse_policy, split
from fedpatch.shared.wire.chunks import describe
from fedpatch.shared.wire.codec import from_plain
from fedpatch.shared.wire.field_types import MAX_MEASURE
from fedpatch.shared.wire.masking_messages import SecureTerms
from fedpatch.shared.wire.messages import Evaluation, Manifest, TrainPlan, UpdateReport, is_delta

log = logging.getLogger("fedpatch.training")


class LocalUpdate:
    """Does the rounds of one device; with `export`, `make_model` stages a personal model after each of them.

    `private` is the owner's policy for the tensors that must stay on the device, "" for the default
    (device_agent.policy.private_floor). `alone_every` is `every` of `AloneSchedule`.
    """

    def __init__(
        self,
        trainer: LocalTrainer,
        store: PatchStore,
        device_id: str,
        *,
        export: ModelExport | None = None,
        data: ReloadingDataset | None = None,
        held: ModelCache | None = None,
        private: str = "",
        alone_every: int = 0,
    ) -> None:
        self._trainer = trainer
        self._hides_examples = False
        self._joined_with = trainer.num_examples
        self._store = store
        self._schedule = AloneSchedule(alone_every)
        self._floor = PrivateFloor(store.directory, trainer.task.name, private)
        self._independent = IndependentModel(trainer, store.directory / INDEPENDENT, device_id)
        self._held = held
        self._device_id = device_id
        self._export = export
        self._data = data
        self._trained: tuple[TrainCommand, LocalResult] | None = None
        self._most = sys.maxsize, sys.maxsize

    def bound(self, max_steps: int, max_epochs: int, *, hides_examples: bool = False) -> None:
        """Set the owner's limits. Plans beyond them are refused; the agent checked them for older data.

        Args:
            max_steps: Most training steps of a round; 0 for no limit.
            max_epochs: Most passes over the data in a round; 0 for no limit.
            hides_examples: As in WorkerSetup.
        """
        self._hides_examples = hides_examples
        self._most = max_steps or sys.maxsize, max_epochs or sys.maxsize

    def take_new_data(self) -> int | None:
        """Read the data again if they have changed; return the number of training examples if that has changed.

        Raises the errors of `ReloadingDataset`; then the trainer keeps its old data, and they are read again before the
        next round.
        """
        before = self._trainer.num_examples
        changed = self._data.load_changed() if self._data else None
        if changed is not None:
            self._trainer.take(changed)
        return None if self._trainer.num_examples == before else self._trainer.num_examples

    def run(
        self,
        command: TrainCommand,
        on_step: Callable[[int, int], None],
        cancelled: Callable[[], bool],
    ) -> tuple[Manifest, UpdateReport] | None:
        """Train, save the patch, and write the update to `command.update_path` (0600).

        The patch is saved before the update: an update never exists without it. A repeated round gives the same values, under
        masks with the same keys only.

        Args:
            on_step: Called after each step with the steps done and their total.
            cancelled: Called before each batch; True cancels. A cancel in training leaves nothing; one in the measure of
                learning alone leaves the patch.

        Returns:
            The description of the update; None after a cancel.

        Raises:
            WireError: The model is damaged, or the deltas do not lead to it.
            SchemaMismatch: The model has another shape.
            UsageError: The plan or the policy cannot be followed.
            UpdateRefused: The training diverged.
            DataError: The data cannot be trained on.
            StateError: The disk refused.
        """
        trainer, plan = self._trainer, command.plan
        self._trained = None
        if self._export:
            self._export.begin()
        policy, schema = _agreed(trainer, command)
        public = self._allowed(command)
        self._require_bounded(command)
        key = key_of_round(trainer.task.name, trainer.schema, policy, plan.kind, self._store.directory)
        before = self._store.load(key, command.key.run, command.key.round)
        patch = _patch_values(before, policy.patch(schema), trainer.task, plan.seed)
        model = read_global_model(command, public, self._held)
        copies, own = self._copy(command, key)
        controls, own_control = self._control(command, key)
        trained = trainer.train(
            merge(model, patch),
            plan,
            copy=own.values,
            first_batch=before.batches_done,
            stream_seed=stream_seed(plan.seed, self._device_id),
            on_step=on_step,
            cancelled=cancelled,
            private=policy.private_names(schema),
            control=own_control.values,
            attempt=command.attempt,
        )
        if trained is None:
            return None
        result, shown = trained
        update, after_training = _taken_apart(result, policy, schema, public)
        if command.secure is not None:
            after_training = bounded_patch(patch, after_training, policy.patch(schema))
        patch = after_training
        self._floor.note(patch, trainer.schema)
        after = PatchState(patch, before.batches_done + result.steps)
        self._store.save(PatchRecord(key, command.key.run, command.key.round, before, after))
        if controls is not None:
            controls.save(PatchRecord(key, command.key.run, command.key.round, own_control, PatchState(result.control)))
        if copies is not None:
            copy = PatchState(shown.tensors, after.batches_done)
            copies.save(PatchRecord(key, command.key.run, command.key.round, own, copy))
        trains = self._trains_alone(command, result.steps, after.batches_done)
        alone = self._independent.train(command, shown, cancelled) if trains else None
        if cancelled():
            return None
        report = self._report(command, shown, alone)
        rounding = attempt_seed(update_seed(plan.seed, self._device_id, before.batches_done), command.attempt)
        step = _Step(public, model, update, rounding)
        manifest = self._write_update(command, step, report)
        if alone:
            self._independent.keep(alone)
        self._trained = command, shown
        return manifest, report

    def _report(self, command: TrainCommand, shown: LocalResult, alone: Alone | None) -> UpdateReport:
        """Return the report of the update; the accuracy of learning alone is in it where the request asks for it."""
        report = _report(command, shown)
        if alone is None or not self._measures_alone(command):
            return report
        return replace(report, user_accuracy_independent=alone.user_accuracy)

    def _copy(
        self, command: TrainCommand, key: PatchKey, *, after_round: bool = False
    ) -> tuple[PatchStore | None, PatchState]:
        """Return the store of personal copies and the copy before or after a round; None and no values for other plans.

        Before a round there is no copy of a plan with `finish`, which begins with the global model.
        """
        if not command.plan.personal and not command.plan.finish:
            return None, PatchState()
        store = PatchStore(self._store.directory / PERSONAL)
        if command.plan.finish and not after_round:
            return store, PatchState()
        return store, store.load(key, command.key.run, command.key.round + after_round)

    def _control(self, command: TrainCommand, key: PatchKey) -> tuple[PatchStore | None, PatchState]:
        """Return the store of control variates and c_i of the last update that counted; None and no values for other plans.

        c_i is zero if there is none of this run, or none that can be read.
        """
        if not command.plan.has_controls:
            return None, PatchState()
        store = PatchStore(self._store.directory / CONTROLS)
        try:
            return store, store.load(key, command.key.run, command.counted + 1, same_run=True)
        except StateUnreadable:
            raise
        except StateError as error:
            log.warning("control variate: %s; it begins at zero", error)
            store.forget(key)
            return store, PatchState()

    def evaluate(self, command: TrainCommand, cancelled: Callable[[], bool]) -> Evaluation | None:
        """Measure the device's model: the global one with its patch, its personal copy, or the finished model.

        No file is written. A finished model is kept for `make_model`.

        Args:
            command: The command, with `evaluate`.
            cancelled: Called before each batch; True cancels.

        Returns:
            The measurement; None after a cancel.

        Raises:
            WireError, SchemaMismatch, UsageError, UpdateRefused, DataError, StateError: As `run` does.
        """
        trainer = self._trainer
        policy, schema = _agreed(trainer, command)
        public = self._allowed(command)
        key = key_of_round(trainer.task.name, trainer.schema, policy, command.plan.kind, self._store.directory)
        known = self._store.load(key, command.key.run, command.key.round)
        patch = _patch_values(known, policy.patch(schema), trainer.task, command.plan.seed)
        model = read_global_model(replace(command, hold=False), public, self._held)
        began_at = time.perf_counter()
        if command.plan.finish:
            return self._finish(command, merge(model, patch), policy.private_names(schema), cancelled)
        try:
            measured = trainer.measure(self._copy(command, key)[1].values or merge(model, patch), cancelled)
        except Cancelled:
            return None
        finally:
            if self._trained is not None:  # its personal model may be made later
                trainer.load(self._trained[1].tensors)
        return Evaluation(command.base, measured, len(trainer.test_data[0]), time.perf_counter() - began_at)

    def _finish(
        self, command: TrainCommand, tensors: Tensors, private: Collection[str], cancelled: Callable[[], bool]
    ) -> Evaluation | None:
        """Finish the model of an evaluate round, and measure it."""
        self._require_bounded(command)
        self._trained = None
        if self._export:
            self._export.begin()
        seed = stream_seed(command.plan.seed, self._device_id)
        own = self._trainer.finish(tensors, command.plan, stream_seed=seed, cancelled=cancelled, private=private)
        if own is None:
            return None
        self._trained = command, own
        return Evaluation(command.base, own.user_accuracy_after, len(self._trainer.test_data[0]), own.train_s)

    def _allowed(self, command: TrainCommand) -> Schema:
        """Return the schema of the tensors that may leave; UpdateRefused("private_value") for a request below the floor."""
        schema = self._trainer.schema
        floor = self._floor.of(schema)
        lacking = undercut(floor, command.private, schema)
        if lacking:
            raise UpdateRefused(
                "private_value",
                f"the request keeps {command.private} private, the owner of this device at least {floor.words}; "
                f"{listing(lacking)} would leave it; nothing was trained",
            )
        return public_schema(floor, command.private, schema, command.plan.moments)

    def _require_bounded(self, command: TrainCommand) -> None:
        """Raise UsageError for more training than the owner allows, with the present data."""
        if why := self._too_long(command.plan, measured=False):
            raise UsageError(f"{why}; nothing was trained")

    def _trains_alone(self, command: TrainCommand, steps: int, taken: int) -> bool:
        """Return whether a model is trained alone too: on request or by schedule, if no limit of the owner forbids it.

        Args:
            steps: Steps of the round.
            taken: Steps that the device has taken in all its rounds with this one.
        """
        measured = self._measures_alone(command)
        if not measured and not self._is_due_alone(command, steps, taken):
            return False
        why = self._too_long(command.plan, measured=True)
        if why:
            log.info("learning alone: not trained in round %d: %s", command.key.round, why)
        return not why

    def _measures_alone(self, command: TrainCommand) -> bool:
        """Return whether the report shall have the figure of learning alone; never under masks.

        Which devices have time for it follows from a deadline that may differ from device to device, so that the sum could hold
        the figure of one device.
        """
        return bool(command.independent_ends_at) and command.secure is None and self._trainer.counts_in_ua

    def _is_due_alone(self, command: TrainCommand, steps: int, taken: int) -> bool:
        if not command.ends_at or self._export is None or self._trainer.validation_data is None:
            return False
        try:
            return self._schedule.is_due(steps=steps, taken=taken, alone=self._independent.steps(command.key))
        except StateError as error:
            log.warning("learning alone: not trained: %s", error)
            return False

    def _too_long(self, plan: TrainPlan, *, measured: bool) -> str:
        max_steps, max_epochs = self._most
        examples = self._trainer.num_examples
        count, limit = why_too_long(
            plan,
            examples,
            max_steps=max_steps,
            max_epochs=max_epochs,
            measured=measured,
            hides_examples=self._hides_examples,
        )
        return f"{count} {limit}" if limit else ""

    def flush(self) -> None:
        """Write the states that are kept in memory between rounds; called when the process ends. Raises StateError."""
        self._independent.flush()  # first: it only logs an error of the disk
        if isinstance(self._held, BufferedModelCache):
            self._held.flush()

    @property
    def makes_models(self) -> bool:
        """True if `make_model` must be called after a round."""
        return self._export is not None

    def make_model(self, stopped: Callable[[], bool] = lambda: False) -> None:
        """Stage the personal model of the last round, unless work is `stopped`. A failure is only logged."""
        trained, self._trained = self._trained, None
        if self._export is None or trained is None:
            return
        if stopped():
            self._export.leave_out(trained[0], "work had to stop before it was made")
            return
        self._export.stage(*trained, self._alone(trained[0]))

    def _alone(self, command: TrainCommand) -> Callable[[], Tensors]:
        """Return the function that reads the model trained alone; by schedule, it is on disk before the personal model is."""
        if self._schedule.every:
            self._independent.flush()
        return partial(self._independent.values, command.key)

    def make_model_again(self, command: TrainCommand, manifest: Manifest) -> None:
        """Stage the personal model of an earlier round: as it was trained, or after a restart from its update and its patch.

        After a restart its public tensors are those of the update, which an encoding may have rounded.
        """
        if self._export is None:
            return
        if self._trained is not None and _same_round(self._trained[0].key, command.key):
            self.make_model()
            return
        try:
            result = self._read_back(command, manifest)
        except FedpatchError as error:
            self._export.leave_out(command, f"the device was switched off before it was made, and {error}")
            return
        self._export.stage(command, result, self._alone(command))

    def _read_back(self, command: TrainCommand, manifest: Manifest) -> LocalResult:
        """Return the result of a round from its files, with the model loaded into the trainer."""
        trainer = self._trainer
        policy, schema = _agreed(trainer, command)
        public = self._allowed(command)
        base = (
            read_global_model(replace(command, held=command.base), public, self._held)
            if is_delta(manifest.encoding)
            else None
        )
        report, update = read_blob(Downloaded(command.update_path), manifest, public, base)
        key = key_of_round(trainer.task.name, trainer.schema, policy, command.plan.kind, self._store.directory)
        after = self._store.load(key, command.key.run, command.key.round + 1)
        copies, copy = self._copy(command, key, after_round=True)
        if copies is not None and not copy.values:
            raise StateError("its personal copy is gone")
        tensors = copy.values or merge(
            update, _patch_values(after, policy.patch(schema), trainer.task, command.plan.seed)
        )
        load_tensors(trainer.model, {name: array for name, array in tensors.items() if ":" not in name})
        known = from_plain(report, UpdateReport)
        return LocalResult(
            dict(tensors),
            known.num_examples,
            known.steps,
            known.train_loss,
            known.user_accuracy_before,
            known.user_accuracy_after,
            known.train_s,
        )

    def _write_update(self, command: TrainCommand, step: _Step, report: UpdateReport) -> Manifest:
        if command.secure is not None:
            return self._write_vector(command, command.secure, step, report)
        packed = pack(step.update, step.public, report.plain, command.encoding, base=step.model, seed=step.seed)
        self._require_acceptable(packed, command, step)
        manifest = packed.manifest(command.chunk_bytes, step.public)
        path = Path(command.update_path)
        with refusals_of(path):
            write_atomic(path, packed.blob)
        return manifest

    def _require_acceptable(self, packed: Packed, command: TrainCommand, step: _Step) -> None:
        """Raise UpdateRefused for an update that the coordinator would count as an offence, for example after an overflow."""
        private = parse_policy(command.private).private_names(self._trainer.schema.with_moments(command.plan.moments))
        expected = ExpectedUpdate(step.public, private, command.base, step.model, command.plan)
        try:
            read_update(packed.blob, expected, encoding=command.encoding, raw_bytes=packed.raw_bytes)
        except UpdateRefused as error:
            raise UpdateRefused(
                error.reason,
                f"task {self._trainer.task.name!r}: {error}; the update is not sent. Scale inputs and targets in the task's "
                "`prepare`, or try a smaller learning rate",
            ) from error

    def _write_vector(self, command: TrainCommand, terms: SecureTerms, step: _Step, report: UpdateReport) -> Manifest:
        """Write the vector of a masked round, which a MaskCommand masks. It has nothing of earlier rounds."""
        if command.privacy is not None:
            blob = unmasked_private_blob(
                command.privacy, step.public, model=step.model, update=step.update, report=report, seed=step.seed
            )
        else:
            blob = unmasked_blob(
                terms,
                step.public,
                model=step.model,
                update=step.update,
                # The class stays while data grow: a change would show in the sum of the group.
                report=replace(
                    report,
                    num_examples=weight_class(
                        self._joined_with, hidden_as=terms.weight_cap if self._hides_examples else 0
                    ),
                ),
                metric=self._trainer.task.metric_terms,
                seed=step.seed,
            )
        path = Path(command.update_path)
        with refusals_of(path):
            write_atomic(path, blob)
        return describe(
            blob,
            chunk_bytes=command.chunk_bytes,
            encoding=command.encoding,
            raw_bytes=len(blob),
            schema=step.public.digest,
        )


@dataclass(frozen=True)
class _Step:
    """The public tensors after training from `model`; `seed` is that of the encoding's rounding."""

    public: Schema
    model: Tensors
    update: Tensors
    seed: int


def _same_round(one: JobKey, other: JobKey) -> bool:
    """Return whether two keys differ at most in the epoch."""
    return replace(one, epoch=other.epoch) == other


def _agreed(trainer: LocalTrainer, command: TrainCommand) -> tuple[PatchPolicy, Schema]:
    """Return the policy of the command, and the schema of the whole model with its moments."""
    ours = trainer.schema.digest
    if command.schema != ours:
        raise SchemaMismatch(
            f"task {trainer.task.name!r}: the coordinator's model has schema {command.schema[:12]}, this device's "
            f"{ours[:12]}; install the same version of the task on both"
        )
    policy = parse_policy(command.private)
    schema = trainer.schema.with_moments(command.plan.moments)
    require_whole_ties(trainer.model, policy.private_names(schema))
    return policy, schema


def _patch_values(state: PatchState, schema: Schema, task: Task, seed: int) -> dict[str, Array]:
    """Return exactly the tensors of the patch's schema: saved values, else initial ones, and zero for moments.

    Saved moments that the plan does not use are left out.
    """
    initial = {} if all(spec.name in state.values for spec in schema.specs) else initial_tensors(task, seed)
    values: dict[str, Array] = {}
    for spec in schema.specs:
        known = state.values.get(spec.name, initial.get(spec.name))
        values[spec.name] = np.zeros(spec.shape, spec.dtype) if known is None else known
    schema.check(values)
    return values


def _taken_apart(
    result: LocalResult, policy: PatchPolicy, schema: Schema, public: Schema
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return the public tensors and the patch; UpdateRefused("private_value") if a public name is not in `public`."""
    update, patch = split(result.tensors, policy, schema)
    leaked = set(update).difference(public.names)
    if leaked:
        raise UpdateRefused("private_value", f"{listing(leaked)} would have left this device; nothing was written")
    return update, patch


def _report(command: TrainCommand, result: LocalResult) -> UpdateReport:
    return UpdateReport(
        base=command.base,
        num_examples=result.num_examples,
        steps=result.steps,
        train_loss=max(-MAX_MEASURE, min(result.train_loss, MAX_MEASURE)),  # beyond it, no coordinator could read it
        user_accuracy_before=result.user_accuracy_before,
        user_accuracy_after=result.user_accuracy_after,
        download_s=command.download_s,
        train_s=result.train_s,
    )
