"""Windows of readings: they know their times and their readings, and cross neither a gap nor the end of a file."""

from __future__ import annotations

import logging
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from fedpatch.shared.errors import DataError, UsageError
from fedpatch.shared.tasks.reading.readings_format import Mixed, require_window

if TYPE_CHECKING:
    from fedpatch.shared.tasks.examples import Examples

log = logging.getLogger("fedpatch.data")

_LONGEST_STEP = 1.5  # times the usual step
_LIKE_A_CLOCK, _LEAST_STEPS = 0.9, 8
_MOSTLY = 0.5


def windows(series: Examples, length: int, stride: int = 1, *, max_gap: float = 0.0, mixed: Mixed = "last") -> Examples:
    """Cut readings in order of time into windows.

    No window crosses the end of a file, another group, or a gap: two readings whose times differ by more than `max_gap`, or
    run backwards. Without times, a line that was left out is a gap, and so is a jump of an input that counts like a clock.

    Args:
        series: Readings with x of shape (n, channels); those of several groups may alternate.
        length: Readings in a window.
        stride: Readings between the beginnings of two windows; below `length`, windows overlap.
        max_gap: Longest time between two readings, in the unit of the times; 0: one and a half times the usual one of the
            file.
        mixed: Windows in which the class changes have the class of their "last" reading, or are left out ("drop").

    Returns:
        Examples with x of shape (k, channels, length). Target, place and time of a window are those of its last reading.

    Raises:
        UsageError: `length`, `stride` or `max_gap` is out of its range, or the examples are no single readings.
        DataError: No file has `length` readings without a gap.

    Example:
        >>> import numpy as np
        >>> from fedpatch import examples
        >>> series = examples.from_arrays(np.zeros((6, 3)), np.zeros(6, int), times=[0, 1, 2, 3, 9, 10])
        >>> examples.windows(series, length=4, stride=2).times.tolist()
        [3.0]
    """
    require_window(length, stride, max_gap, mixed)
    if series.x.ndim != 2:
        raise UsageError(
            f"windows are cut from readings of shape (n, inputs), and these examples have shape {series.x.shape}"
        )
    if series.group is not None:  # lines of several persons may alternate
        series = series.take(np.lexsort((series.first, series.group, series.source)))
    bounds = _runs(series, max_gap)
    spans = [(begin, after) for begin, after in pairwise(bounds) if after - begin >= length]
    if not spans:
        longest = max(np.diff(bounds), default=0)
        raise DataError(
            f"{series.where}: at most {longest} readings in a row without a gap; a window needs {length}"
            f"{_remedy(series)}{series.left_out}"
        )
    cut = np.concatenate(
        [sliding_window_view(series.x[begin:after], length, axis=0)[::stride] for begin, after in spans]
    )
    ends = np.concatenate([np.arange(begin + length - 1, after, stride) for begin, after in spans])
    changing, notes = _changing(series.y, ends, length, mixed), list(series.notes)
    if changing.any():
        done = "left out" if mixed == "drop" else "with the class of their last reading"
        notes.append(f"windows in which the class changes: {int(changing.sum())} of {len(ends)}, {done}")
    kept = ~changing if mixed == "drop" else np.ones(len(ends), bool)
    if not kept.any():
        raise DataError(f"{series.where}: the class changes in each window; take a shorter one, or mixed='last'")
    last, begins = series.take(ends[kept]), ends[kept] - length + 1
    times = None if series.times is None else series.times[begins]
    return replace(last, x=cut[kept], first=series.first[begins], begins=times, notes=tuple(notes))


def _remedy(series: Examples) -> str:
    if series.times is None:
        return ""
    if len(series) > 1 and (np.diff(series.times) < 0).mean() > _MOSTLY:
        return "; their times run backwards: sort them by time"
    return "; max_gap sets the longest step"


def _runs(series: Examples, max_gap: float) -> list[int]:
    """Return the positions at which a run of readings begins, and the number of readings."""
    if not len(series):
        return [0]
    follows = (np.diff(series.source) == 0) & (np.diff(series.first) > 0)
    if series.group is not None:
        follows &= np.diff(series.group) == 0
    times = series.times if series.times is not None else _clock(series)
    if times is None:
        if series.group is None:
            follows &= series.first[1:] == series.last[:-1] + 1
        else:  # lines of several persons may alternate
            follows &= _near(series.first.astype(np.float64), series.source, follows, 0.0)
        log.log(
            logging.WARNING if series.row_word == "line" else logging.DEBUG,
            "%s: readings have no time, so that only a line that was left out is a gap; name the column with time=...",
            series.where,
        )
    else:
        follows &= _near(times, series.source, follows, max_gap)
    return [0, *(np.flatnonzero(~follows) + 1).tolist(), len(series)]


def _near(
    times: NDArray[np.float64], source: NDArray[np.int32], follows: NDArray[np.bool_], max_gap: float
) -> NDArray[np.bool_]:
    """Return whether the step to the next reading is none backwards, and not too long."""
    steps = np.diff(times)
    limits = np.full(len(steps), max_gap)
    if not max_gap:
        for file in np.unique(source):
            mine = follows & (source[1:] == file) & (steps > 0)
            limits[source[1:] == file] = _LONGEST_STEP * np.median(steps[mine]) if mine.any() else 0.0
    near: NDArray[np.bool_] = (steps >= 0) & (steps <= limits)
    return near


def _clock(series: Examples) -> NDArray[np.float64] | None:
    """Return the first input that grows by the same step from reading to reading, such as a column of seconds."""
    inner = np.diff(series.source) == 0
    if inner.sum() < _LEAST_STEPS:
        return None
    column: NDArray[np.float64]
    for column in series.x.T.astype(np.float64):
        steps = np.diff(column)[inner]
        if (steps > 0).all():
            usual = np.median(steps)
            if (np.abs(steps - usual) <= 0.01 * usual).mean() >= _LIKE_A_CLOCK:
                return column
    return None


def _changing(y: NDArray[np.generic], ends: NDArray[np.int64], length: int, mixed: Mixed) -> NDArray[np.bool_]:
    """Return a mask of windows in which the class changes; targets that are numbers always may."""
    if y.dtype.kind not in "iu":
        return np.zeros(len(ends), bool)
    changes = np.concatenate([[0], np.cumsum(y[1:] != y[:-1])])
    changing: NDArray[np.bool_] = changes[ends] != changes[ends - length + 1]
    return changing
