"""The choice of a device's personal model: the federated one, or the one that it trained alone.

On the device's validation data, the better of the two is the candidate of a round; of equal ones it is the federated one. No
margin favours either, so no device is worse off than alone there. The candidate then replaces the present model, unless that
is better by more than the owner's margin (device_agent.training.model_export).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from fedpatch.device_agent.training.local_trainer import LocalTrainer
from fedpatch.shared.errors import FedpatchError
from fedpatch.shared.tasks.model_metadata import ALONE, FEDERATED
from fedpatch.shared.tensors.arrays import Tensors

log = logging.getLogger("fedpatch.models")


@dataclass(frozen=True)
class Choice:
    """The candidate of a round, in the trainer, and the reason in words.

    `alone` is the validation accuracy of the model trained alone, `federated` that of the other one; None where it was not
    measured, or is not a finite number.
    """

    source: str
    reason: str
    federated: float | None = None
    alone: float | None = None


def choose(trainer: LocalTrainer, federated: Tensors, alone: Callable[[], Tensors]) -> Choice:
    """Choose on validation data, and load the chosen model into the trainer.

    Args:
        trainer: The trainer, which holds the federated model.
        federated: The federated model by name: merged with the patch, or the personal copy, after training.
        alone: Returns the model trained alone; empty for none.
    """
    if trainer.validation_data is None:
        return Choice(FEDERATED, "no validation data to choose on")
    try:
        own = alone()
    except FedpatchError as error:  # the federated model is no worse for it
        log.warning("personal model: the model trained alone cannot be read: %s", error)
        own = {}
    if not own:
        return Choice(FEDERATED, "no model trained alone yet")
    theirs = trainer.on_validation()
    trainer.load(own)
    ours = trainer.on_validation()
    goal = trainer.task.metric_goal
    better = ours is not None and (theirs is None or (ours > theirs if goal == "max" else ours < theirs))
    if not better:
        trainer.load(federated)
    where = f"on {len(trainer.validation_data[0])} validation examples"
    words = f"{trainer.task.metric_name} {_shown(ours)} alone, {_shown(theirs)} federated, {where}"
    return Choice(ALONE if better else FEDERATED, words, theirs, ours)


def _shown(measured: float | None) -> str:
    return "no number" if measured is None else f"{measured:.4g}"
