"""Attacks by updates that pass every check: finite values of the right shapes, chosen to ruin the mean."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from tests.attacks.arena import HONEST, Arena
from tests.system.rogue import Update, Upload, Verdict

POISONER = "poisoner"
_EXAMPLES = 30 + len(HONEST)  # as many as the honest devices have

Change = Callable[[str, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Poison:
    """The values that replace a tensor, and the part of the update that the record then names."""

    name: str
    does: str
    part: str
    change: Change
    measured_as: str
    """The attack's name in benchmarks.training.norm_bounds, which measures the effect on user accuracy."""

    def upload(self, update: Update) -> Upload:
        """The received global model with changed values, and as many examples as an honest device has."""
        tensors = {name: self.change(name, array) for name, array in update.tensors.items()}
        report = replace(update.report, num_examples=_EXAMPLES)
        return replace(update, tensors=tensors, report=report).upload()


def _to(ending: str, value: float) -> Change:
    return lambda name, array: np.full_like(array, value) if name.endswith(ending) else array


def _noise(name: str, array: np.ndarray) -> np.ndarray:
    if ":" in name or name.startswith("bn"):
        return array
    return (array + 1e6 * np.random.default_rng(len(name)).standard_normal(array.shape)).astype(array.dtype)


POISONS = (
    Poison("weights of 3e38", "weights at the end of float32", "weights", _to(".weight", 3e38), "weights of 3e38"),
    Poison("noise", "normal noise times a million on all weights", "weights", _noise, "noise x 1e6"),
    Poison(
        "a variance of 1e30",
        "`running_var`, which every device takes over",
        "stats bn1.running_var",
        _to("bn1.running_var", 1e30),
        "running_var of 1e30",
    ),
    Poison(
        "second moments of 1e15",
        "`exp_avg_sq` that stops the learning of all devices",
        "exp_avg_sq",
        _to(":exp_avg_sq", 1e15),
        "exp_avg_sq of 1e15",
    ),
    Poison(
        "a counter of 1e12",
        "`num_batches_tracked` beyond all batches",
        "count bn1.num_batches_tracked",
        _to("bn1.num_batches_tracked", 10**12),
        "",
    ),
)


def poison(arena: Arena) -> list[Verdict]:
    """Send one of POISONS in each round."""
    with arena.rogue(POISONER) as (rogue, _):
        return rogue.play([one.upload for one in POISONS])
