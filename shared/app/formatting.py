"""Short text forms of numbers for people: sizes, durations, ages, times, accuracies, counts; and printable text."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

_SIZES = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
_AGES = (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0))


def size(count: float) -> str:
    """Format a number of bytes with a decimal prefix: `54 kB`, `1.2 MB`."""
    for unit, factor in _SIZES:
        if count >= factor * 0.9995:
            value = count / factor
            return f"{value:.1f} {unit}" if value < 9.95 else f"{value:.0f} {unit}"
    return f"{count:.0f} B"


def duration(seconds: float) -> str:
    """Format a duration: `1.9 s`, `42 s`, `3 min 5 s`, `2 h 10 min`."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3_600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3_600} h {whole % 3_600 // 60} min"


def age(seconds: float) -> str:
    """Format an age roughly: `now`, `12 s ago`, `5 min ago`, `3 d ago`."""
    for unit, factor in _AGES:
        if seconds >= factor:
            return f"{seconds // factor:.0f} {unit} ago"
    return "now" if seconds < 1 else f"{seconds:.0f} s ago"


def minute(unix_s: float) -> str:
    """Format a unix time to the minute: `2026-02-03 04:05 UTC`."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M UTC")


def accuracy(fraction: float | None) -> str:
    """Format a user accuracy: `0.912`, or `-` if none was measured."""
    return "-" if fraction is None else f"{fraction:.3f}"


def counted(reasons: Mapping[str, int]) -> str:
    """Format the count of each reason, the most frequent first: `unwilling 2, unknown_task 1`."""
    ranked = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{reason or 'no reason'} {count}" for reason, count in ranked)


def printable(text: str, instead: str = "?") -> str:
    r"""Return `text` with `instead` for each character that could control a terminal: texts of devices are not trusted.

    Example:
        >>> printable("\x1b[31mred\n")
        '?[31mred?'
    """
    return "".join(char if char.isprintable() else instead for char in text)
