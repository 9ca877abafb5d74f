"""`Task.prepare`: it turns raw inputs into the model's inputs, in training, measurement and prediction alike.

A model that is trained on prepared inputs gives wrong outputs, without an error, for raw ones. So the model's metadata record
that there was a `prepare`, with its outputs for fixed artificial inputs (`Preparation`). A program that uses the model checks
that the task's `prepare` still gives these outputs, and then applies it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from fedpatch.shared.errors import DataError, FedpatchError, UsageError
from fedpatch.shared.tasks.model_metadata import PROBE_VALUES, Preparation
from fedpatch.shared.tensors.arrays import Array

if TYPE_CHECKING:
    from fedpatch.shared.tasks.task import Task

_TOLERANCE = 1e-4  # other processors and other versions of NumPy round differently
_LARGEST = (1.0, 3.0, 255.0, 1000.0)


def prepared(task: Task, raw: Array, what: str) -> Array:
    """Apply the task's `prepare` to raw inputs; without one, return them as they are.

    Args:
        task: The task, whose `prepare` gets float32 and must give one row for each row.
        raw: Raw inputs, examples along the first axis.
        what: Names the inputs in errors, such as "train_x of device pi-7".

    Returns:
        Inputs as the model takes them, examples along the first axis, float32.

    Raises:
        DataError: `prepare` fails, or gives no numbers or another number of rows.
    """
    if task.prepare is None:
        return raw
    try:
        made = task.prepare(np.array(raw, np.float32))  # a copy: it may change its argument
        found = np.asarray(made)
    except FedpatchError:
        raise
    except Exception as error:  # the function is the user's
        raise DataError(
            f"prepare of task {task.name!r} failed with {what} of shape {raw.shape}: {type(error).__name__}: {error}"
        ) from error
    if np.ma.is_masked(made):
        raise DataError(f"prepare of task {task.name!r} left values of {what} masked; fill them: made.filled(0)")
    if found.dtype.kind not in "fiub" or found.shape[:1] != raw.shape[:1]:
        raise DataError(
            f"prepare of task {task.name!r} made {found.dtype} of shape {found.shape} of {what}, which has {len(raw)} rows; "
            "it must return an array of numbers with one row for each row"
        )
    return found.astype(np.float32, copy=False)


def preparation_of(task: Task, raw_shape: tuple[int, ...]) -> Preparation | None:
    """Describe the task's `prepare` for the metadata of a model; None where it has none."""
    if task.prepare is None:
        return None
    return Preparation(raw_shape=raw_shape, probe=_probe(task, raw_shape))


def require_same_prepare(task: Task, known: Preparation | None) -> None:
    """Raise UsageError where the task's `prepare` is not the one that a model was trained with; `known` is None for none."""
    if known is None:
        if task.prepare is not None:
            raise UsageError(
                f"the model was trained without a `prepare`, and task {task.name!r} has one now; install the version of the "
                "task that the model was trained with, or wait for the model of the next round"
            )
        return
    if task.prepare is None:
        raise UsageError(
            f"the model was trained on inputs that `prepare` of task {task.name!r} made, and the task has no prepare now; "
            "install the version of the task that the model was trained with"
        )
    if known.probe and not _same(_probe(task, known.raw_shape), known.probe):
        raise UsageError(
            f"`prepare` of task {task.name!r} is not the one that the model was trained with; install that version of the "
            "task, or wait for the model of the next round"
        )


def probe_inputs(shape: tuple[int, ...]) -> Array:
    """Made-up raw inputs, the same everywhere: zeros, ramps of several sizes in both directions, and one random row."""
    size = math.prod(shape)
    ramps = [np.linspace(-most / 3, most, size) for most in _LARGEST]
    rows = [np.zeros(size), *ramps, *(ramp[::-1] for ramp in ramps), np.random.default_rng(7).normal(size=size)]
    return np.stack(rows).astype(np.float32).reshape(len(rows), *shape)


def _probe(task: Task, raw_shape: tuple[int, ...]) -> tuple[float | None, ...]:
    try:
        with np.errstate(all="ignore"):
            found = prepared(task, probe_inputs(raw_shape), "made-up inputs").ravel()
    except FedpatchError:
        return ()
    chosen = found[np.linspace(0, len(found) - 1, min(PROBE_VALUES, len(found))).astype(int)] if len(found) else found
    return tuple(float(value) if math.isfinite(value) else None for value in chosen)


def _same(found: tuple[float | None, ...], known: tuple[float | None, ...]) -> bool:
    if len(found) != len(known):
        return False
    return all(
        one is other
        or (one is not None and other is not None and math.isclose(one, other, rel_tol=_TOLERANCE, abs_tol=1e-5))
        for one, other in zip(found, known, strict=True)
    )
