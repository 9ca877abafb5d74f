"""Leaves out readings that stand several times in a device's files: a copy of a file, logs that overlap.

Else windows over both copies could be for training and for testing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

if TYPE_CHECKING:
    from fedpatch.shared.tasks.examples import Examples

_LEAST_ALIKE = 5
_LEAST_DIFFERENT = 3  # in a row; fewer readings are alike by chance
_MOST_PLACES = 1000  # of the beginning of a file; where there are more, the sensor repeats itself
_LEAST_IN_A_ROW = 8  # in one file, of which nobody knows whether it was joined


def counted_once(found: Examples, *, for_prediction: bool = False) -> Examples:
    """Leave out what stands there twice: whole files that are copies, and readings with the same time and values.

    A log that was rotated may repeat its last readings in the next file, and in one file the time runs back where logs that
    overlap were joined. Equal readings at one time of the same run are readings of their own: the clock is coarse.

    Without times, readings in a row tell: those at the end of a file that begin another one, a file that is part of another
    one, and a row of readings that a joined file has twice. A sensor whose readings come again at other places too repeats
    itself: all of them count.

    Args:
        found: Readings, each an example of its own.
        for_prediction: Whether each reading needs an answer: then only times and whole files tell that it is repeated.
    """
    if len(found.sources) > 1:
        found = _without_copied_files(found)
    if found.times is None:
        return found if for_prediction else _without_overlaps(found)
    group = np.zeros(len(found), np.int32) if found.group is None else found.group
    rank = np.argsort(_original_first(found.sources))
    run = _runs_of_time(found.times, rank[found.source], group)
    in_time = run[np.lexsort((run, found.times, group))]
    if np.count_nonzero(np.diff(in_time)) == run.max(initial=0):
        return found  # each run ends before the next one begins
    known = _numbered([found.times, found.x, found.y, group])
    earliest = np.full(len(found), len(found))
    np.minimum.at(earliest, known, run)
    return _without(found, run > earliest[known])


def _without(found: Examples, repeated: NDArray[np.bool_]) -> Examples:
    if not repeated.any():
        return found
    note = f"readings that stand several times in {found.where}: {int(repeated.sum())}, counted once"
    return replace(found.take(~repeated), notes=(*found.notes, note))


def _numbered(columns: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
    """Return a number for each reading; equal ones have the same number."""
    parts = [np.ascontiguousarray(one).view(np.uint8).reshape(len(one), -1) for one in columns]
    rows = np.concatenate(parts, axis=1)
    _, numbers = np.unique(rows.view(np.dtype((np.void, rows.shape[1]))).ravel(), return_inverse=True)
    return numbers.ravel()


def _without_overlaps(found: Examples) -> Examples:
    """Leave out readings that overlap in the rows of their files, since nobody knows their times."""
    if not len(found):
        return found
    columns = [found.x, found.y, *(() if found.group is None else (found.group,))]
    numbers = _numbered(columns)
    files = [np.flatnonzero(found.source == file) for file in range(len(found.sources))]
    repeated = np.zeros(len(found), bool)
    for mine in files:
        left = mine
        while rows := list(_joined(numbers[left])):  # a row may come a third time in what is left
            for begin, count in rows:
                repeated[left[begin : begin + count]] = True
            left = left[~repeated[left]]
    for mine, count in _begun_elsewhere(numbers, files):
        repeated[mine[:count]] = True
    return _without(found, repeated)


def _begun_elsewhere(
    numbers: NDArray[np.int64], files: Sequence[NDArray[np.int64]]
) -> Iterator[tuple[NDArray[np.int64], int]]:
    """Yield each file that begins with the end of another one, or is a part of it, and how many readings that are."""
    beginnings = {tuple(numbers[one[:_LEAST_DIFFERENT]].tolist()) for one in files if len(one) >= _LEAST_DIFFERENT}
    firsts = np.array(sorted({one[0] for one in beginnings}), np.int64)
    places: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for file, theirs in enumerate(files):
        for at in np.flatnonzero(np.isin(numbers[theirs], firsts)).tolist():
            key = tuple(numbers[theirs[at : at + _LEAST_DIFFERENT]].tolist())
            if key in beginnings:
                places.setdefault(key, []).append((file, at))
    for file, mine in enumerate(files):
        known = places.get(tuple(numbers[mine[:_LEAST_DIFFERENT]].tolist()), [])
        elsewhere = [(other, at) for other, at in known if other != file]
        if not 0 < len(elsewhere) <= _MOST_PLACES:
            continue
        # At many places some readings more are alike by chance: each of them halves the number of places at least.
        least = _LEAST_DIFFERENT + 2 * (len(elsewhere).bit_length() - 1)
        counts = (_count_alike(numbers, mine, files[other][at:], least) for other, at in elsewhere)
        if count := max(counts):
            yield mine, count


def _count_alike(numbers: NDArray[np.int64], mine: NDArray[np.int64], theirs: NDArray[np.int64], least: int) -> int:
    """Return how many readings are the same up to the end of one of both; 0 for fewer than `least`, or if others differ."""
    count = min(len(mine), len(theirs))
    if count < least or numbers[mine[count - 1]] != numbers[theirs[count - 1]]:
        return 0
    begin = numbers[mine[:count]]
    return count if np.array_equal(begin, numbers[theirs[:count]]) and _is_a_row(begin) else 0


def _joined(numbers: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield first reading and length of each row of readings that comes twice in one file, the second time.

    The first time ends where the second one begins, or the second one ends the file. There is no such row in a file whose
    readings come again at more other places than in such rows: its sensor repeats itself, as one with few values does.
    """
    if len(numbers) < 2 * _LEAST_IN_A_ROW:
        return
    distance = _distances(numbers)
    bounds = np.flatnonzero(np.diff(distance, prepend=0, append=0))
    rows, others = [], np.count_nonzero(distance)
    for begin, after in pairwise(bounds.tolist()):
        back, count = int(distance[begin]), after - begin + _LEAST_IN_A_ROW - 1
        if back and (back <= count < 2 * back or (count < back and begin + count == len(numbers))):
            rows.append((begin, min(count, back)))  # what follows the second time may be alike by chance
            others -= after - begin
    if sum(count for _, count in rows) < others:
        return
    if rows and sum(rows[-1]) == len(numbers):
        # The last row may have come several times, and its beginning from further back than its end.
        known = np.flatnonzero(distance[: rows[-1][0]] == 0)
        begin = max(int(known[-1]) + 1 if len(known) else 0, *(sum(row) for row in rows[-2:-1]), 0)
        rows[-1] = begin, len(numbers) - begin
    yield from rows


def _distances(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each run of _LEAST_IN_A_ROW readings how far back an equal one begins; 0 for none.

    Runs of a sensor that rests are alike by chance. They count only between others, at the distance of these.
    """
    runs, length = numbers, 1
    while length < _LEAST_IN_A_ROW:  # a sort of integers is faster than one of rows
        _, runs = np.unique(runs[:-length] * (runs.max() + 1) + runs[length:], return_inverse=True)
        length *= 2
    order = np.argsort(runs, kind="stable")
    again = runs[order[1:]] == runs[order[:-1]]
    distance = np.zeros(len(runs), np.int64)
    if not again.any():
        return distance
    distance[order[1:][again]] = np.diff(order)[again]
    values = np.sort(sliding_window_view(numbers, _LEAST_IN_A_ROW), axis=1)
    rests = np.count_nonzero(np.diff(values), axis=1) < _LEAST_DIFFERENT - 1
    distance[rests] = 0
    places = np.arange(len(runs))
    before = np.maximum.accumulate(np.where(rests, 0, places))
    after = np.minimum.accumulate(np.where(rests, len(runs) - 1, places)[::-1])[::-1]
    for other in (before, after):
        back = np.minimum(distance[other], places)
        fits = rests & (distance == 0) & (runs == runs[places - back])
        distance[fits] = back[fits]
    return distance


def _is_a_row(numbers: NDArray[np.int64]) -> bool:
    """Return whether enough of these readings differ: those of a sensor that rests are readings of their own."""
    return len(np.unique(numbers)) >= _LEAST_DIFFERENT


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
