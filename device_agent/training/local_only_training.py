"""Learning alone: a second model that is trained on this device's own data only.

It measures what the device gains from taking part, and is its personal model if there is no gain
(device_agent.training.federated_or_alone). It is trained in rounds that request the measure and in those that `alone_schedule`
names, for as many steps as the round itself. So it never has more steps than this device has taken for the run, and its user
accuracy is a lower bound of learning alone with the same effort.

The whole model is private, for any policy of the owner. Its state is in a directory of its own below that of the patches, in
their format, since the owner's floor is derived from the names of patch files (device_agent.policy.private_floor).
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from fedpatch.device_agent.job.job_effects import JobKey
from fedpatch.device_agent.job.training_messages import TrainCommand
from fedpatch.device_agent.state.patch_store import ALONE, PatchKey, PatchRecord, PatchState, PatchStore, list_patches
from fedpatch.device_agent.training.batches import stream_seed
from fedpatch.device_agent.training.local_trainer import LocalResult, LocalTrainer
from fedpatch.shared.app.files import previous_of, refusals_of
from fedpatch.shared.errors import FedpatchError, StateError
from fedpatch.shared.tasks.torch_model import initial_tensors
from fedpatch.shared.tensors.arrays import MOMENTS, Tensors

log = logging.getLogger("fedpatch.training")

_SHARE = 0.5
"""Share of a round's time left after its own training that a measure may take at most."""

# The state before a round and after it, each with all moments of Adam, beside the version that it replaces.
_MODELS_KEPT = 18
_SPARE_BYTES = 16 * 2**20


@dataclass(frozen=True)
class Alone:
    """The model after training alone, not saved yet.

    `user_accuracy` is on the device's test data; None where the device does not count.
    """

    user_accuracy: float | None
    record: PatchRecord


class IndependentModel:
    """The model that one device trains alone, in `directory`, which is made on the first use.

    A trained state stays in memory until `flush`: it is as large as the model, and else a card would be written in each
    measure.
    """

    def __init__(self, trainer: LocalTrainer, directory: Path, device_id: str) -> None:
        self._trainer = trainer
        self._directory = directory
        self._device_id = device_id
        self._store: PatchStore | None = None
        self._unsaved: PatchRecord | None = None
        self._steps = "", 0

    def train(self, command: TrainCommand, result: LocalResult, cancelled: Callable[[], bool]) -> Alone | None:
        """Train the model and measure it; afterwards the trainer holds the model of the round again.

        Args:
            result: Result of the round's own training, which takes as many steps.
            cancelled: Called before each batch, as in `LocalTrainer.run`.

        Returns:
            None if the disk lacks room for the state, or the training was cancelled or took too long; also after an error,
            which is logged and does not fail the round.
        """
        needed = _MODELS_KEPT * sum(array.nbytes for array in result.tensors.values()) + _SPARE_BYTES
        if (free := shutil.disk_usage(self._directory.parent).free) < needed:
            self._note(
                f"{self._directory.parent}: {free} bytes free, {needed} needed for the model that is trained alone"
            )
            return None
        now = time.monotonic()
        # The upload takes about as long as the download took.
        ends_at = command.independent_ends_at or command.ends_at
        give_up_at = now + _SHARE * (ends_at - command.download_s - now)
        try:
            alone = self._train(command, result.steps, lambda: cancelled() or time.monotonic() >= give_up_at)
            if alone is None:
                log.info("learning alone: not trained in round %d, there was no time for it", command.key.round)
            return alone
        except FedpatchError as error:
            self._note(str(error))
        except Exception as error:  # an error of the user's model, or of torch: the round is worth more than a measure
            log.debug("learning alone", exc_info=error)
            self._note(f"{type(error).__name__}: {error}")
        finally:
            self._trainer.load(result.tensors)
        return None

    def keep(self, alone: Alone) -> None:
        """Keep the state for the next training alone."""
        self._unsaved = alone.record
        self._steps = alone.record.run, alone.record.after.batches_done

    def values(self, key: JobKey) -> Tensors:
        """Return the model after its last training in the run, with moments; empty without any. Raises StateError."""
        known = self._unsaved
        if known is not None and known.run == key.run:
            return known.after.values
        if not self._directory.is_dir():
            return {}
        return self._opened().load(self._key, key.run, key.round + 1, same_run=True).values

    def steps(self, key: JobKey) -> int:
        """Return the steps of the model in the run, read once a run. Raises StateError."""
        if self._steps[0] != key.run:
            known = (
                self._opened().load(self._key, key.run, key.round, same_run=True) if self._directory.is_dir() else None
            )
            self._steps = key.run, known.batches_done if known else 0
        return self._steps[1]

    def flush(self) -> None:
        """Save the state that is kept in memory. If the disk refuses, the older state stays, with a warning."""
        record, self._unsaved = self._unsaved, None
        if record is None:
            return
        try:
            self._opened().save(record)
        except StateError as error:
            log.warning("learning alone: the model trained alone is not kept: %s", error)

    def _train(self, command: TrainCommand, steps: int, stopped: Callable[[], bool]) -> Alone | None:
        task, key = self._trainer.task, command.key
        own = self._key
        before = self._before(own, key)
        plan = replace(
            command.plan.plain, steps=steps, moments=MOMENTS if command.plan.client_optimizer == "adam" else ()
        )
        trained = self._trainer.run(
            before.values or initial_tensors(task, plan.seed),
            plan,
            first_batch=before.batches_done,
            stream_seed=stream_seed(plan.seed, self._device_id),
            on_step=lambda done, total: None,
            cancelled=stopped,
            measure_before=False,
        )
        if trained is None:
            return None
        after = PatchState(trained.tensors, before.batches_done + steps)
        return Alone(trained.user_accuracy_after, PatchRecord(own, key.run, key.round, before, after))

    def _before(self, own: PatchKey, key: JobKey) -> PatchState:
        """Return the state to train a round from."""
        known = self._unsaved
        if known is not None and known.run == key.run and known.round < key.round:
            return known.after
        self.flush()  # a repeated round, or another run: the store has the earlier states
        return self._opened().load(own, key.run, key.round, same_run=True)

    @property
    def _key(self) -> PatchKey:
        return PatchKey(self._trainer.task.name, self._trainer.schema.digest, ALONE)

    def _opened(self) -> PatchStore:
        if self._store is None:
            self._store = PatchStore(self._directory)
            self._drop_other_schemas()
        return self._store

    def _drop_other_schemas(self) -> None:
        """Delete the states of other schemas of the task: no patch is in them, and nothing reads them again."""
        for entry in list_patches(self._directory):
            if entry.task == self._trainer.task.name and entry.schema != self._trainer.schema.digest:
                log.info("learning alone: the model of an earlier version of the task is deleted")
                with refusals_of(entry.path):
                    previous_of(entry.path).unlink(missing_ok=True)
                    entry.path.unlink(missing_ok=True)

    def _note(self, why: str) -> None:
        log.warning("learning alone: not trained: %s", why)
