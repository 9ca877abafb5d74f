"""The choice between two personal models on the device's validation data: the federated one, or the one trained alone.

The candidate is the federated model (the global model of the round with the device's patch, after training), or the model
that the device trained alone, if that is better on the device's validation data. No margin favours either, so no device is
worse off than alone on these data.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from fedpatch.device_agent.training.local_trainer import LocalTrainer
from fedpatch.shared.errors import FedpatchError
from fedpatch.shared.tasks.model_metadata import ALONE, FEDERATED

if TYPE_CHECKING:
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
    if (
        trainer.task.class_names
        and _has_one_class(trainer.validation_data[1])
        and not _has_one_class(trainer.test_data[1])
    ):
        return Choice(FEDERATED, "validation data have one class, the test data several: nothing is chosen by them")
    try:
        own = alone()
    except FedpatchError as error:  # the federated model can still be used
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


def _has_one_class(targets: torch.Tensor) -> bool:
    return targets.ndim == 1 and not targets.is_floating_point() and bool((targets == targets[:1]).all())


def _shown(measured: float | None) -> str:
    return "no number" if measured is None else f"{measured:.4g}"
