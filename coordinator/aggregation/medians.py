"""Lower medians: fewer than half of the values cannot move one beyond the other values."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate


def weighted_lower_median(ordered: Sequence[tuple[float, int]]) -> float:
    """Return the lower median of sorted values, each with its number of occurrences."""
    seen = list(accumulate(times for _, times in ordered))
    return ordered[bisect_right(seen, (seen[-1] - 1) // 2)][0]


def lower_median(values: Iterable[float]) -> float:
    """Return the median of the values, the lower of two in the middle.

    Raises:
        ValueError: There is no value.

    Example:
        >>> lower_median([4.0, 1.0, 3.0, 2.0])
        2.0
    """
    ordered = sorted(values)
    if not ordered:
        raise ValueError("the median of no values is undefined")
    return ordered[(len(ordered) - 1) // 2]
