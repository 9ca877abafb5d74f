"""Validation data of a device: examples for choosing a model, so that test data are only for reporting.

A model that was chosen on test data looks better on them than it is. So the agent compares personal models on validation
data, which no training uses, and reports the chosen model's accuracy on test data.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace

import numpy as np

from fedpatch.shared.tasks.task import DeviceData, Task

MIN_VALIDATION_EXAMPLES = 5
"""Least examples of a validation part: fewer would measure a model badly. They are not used for training
either, because they join a validation part when data grow."""

_SEED = b"fedpatch-val"
_HASH_BYTES = 8


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

    Args:
        data: Data of one device. Where they have a validation part, they are returned as they are.
        share: As for `validation_mask`; held-out examples are no longer training data.
        ordered: As for `validation_mask`.

    Returns:
        The same test data; training and validation data in the order of the training data before. If fewer than
        MIN_VALIDATION_EXAMPLES are held out, the validation part is empty, and the held-out examples are in no part.
    """
    if data.val_x is not None:
        return data
    x, y = np.asarray(data.train_x), np.asarray(data.train_y)
    held_out = validation_mask(x, share, ordered=ordered)
    train, validation = (_first_and_last if ordered else _chosen)(held_out)
    if held_out.sum() < MIN_VALIDATION_EXAMPLES:
        validation = slice(0)
    return replace(data, train_x=x[train], train_y=y[train], val_x=x[validation], val_y=y[validation])


def _first_and_last(held_out: np.ndarray) -> tuple[slice, slice]:
    """Slices, so that nothing is copied."""
    cut = int((~held_out).sum())
    return slice(cut), slice(cut, None)


def _chosen(held_out: np.ndarray) -> tuple[np.ndarray | slice, np.ndarray | slice]:
    return (~held_out, held_out) if held_out.any() else _first_and_last(held_out)


def split_for(task: Task, data: DeviceData) -> DeviceData:
    """Return the result of `task.load_data` with a validation part: the task's own, or else a split one."""
    return with_validation(data, task.validation_share, ordered=task.ordered)


def _hash(example: np.ndarray) -> int:
    content = np.asarray(example).tobytes()
    return int.from_bytes(hashlib.blake2b(content, digest_size=_HASH_BYTES, person=_SEED).digest(), "big")
