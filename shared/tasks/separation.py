"""The law of each split: no test or validation example shares a reading with a training example, or is a copy of one.

Windows that overlap share readings. So a split of windows is a split of readings: a window that lies partly in another part
is in no part. A training example gives way where it shares a reading; a test or validation example gives way where it is a
copy, so that nothing becomes test data that was trained on before the data grew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpatch.shared.tasks.part_masks import Mask

_WINDOWS_AT_ONCE = _EXAMPLES_AT_ONCE = 1024
_SHORTEST_RUN, _LONGEST_RUN = 3, 8  # readings that two windows hardly have in common by chance

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
    known = {*_keys(others)}
    return np.fromiter((key in known for key in _keys(some)), bool, len(some))


def sharing_runs(some: NDArray[Any], others: NDArray[Any]) -> Mask:
    """Return a mask of `some`: True for a window that has some readings in a row which one of `others` has too.

    It finds windows that overlap where nobody knows their readings. Readings in a row must all differ: those of a sensor that
    rests say nothing.

    Args:
        some: Windows of shape (n, inputs, readings) or (n, readings, inputs).
        others: Windows of the same shape.
    """
    found = np.zeros(len(some), bool)
    if some.ndim != 3 or others.ndim != 3 or some.shape[1:] != others.shape[1:]:
        return found
    for axis in (1, 2):
        mine = _runs(np.moveaxis(some, axis, 1))
        known = np.unique(mine[mine != 0])
        if not len(known):
            continue
        shared = np.zeros(len(known), bool)
        for begin in range(0, len(others), _WINDOWS_AT_ONCE):
            theirs = _runs(np.moveaxis(others[begin : begin + _WINDOWS_AT_ONCE], axis, 1)).ravel()
            places = np.searchsorted(known, theirs).clip(max=len(known) - 1)
            shared[places[known[places] == theirs]] = True
        found |= np.isin(mine, known[shared]).any(axis=1)
    return found


def _runs(windows: NDArray[Any]) -> NDArray[np.uint64]:
    """Return a hash of each run of readings, shape (n, runs); 0 for a run in which two readings are alike."""
    count, length, inputs = windows.shape
    run = min(max(_SHORTEST_RUN, length // 8), _LONGEST_RUN)
    if length < run:
        return np.zeros((count, 0), np.uint64)
    rng = np.random.default_rng(0)
    weights = rng.integers(1, 2**63, inputs + run, np.uint64) | np.uint64(1)
    reading = np.zeros((count, length), np.uint64)
    for number in range(inputs):
        values = np.ascontiguousarray(windows[:, :, number], np.float32).view(np.uint32)
        reading += values.astype(np.uint64) * weights[number]
    reading ^= reading >> np.uint64(29)
    parts = [reading[:, begin : length - run + 1 + begin] for begin in range(run)]
    hashes = np.zeros(parts[0].shape, np.uint64)
    for part, weight in zip(parts, weights[inputs:], strict=True):
        hashes += part * weight
    hashes |= np.uint64(1)
    for one, other in combinations(parts, 2):
        hashes[one == other] = 0
    return hashes


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


def _keys(examples: NDArray[Any]) -> Iterator[int]:
    """Yield a hash of each example. Zeros of both signs are equal, and so are all NaNs."""
    for begin in range(0, len(examples), _EXAMPLES_AT_ONCE):
        part = np.ascontiguousarray(examples[begin : begin + _EXAMPLES_AT_ONCE])
        if part.dtype.kind == "f":
            part = np.where(np.isnan(part), np.nan, part) + 0.0
        yield from (hash(one.tobytes()) for one in part)
