"""Constant inputs: a column or channel with one value in all training examples is an error, unless the task allows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedpatch.shared.errors import DataError

if TYPE_CHECKING:
    from fedpatch.shared.tasks.examples import Examples


def require_change(training: Examples) -> None:
    """Raise DataError if a column or a channel, axis 1, has one value in all training examples. Images are not checked."""
    if len(training) < 2 or training.x.ndim not in (2, 3):
        return
    axes = tuple(axis for axis in range(training.x.ndim) if axis != 1)
    stuck = np.flatnonzero(training.x.max(axes) == training.x.min(axes))
    if stuck.size:
        number = int(stuck[0])
        name = training.inputs[number] if number < len(training.inputs) else f"input {number}"
        value = training.x[0, number].flat[0]
        raise DataError(
            f"{training.where}: {name} has the value {value:g} in all training examples; is its sensor connected? "
            "Leave the column out on all devices, or set allow_constant=True"
        )
