"""The law of each split: no test or validation example shares a reading with a training example, or is a copy of one.

Windows that overlap share readings. So a split of windows is a split of readings: a window that lies partly in another part
is in no part. A training example gives way where it shares a reading; a test or validation example gives way where it is a
copy, so that nothing becomes test data that was trained on before the data grew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpatch.shared.tasks.part_masks import Mask

Readings = NDArray[np.int64]
"""File, first and last reading of each example, shape (n, 3)."""


def sharing(some: Readings, others: Readings) -> Mask:
    """Return a mask of `some`: True for an example that shares a reading with one of `others`."""
    found = np.zeros(len(some), bool)
    for file in np.unique(others[:, 0]):
        mine, theirs = np.flatnonzero(some[:, 0] == file), others[others[:, 0] == file]
        theirs = theirs[np.argsort(theirs[:, 1], kind="stable")]
        farthest = np.maximum.accumulate(theirs[:, 2])
        before = np.searchsorted(theirs[:, 1], some[mine, 2], side="right")  # these begin before my end
        found[mine] = (before > 0) & (farthest[np.maximum(before, 1) - 1] >= some[mine, 1])
    return found


def overlapping(readings: Readings) -> bool:
    """Return whether two different examples share a reading. Copies of one example do not count."""
    distinct = np.unique(readings, axis=0)
    same_file = distinct[1:, 0] == distinct[:-1, 0]
    return bool((same_file & (distinct[1:, 1] <= distinct[:-1, 2])).any())


def copies(some: NDArray[Any], others: NDArray[Any]) -> Mask:
    """Return a mask of `some`: True for an example with the same values as one of `others`."""
    known = {_key(one) for one in others}
    return np.fromiter((_key(one) in known for one in some), bool, len(some))


def in_every_reading(readings: Readings, belongs: Callable[[int, Readings], Mask]) -> Mask:
    """Return a mask of examples: True where each reading belongs to a part.

    Args:
        readings: File, first and last reading of each example.
        belongs: Function of a file and of indices of readings in it that returns their mask.
    """
    found = np.zeros(len(readings), bool)
    for file in np.unique(readings[:, 0]):
        mine = np.flatnonzero(readings[:, 0] == file)
        first, last = readings[mine, 1], readings[mine, 2]
        inside = belongs(int(file), np.arange(last.max() + 1))
        before = np.concatenate([[0], np.cumsum(inside)])
        found[mine] = before[last + 1] - before[first] == last + 1 - first
    return found


def _key(example: NDArray[Any]) -> int:
    return hash(np.ascontiguousarray(example).tobytes())
