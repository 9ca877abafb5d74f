"""Learning alone: a second model that is trained on this device's own data only, for comparison.

It is trained only in rounds that request the measure, for as many steps as the round itself. So it never has more steps than
this device has taken for the run, and its user accuracy is a lower bound of learning alone with the same effort.

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
from fedpatch.device_agent.state.patch_store import PatchKey, PatchRecord, PatchState, PatchStore
from fedpatch.device_agent.training.batches import stream_seed
from fedpatch.device_agent.training.local_trainer import LocalResult, LocalTrainer
from fedpatch.shared.errors import FedpatchError, StateError
from fedpatch.shared.tasks.torch_model import initial_tensors
from fedpatch.shared.tensors.arrays import MOMENTS

log = logging.getLogger("fedpatch.training")

_POLICY = "independent"
_SHARE = 0.5
"""Share of a round's time left after its own training that a measure may take at most."""

# The state before a round and after it, each with all moments of Adam, beside the version that it replaces.
_MODELS_KEPT = 18
_SPARE_BYTES = 16 * 2**20


@dataclass(frozen=True)
class Alone:
    """The model after training alone, not saved yet, and its user accuracy on the device's test data."""

    user_accuracy: float
    record: PatchRecord


class IndependentModel:
    """The model that one device trains alone, in `directory`, which is made on the first use.

    A measured state stays in memory until `flush`: it is as large as the model, and a card would be written in each measure.
    """

    def __init__(self, trainer: LocalTrainer, directory: Path, device_id: str) -> None:
        self._trainer = trainer
        self._directory = directory
        self._device_id = device_id
        self._store: PatchStore | None = None
        self._unsaved: PatchRecord | None = None

    def train(self, command: TrainCommand, result: LocalResult, cancelled: Callable[[], bool]) -> Alone | None:
        """Train the model and measure it; afterwards the trainer holds the model of the round again.

        Args:
            command: The training command of the round.
            result: Result of the round's own training, which takes as many steps.
            cancelled: Called before each batch, as in `LocalTrainer.run`.

        Returns:
            None if the device does not count in user accuracy, the disk lacks room for the state, or the training was
            cancelled or took too long; also after an error, which is logged and does not fail the round.
        """
        if not self._trainer.counts_in_ua:
            return None
        needed = _MODELS_KEPT * sum(array.nbytes for array in result.tensors.values()) + _SPARE_BYTES
        if (free := shutil.disk_usage(self._directory.parent).free) < needed:
            self._note(
                f"{self._directory.parent}: {free} bytes free, {needed} needed for the model that is trained alone"
            )
            return None
        now = time.monotonic()
        # The upload takes about as long as the download took.
        give_up_at = now + _SHARE * (command.independent_ends_at - command.download_s - now)
        try:
            alone = self._train(command, result.steps, lambda: cancelled() or time.monotonic() >= give_up_at)
            if alone is None:
                log.info("learning alone: not measured in round %d, there was no time for it", command.key.round)
            return alone
        except FedpatchError as error:
            self._note(str(error))
        except Exception as error:  # of the user's model, or of torch: the round is worth more than a measure
            log.debug("learning alone", exc_info=error)
            self._note(f"{type(error).__name__}: {error}")
        finally:
            self._trainer.load(result.tensors)
        return None

    def keep(self, alone: Alone) -> None:
        """Keep the state for the next measure."""
        self._unsaved = alone.record

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
        own = PatchKey(task.name, self._trainer.schema.digest, _POLICY)
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
        if trained is None or trained.user_accuracy_after is None:
            return None
        after = PatchState(trained.tensors, before.batches_done + steps)
        return Alone(trained.user_accuracy_after, PatchRecord(own, key.run, key.round, before, after))

    def _before(self, own: PatchKey, key: JobKey) -> PatchState:
        """Return the state to train a round from."""
        known = self._unsaved
        if known is not None and known.run == key.run and known.round < key.round:
            return known.after
        self.flush()  # a repeated round, or another run: the store knows the states before
        return self._opened().load(own, key.run, key.round, same_run=True)

    def _opened(self) -> PatchStore:
        if self._store is None:
            self._store = PatchStore(self._directory)
        return self._store

    def _note(self, why: str) -> None:
        log.warning("learning alone: not measured: %s", why)
