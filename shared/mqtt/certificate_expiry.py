"""The time before the end of a certificate from which on it is to be renewed."""

from __future__ import annotations

WARN_DAYS = 21

_DAY_S = 86_400


def left_days(not_after: float, now: float) -> int:
    """Return the whole days until the end of a certificate, both times in unix seconds; below 0 after it."""
    return int((not_after - now) // _DAY_S)


def ends_soon(not_after: float, now: float) -> bool:
    """Return whether a certificate is to be renewed, both times in unix seconds."""
    return left_days(not_after, now) < WARN_DAYS
