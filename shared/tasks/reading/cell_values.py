"""The value in a cell of text: a number, a time, or a missing value. Everything else is refused with its reason.

`float` also takes texts that nobody writes into a file of readings: "1_000", digits of other scripts, "infinity", blanks of
Unicode. Such a text is a damaged cell or belongs to another format, so that it is refused here.

    text                                            value
    12, -0.5, +3, .5, 5., 1e5, 1.5E-3               the number; with decimal="," 0,5 instead of 0.5
    blanks and tabs around it                       ignored
    empty, nan, NA, N/A, #N/A, null, none, ?        missing: NaN (any case)
    1,5 with decimal "."; 1.5 with decimal ","      refused
    1_000, 1 000, 1'000, 12 %, 3 V, 0x1F, true      refused
    digits of other scripts, "1e", "--1"            refused
    inf, infinity, beyond float32 (3.4e38)          refused: no finite number
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np

GREATEST = float(np.finfo(np.float32).max)
MISSING_WORDS = frozenset(("", "nan", "na", "n/a", "#n/a", "null", "none", "?"))
BLANKS = " \t"

_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_INFINITE = re.compile(r"[+-]?inf(?:inity)?", re.IGNORECASE)
_ISO = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}(?:[T ][0-9]{2}:[0-9]{2}(?::[0-9]{2}(?:[.,][0-9]{1,9})?)?(?:Z|[+-][0-9]{2}:?[0-9]{2})?)?"
)


_THOUSANDS = r"[+-]?[0-9]{1,3}(?:[ '_\u00a0\u2009\u202f\u2019][0-9]{3})+(?:[.,][0-9]+)?"
_DASH = r"[\u2010-\u2015\u2212\ufe63\uff0d][0-9.,]+"
_WITH_UNIT = r"[+-]?[0-9]+(?:[.,][0-9]+)?\s*(?:[^\W\d_]|[%\u00b0\u20ac$])\S{0,9}"
# Texts that people write for numbers and that are not converted, with the remedy.
_REMEDIES = (
    (_ISO, "it is a date: name its column with time=, or leave it out of the inputs"),
    (re.compile(r"true|false|yes|no|on|off", re.IGNORECASE), "write 1 and 0"),
    (re.compile(r"0[xX][0-9a-fA-F]+"), "write it in decimal digits"),
    (re.compile(_DASH), "write its sign as -"),
    (re.compile(_THOUSANDS), "write it without marks between the thousands"),
    (re.compile(_WITH_UNIT), "write the number without its unit"),
    *((re.compile(f".*[{one}].*"), f"if {one!r} stands between columns, set delimiter={one!r}") for one in ";\t|"),
)


class RefusedValue(ValueError):
    """A value that is not converted. The text is the reason, and follows the name of its place in a message."""


def is_missing(text: str) -> bool:
    """Return whether a cell has one of the usual signs of a missing value."""
    return text.strip(BLANKS).lower() in MISSING_WORDS


def number_in(text: str, decimal: str = ".") -> float:
    """Return the number in a cell; NaN if the value is missing.

    Args:
        decimal: Decimal mark, "." or ",".

    Raises:
        RefusedValue: The text is neither a finite number of float32 nor a sign of a missing value.
    """
    bare = text.strip(BLANKS)
    plain = bare if decimal == "." else bare.replace(".", "_").replace(",", ".")
    if not _NUMBER.fullmatch(plain):
        if is_missing(bare):
            return math.nan
        raise RefusedValue(_why_no_number(bare, decimal))
    number = float(plain)
    if abs(number) > GREATEST:
        raise RefusedValue(f"{shown(bare)} is not a finite number of float32")
    return number


def number_or_classes(number: Callable[[Any], float], cell: Any) -> float:
    """Return the number of a target. RefusedValue names the setting for targets that are names of classes."""
    try:
        return number(cell)
    except RefusedValue as why:
        if isinstance(cell, str) and cell.strip(BLANKS)[:1].isalpha():
            raise RefusedValue(f"{why}; if the target is a class, name all classes with classes=[...]") from None
        raise


def time_in(text: str, decimal: str = ".") -> tuple[float, bool]:
    """Return the time in a cell, and whether it was a date: seconds since 1970 in UTC, or the number as it is.

    Raises:
        RefusedValue: The text is neither a number nor a date of ISO 8601.
    """
    bare = text.strip(BLANKS)
    if _ISO.fullmatch(bare):
        try:
            when = datetime.fromisoformat(bare)
            when = when.astimezone(UTC) if when.tzinfo else when.replace(tzinfo=UTC)
        except (ValueError, OverflowError) as error:
            raise RefusedValue(f"{shown(bare)} is no time: {error}") from None
        return when.timestamp(), True
    plain = bare if decimal == "." else bare.replace(".", "_").replace(",", ".")
    if not _NUMBER.fullmatch(plain) or not math.isfinite(float(plain)):
        raise RefusedValue(
            f"{shown(bare)} is no time; write a number or a date of ISO 8601 such as 2026-03-01T12:00:00"
        )
    return float(plain), False


def plain_spelling(text: str) -> str:
    """Return a name without the differences that a reader does not see, or hardly: capitals, composed letters, blanks."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def shown(value: object) -> str:
    """Return a value for a message, in at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _why_no_number(text: str, decimal: str) -> str:
    found = shown(text)
    other = "," if decimal == "." else "."
    if _INFINITE.fullmatch(text):
        return f"{found} is not a finite number"
    if other in text and _NUMBER.fullmatch(text.replace(decimal, "_").replace(other, ".")):
        return (
            f'{found} is no number with the decimal mark "{decimal}"; if the file has "{other}", set decimal="{other}"'
        )
    remedies = [remedy for pattern, remedy in _REMEDIES if pattern.fullmatch(text)]
    return "; ".join([f"{found} is no number", *remedies[:1]])
