"""Leaves out readings that stand several times in a device's files: a copy of a file, logs that overlap.

Else windows over both copies could be for training and for testing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from fedpatch.shared.tasks.examples import Examples

_LEAST_ALIKE = 5


def counted_once(found: Examples) -> Examples:
    """Leave out what stands there twice: whole files that are copies, and readings with the same time and values.

    A log that was rotated may repeat its last readings in the next file, and in one file the time runs back where logs that
    overlap were joined. Equal readings at one time of the same run are readings of their own: the clock is coarse.
    """
    if len(found.sources) > 1:
        found = _without_copied_files(found)
    if found.times is None:
        return found
    group = np.zeros(len(found), np.int32) if found.group is None else found.group
    rank = np.argsort(_original_first(found.sources))
    run = _runs_of_time(found.times, rank[found.source], group)
    in_time = run[np.lexsort((run, found.times, group))]
    if np.count_nonzero(np.diff(in_time)) == run.max(initial=0):
        return found  # each run ends before the next one begins
    parts = [
        np.ascontiguousarray(one).view(np.uint8).reshape(len(found), -1)
        for one in (found.times, found.x, found.y, group)
    ]
    rows = np.concatenate(parts, axis=1)
    _, known = np.unique(rows.view(np.dtype((np.void, rows.shape[1]))).ravel(), return_inverse=True)
    earliest = np.full(len(found), len(found))
    np.minimum.at(earliest, known.ravel(), run)
    repeated = run > earliest[known.ravel()]
    if not repeated.any():
        return found
    note = f"readings that stand several times in {found.where}: {int(repeated.sum())}, counted once"
    return replace(found.take(~repeated), notes=(*found.notes, note))


def _runs_of_time(times: NDArray[np.float64], source: NDArray[Any], group: NDArray[Any]) -> NDArray[np.int64]:
    """Return the number of each reading's run: readings of one file and group between which the time never runs back."""
    order = np.lexsort((np.arange(len(times)), group, source))
    begins = (np.diff(times[order]) < 0) | (np.diff(source[order]) != 0) | (np.diff(group[order]) != 0)
    runs = np.zeros(len(times), np.int64)
    runs[order[1:]] = np.cumsum(begins)
    return runs


def _original_first(names: Sequence[str]) -> list[int]:
    """Return the files in the order in which they count as originals: "day.csv" before "day (1).csv".

    Blocks are drawn by the name of a file: so a copy that is put beside it moves no reading to another part.
    """
    return sorted(range(len(names)), key=lambda file: (len(names[file]), file))


def _without_copied_files(found: Examples) -> Examples:
    """Leave out each file with the content of another one, or with its beginning: "monday (1).csv", a link, a backup."""
    copied = np.zeros(len(found), bool)
    notes = list(found.notes)
    columns = [found.x, found.y, *(one for one in (found.times, found.group) if one is not None)]
    places = [np.flatnonzero(found.source == file) for file in range(len(found.sources))]
    known: dict[bytes, list[int]] = {}
    for file in sorted(_original_first(found.sources), key=lambda file: -len(places[file])):
        mine = places[file]
        if len(mine) < 2:
            continue
        # Fewer readings may begin another file by chance: they are a copy if they are all of it.
        begin = mine[:_LEAST_ALIKE]
        alike = known.setdefault(b"".join(one[begin].tobytes() for one in columns), [])
        for other in alike:
            theirs = places[other][: len(mine)]
            if all(np.array_equal(one[mine], one[theirs], equal_nan=True) for one in columns):
                copied[mine] = True
                notes.append(f"{found.sources[file]} has the readings of {found.sources[other]}: counted once")
                break
        else:
            alike.append(file)
    return replace(found.take(~copied), notes=tuple(notes)) if copied.any() else found
