"""Dataclasses made of plain values, such as those of a JSON file; each value is checked against the type of its field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

import msgspec

from fedpatch.shared.errors import UsageError

T = TypeVar("T")


def from_plain(kind: type[T], values: Mapping[str, Any], what: str) -> T:
    """Make a dataclass of plain values.

    Args:
        kind: The dataclass.
        values: The values by the names of the fields.
        what: Name of the dataclass in messages.

    Returns:
        The dataclass; lists become tuples, and whole numbers floats, if the field has this type.

    Raises:
        UsageError: A field is unknown, missing or has another type; the message names the field.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Trial:
        ...     rounds: int
        >>> from_plain(Trial, {"rounds": "4"}, "a trial")
        Traceback (most recent call last):
        ...
        fedpatch.shared.errors.UsageError: a trial does not fit: Expected `int`, got `str` - at `$.rounds`
    """
    if not isinstance(values, Mapping):
        raise UsageError(f"{what} does not fit: it holds no names and values")
    if unknown := sorted(set(values) - {one.name for one in fields(kind)}):  # type: ignore[arg-type]  # T is a dataclass
        raise UsageError(f"{what} has no field {', '.join(unknown)}; it was written by another version")
    try:
        return msgspec.convert(dict(values), kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"{what} does not fit: {error}") from error
