"""Validation data of a device: examples for choosing a model, so that test data are only for reporting.

A model that was chosen on test data looks better on them than it is. So the agent compares personal models on validation
data, which no training uses, and reports the chosen model's accuracy on test data.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np

from fedpatch.shared.tasks.separation import copies, overlapping, sharing
from fedpatch.shared.tasks.task import DeviceData, Task

MIN_VALIDATION_EXAMPLES = 5
"""Least examples of a validation part: fewer would measure a model badly. They are not used for training
either, because they join a validation part when data grow."""

_SEED = b"fedpatch-val"
_HASH_BYTES = 8
_RUN = 2  # times the windows that share readings with one


def validation_mask(inputs: np.ndarray, share: float, *, ordered: bool = False) -> np.ndarray:
    """Choose the examples that are held out of `inputs` for validation.

    Args:
        inputs: Training inputs, examples along the first axis; in order of time where `ordered`.
        share: Share of the examples to hold out, from 0 to 0.5.
        ordered: Hold the last examples out. Otherwise a hash of an example's own bytes decides, so that it keeps its side
            when the program restarts, when data grow, and in any order of reading; equal inputs share a side.

    Returns:
        Booleans of shape (n,), True for held-out examples. When examples are added (at the end if `ordered`), no False becomes
        True. One exception: all are False if the hash would hold every example out, because training needs data.
    """
    count = len(inputs)
    if ordered:
        return np.arange(count) >= count - int(count * share)
    limit = int(share * 2 ** (8 * _HASH_BYTES))
    mask = np.fromiter((_hash(example) < limit for example in inputs), bool, count)
    return np.zeros(count, bool) if mask.all() else mask


def with_validation(data: DeviceData, share: float, *, ordered: bool = False) -> DeviceData:
    """Return `data` with a validation part, which may be empty.

    If the data know the readings of their examples (`DeviceData.readings`), each file is split by itself, and a training
    example that shares a reading with a validation example is in no part. Windows that overlap are held out in whole runs.

    Args:
        data: Data of one device. Where they have a validation part, they are returned as they are.
        share: As for `validation_mask`; held-out examples are no longer training data.
        ordered: As for `validation_mask`.

    Returns:
        The same test data; training and validation data in the order of the training data before. If fewer than
        MIN_VALIDATION_EXAMPLES are held out, the validation part is empty, and the held-out examples are in no part. So is an
        example that would be a copy of a training example.
    """
    if data.val_x is not None:
        return data
    x, y = np.asarray(data.train_x), np.asarray(data.train_y)
    if data.readings is None:
        held_out = validation_mask(x, share, ordered=ordered)
        trained = ~held_out
    else:
        held_out, before = _of_readings(x, np.asarray(data.readings), share, ordered=ordered)
        trained = ~(held_out | before)
        if held_out.any():
            trained &= ~sharing(np.asarray(data.readings), np.asarray(data.readings)[held_out])
    if not trained.any():
        held_out, trained = np.zeros(len(x), bool), np.ones(len(x), bool)  # training needs data
    enough = held_out.sum() >= MIN_VALIDATION_EXAMPLES
    if held_out.any() and not data.keep_copies:
        held_out[held_out] = ~copies(x[held_out], x[trained])
    train, validation = (_first_and_last if ordered and data.readings is None else _chosen)(held_out, trained)
    if not enough or held_out.sum() < MIN_VALIDATION_EXAMPLES:
        validation = slice(0)
    readings = None if data.readings is None else data.readings[train]
    return replace(
        data, train_x=x[train], train_y=y[train], val_x=x[validation], val_y=y[validation], readings=readings
    )


def _of_readings(
    inputs: np.ndarray, readings: np.ndarray, share: float, *, ordered: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Choose the held-out examples of each file: the last ones, those of the hash, or whole runs of windows that overlap.

    Copies of an example, which balance classes, count once and stay on its side.

    Returns:
        The held-out examples, and the windows that share readings with held-out ones that are there or will come.
    """
    distinct, copy_of = np.unique(readings, axis=0, return_inverse=True)  # in order of file and first reading
    copy_of = copy_of.ravel()
    if not ordered and not overlapping(readings):
        return validation_mask(inputs, share), np.zeros(len(inputs), bool)
    held_out, before = np.zeros(len(distinct), bool), np.zeros(len(distinct), bool)
    for file in np.unique(distinct[:, 0]):
        mine = np.flatnonzero(distinct[:, 0] == file)
        if ordered:
            held_out[mine] = _last(len(mine), share)
        else:
            held_out[mine], before[mine] = _in_runs(distinct[mine], share)
    return held_out[copy_of], before[copy_of]


def _last(count: int, share: float) -> np.ndarray:
    return np.arange(count) >= count - int(count * share)


def _in_runs(readings: np.ndarray, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Choose one of so many runs of windows as `share` says: long ones, since the windows at both ends belong to no part.

    Returns:
        The windows of these runs, and the windows before them that share readings with them, also where the run has not begun.
    """
    count = len(readings)
    if not share:
        return np.zeros(count, bool), np.zeros(count, bool)
    overlap = int(np.searchsorted(readings[:, 1], readings[0, 2], side="right"))  # windows that share readings with one
    run, every = max(MIN_VALIDATION_EXAMPLES, _RUN * overlap), max(2, round(1 / share))
    chosen = (np.arange(count + overlap) // run) % every == every // 2
    before = np.zeros(count, bool)
    for distance in range(1, overlap):
        before |= chosen[distance : count + distance]
    return chosen[:count], before & ~chosen[:count]


def _first_and_last(held_out: np.ndarray, trained: np.ndarray) -> tuple[np.ndarray | slice, np.ndarray | slice]:
    """Slices where possible, so that nothing is copied."""
    cut = int(trained.sum())
    if trained[:cut].all() and held_out[cut:].all():
        return slice(cut), slice(cut, None)
    return trained, held_out


def _chosen(held_out: np.ndarray, trained: np.ndarray) -> tuple[np.ndarray | slice, np.ndarray | slice]:
    return (trained, held_out) if not trained.all() else (slice(len(trained)), slice(0))


def split_for(task: Task, data: DeviceData) -> DeviceData:
    """Return the result of `task.load_data` with a validation part: the task's own, or else a split one."""
    return with_validation(data, task.validation_share, ordered=task.ordered)


def _hash(example: np.ndarray) -> int:
    content = np.asarray(example).tobytes()
    return int.from_bytes(hashlib.blake2b(content, digest_size=_HASH_BYTES, person=_SEED).digest(), "big")
