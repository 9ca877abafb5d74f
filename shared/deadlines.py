"""The next deadline of several."""

from __future__ import annotations


def earliest(*deadlines: float | None) -> float | None:
    """Return the earliest of some deadlines, in seconds of one clock; None if there is none.

    Example:
        >>> earliest(None, 7.0, 3.0), earliest(None)
        (3.0, None)
    """
    first: float | None = None
    for deadline in deadlines:
        if deadline is not None and (first is None or deadline < first):
            first = deadline
    return first
